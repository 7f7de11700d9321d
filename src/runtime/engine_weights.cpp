// What an engine does for weights: those that were lent, and those that are derived from others.

#include <algorithm>

#include "base/integers.h"
#include "runtime/engine.h"

namespace brrr {

// -- lent weights
// --------------------------------------------------------------------------------

// Whether the program can read an input where it lies.
bool Engine::reads_at(const Graph& graph, NodeId input, const std::byte* data) const {
  const auto size = bytes_of(graph.type({input, 0}).dtype);
  return reinterpret_cast<uintptr_t>(data) % size == 0 ||
         backend_.reads_unaligned(graph, {input, 0});
}

// Where an input was lent; null: it was not, or the program cannot read it there.
const std::byte* Engine::lent(const Graph& graph, NodeId input) const {
  const auto at = lent_.find(graph.input_name(input));
  const bool is_it = at != lent_.end() && at->second.type == graph.type({input, 0}) &&
                     reads_at(graph, input, at->second.data);
  return is_it ? at->second.data : nullptr;
}

// States that programs read where they were lent, and this one cannot.
std::vector<std::string> Engine::lent_too_oddly(const Graph& graph) const {
  std::vector<std::string> names;
  for (const NodeId id : graph.inputs()) {
    const StateInfo* const info = find_state(graph.input_name(id));
    if (info != nullptr && info->is_lent && !reads_at(graph, id, info->apart))
      names.push_back(info->name);
  }
  return names;
}

// A lent state becomes the engine's own, its content that of the lender.
void Engine::take_over(const std::string& name) {
  StateInfo& info = states_[state_index_.find(name)->second];
  if (!allocated()) {
    info.apart = nullptr;
    info.is_lent = false;
    return;
  }
  Arena own(*device_, std::max<int64_t>(info.type.bytes(), 1));
  device_->copy_in(own.data(), info.apart, info.type.bytes());
  info.apart = own.data();
  info.is_lent = false;
  later_[name] = std::move(own);
  for (const auto& slot : programs_)
    if (slot) slot->bound = 0;
}

void Engine::lend_state(std::string_view name, const Type& type, std::span<const std::byte> bytes) {
  BRRR_CHECK(find_state(name) == nullptr, "'{}' is there before it is lent", name);
  BRRR_CHECK(backend_.open_device == nullptr, "only the host reads the memory of others");
  BRRR_CHECK(type.bytes() == std::ssize(bytes), "'{}' is lent as {} bytes", name, bytes.size());
  lent_.emplace(name, Lent{type, bytes.data()});
}

// -- derived weights
// --------------------------------------------------------------------------------

const DerivedWeight* Engine::stands_for_parameters(const StateInfo& state) const {
  if (state.role != Role::derived || weights_.is_refreshed(state.name)) return nullptr;
  return &weights_.weight(state.name);
}

void Engine::make_weights(
    std::span<const StateInfo> states,
    const std::function<void(const std::string&, const Type&, std::span<std::byte>)>& fill) {
  std::vector<DerivedWeight> weights;
  for (const StateInfo& state : states) weights.push_back(weights_.weight(state.name));
  Program program(refresh_graph(weights), backend_);
  const Graph& g = program.graph();
  std::map<NodeId, std::byte*> places;
  std::map<NodeId, int64_t> offsets;  // of those that have to be filled
  int64_t bytes = 0;
  for (const NodeId id : g.inputs(InputKind::parameter)) {
    if (const std::byte* const data = lent(g, id); data != nullptr) {
      places[id] = const_cast<std::byte*>(data);  // the program only reads it
      continue;
    }
    offsets[id] = bytes;
    bytes += round_up(g.type({id, 0}).bytes(), backend_.alignment);
  }
  const Arena sources(*device_, bytes);
  std::vector<std::byte> room;
  for (const auto& [id, offset] : offsets) {
    const Type& type = g.type({id, 0});
    std::byte* const to = places[id] = sources.data() + offset;
    if (device_->is_host()) {
      fill(g.input_name(id), type, {to, static_cast<size_t>(type.bytes())});
    } else {
      room.resize(static_cast<size_t>(type.bytes()));
      fill(g.input_name(id), type, room);
      device_->copy_in(to, room.data(), type.bytes());
    }
  }
  const Arena constants(*device_, constant_bytes(program));
  const Arena temporaries(*device_, program.plan().temporary_bytes);
  program.bind(*device_, temporaries.data(), constants.data(), [&](NodeId id) {
    const auto place = places.find(id);
    return place != places.end() ? place->second : state_place(g.input_name(id)).data;
  });
  program.run();
  device_->synchronise();
}

std::map<std::string, Type> Engine::sources_to_fill(const DerivedWeight& weight) const {
  const Graph g = refresh_graph(std::span(&weight, 1));
  std::map<std::string, Type> sources;
  for (const NodeId id : g.inputs(InputKind::parameter))
    if (lent(g, id) == nullptr) sources.emplace(g.input_name(id), g.type({id, 0}));
  return sources;
}

// The program that makes again what can go stale: known before allocate(), so that its memory is.
std::unique_ptr<Engine::Slot> Engine::refresh_slot(const WeightRefresher& weights) const {
  const std::vector<DerivedWeight> all = weights.refreshable();
  return all.empty() ? nullptr : std::make_unique<Slot>(Program(refresh_graph(all), backend_));
}

void Engine::tracked(size_t program, const std::function<bool()>& run) {
  bool ended = false;
  try {
    ended = run();
  } catch (...) {
    weights_.failed(program);
    throw;
  }
  ended ? weights_.ran(program) : weights_.failed(program);
}

// The inputs of the program, which lie among the temporaries, stay what they are.
void Engine::refresh_before(size_t program) {
  if (!weights_.reads_stale(program)) return;
  std::map<std::string, std::vector<std::byte>> inputs;
  const Graph& g = slot(program).program.graph();
  for (NodeId id : g.inputs(InputKind::data)) {
    const Place place = input_place(program, g.input_name(id));
    std::vector<std::byte>& kept = inputs[g.input_name(id)];
    kept.resize(static_cast<size_t>(place.bytes));
    device_->copy_out(kept.data(), place.data, place.bytes);
  }
  bound(*refresh_).run();
  weights_.refreshed();
  for (const auto& [name, kept] : inputs) copy_input(program, name, kept);
}

}  // namespace brrr
