// What an engine does for weights: those that were lent, and those that are derived from others.

#include <algorithm>
#include <set>

#include "base/integers.h"
#include "runtime/engine.h"
#include "runtime/ranks/state_shards.h"
#include "runtime/unaligned_readers.h"

namespace brrr {
namespace {

bool is_aligned(const std::byte* data, const Type& type) {
  if (type.storage.is_blocks()) return true;
  return reinterpret_cast<uintptr_t>(data) % bytes_of(type.dtype) == 0;
}

Type type_of(const TensorView& tensor) { return {tensor.dtype, tensor.shape, tensor.storage}; }

/// Whether the bytes of a tensor are those of a parameter. The bytes of blocks are the same for
/// every dtype that their numbers are read in.
bool holds_bytes_of(const TensorView& tensor, const Type& type) {
  if (tensor.storage.is_blocks())
    return tensor.shape == type.shape && tensor.storage == type.storage;
  return type_of(tensor) == type;
}

/// Writes a parameter as `type` has it. Floats are rounded to its dtype; nothing else changes.
void read_parameter(const WeightSource& source, const std::string& name, const Type& type,
                    std::span<std::byte> to) {
  const TensorView* const tensor = source.find(name);
  if (tensor == nullptr)
    user_error("{}: the tensor {} is missing; the model wants {}", source.what(), name, type.str());
  const Type stored = type_of(*tensor);
  const bool converts = (stored.storage.is_plain() || stored.storage.is_blocks()) &&
                        type.storage.is_plain() && stored.shape == type.shape &&
                        is_float(stored.dtype) && is_float(type.dtype);
  if (!converts && !holds_bytes_of(*tensor, type))
    user_error("{}: the tensor {} is {}; the model wants {}", source.what(), name, stored.str(),
               type.str());
  if (type.storage.is_plain())
    read_as(source, *tensor, type.dtype, to);
  else
    source.read(*tensor, to);
  // `to` holds a copy, so that mapped pages of quantised files need not stay resident.
  if (stored.storage.is_blocks()) source.let_go(tensor->bytes);
}

/// Writes rank `rank`'s shard of a parameter; what it has beyond the tensor is zeros.
void read_shard(const WeightSource& source, const StateInfo& state, const Type& whole, int64_t rank,
                std::span<std::byte> to) {
  const TensorView* const tensor = source.find(state.name);
  if (tensor != nullptr && !tensor->bytes.empty() && tensor->storage.is_plain() &&
      tensor->shape == whole.shape && is_float(tensor->dtype)) {
    // A mapped file is read only where this rank's part lies.
    const ShardRange part = range_of_shard(state, rank);
    const int64_t element = bytes_of(tensor->dtype);
    TensorView own{tensor->name, tensor->dtype, Shape{part.size()},
                   tensor->bytes.subspan(static_cast<size_t>(part.begin * element),
                                         static_cast<size_t>(part.size() * element))};
    const auto filled = static_cast<size_t>(part.size() * bytes_of(state.type.dtype));
    read_as(source, own, state.type.dtype, to.first(filled));
    std::ranges::fill(to.subspan(filled), std::byte{});
    return;
  }
  std::vector<std::byte> all(static_cast<size_t>(whole.bytes()));
  read_parameter(source, state.name, whole, all);
  copy_shard(state, all, rank, to);
}

}  // namespace

// -- lent weights
// --------------------------------------------------------------------------------

// The address of an input inside a mapped tensor of the source, if the program can read it there;
// else null.
const std::byte* Engine::lent(const Graph& graph, NodeId input, UnalignedReaders& readers) const {
  if (!source_ || backend_.open_device || graph.role(input) != Role::parameter) return nullptr;
  const TensorView* const tensor = source_->find(graph.input_name(input));
  if (tensor == nullptr || !holds_bytes_of(*tensor, graph.type({input, 0})) ||
      std::ssize(tensor->bytes) != graph.type({input, 0}).bytes() ||
      std::ranges::any_of(graph.outputs(), [&](const Output& o) { return o.updates == input; }))
    return nullptr;
  const std::byte* const data = tensor->bytes.data();
  return is_aligned(data, graph.type({input, 0})) || readers.take(input) ? data : nullptr;
}

// States that programs read where they were lent, and this one cannot.
std::vector<std::string> Engine::lent_too_oddly(const Graph& graph) const {
  std::vector<std::string> names;
  UnalignedReaders readers(backend_, graph);
  for (const NodeId id : graph.inputs()) {
    const StateInfo* const info = find_state(graph.input_name(id));
    if (info != nullptr && info->is_lent && !is_aligned(info->apart, info->type) &&
        !readers.take(id))
      names.push_back(info->name);
  }
  return names;
}

// A lent state becomes the engine's own, its content that of the lender.
void Engine::take_over(const std::string& name) {
  StateInfo& info = states_[state_index_.find(name)->second];
  if (!allocated()) {
    info.apart = nullptr;
    info.is_lent = info.is_written = false;
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

// -- derived weights
// --------------------------------------------------------------------------------

const DerivedWeight* Engine::stands_for_parameters(const StateInfo& state) const {
  if (state.role != Role::derived || weights_.is_refreshed(state.name)) return nullptr;
  return &weights_.weight(state.name);
}

// Lent parameters are read in the mapped file. The others are converted into `room`, which also
// holds the program's temporaries and constants. It is reused from weight to weight, growing where
// one needs more, so that the system does not clear fresh pages for each.
void Engine::make_weights(std::span<const StateInfo> states, const WeightSource& source,
                          Arena& room) {
  std::vector<DerivedWeight> weights;
  for (const StateInfo& state : states) weights.push_back(weights_.weight(state.name));
  Program program(refresh_graph(weights), backend_);
  const Graph& g = program.graph();
  UnalignedReaders readers(backend_, g);
  std::map<NodeId, std::byte*> places;
  std::map<NodeId, int64_t> offsets;  // of those that have to be converted
  int64_t bytes = 0;
  for (const NodeId id : g.inputs(InputKind::parameter)) {
    if (const std::byte* const data = lent(g, id, readers); data != nullptr) {
      places[id] = const_cast<std::byte*>(data);  // the program only reads it
      continue;
    }
    offsets[id] = bytes;
    bytes += round_up(g.type({id, 0}).bytes(), backend_.alignment);
  }
  const int64_t temporary = bytes,
                constant = bytes + round_up(program.plan().temporary_bytes, backend_.alignment);
  if (const int64_t needed = constant + constant_bytes(program); needed > room.bytes()) {
    room = Arena();
    room = Arena(*device_, needed);
  }
  for (const auto& entry : offsets) {
    const NodeId id = entry.first;
    places[id] = room.data() + entry.second;
    fill_place({places[id], g.type({id, 0}).bytes()}, [&](std::span<std::byte> to) {
      read_parameter(source, g.input_name(id), g.type({id, 0}), to);
    });
  }
  program.bind(*device_, room.data() + temporary, room.data() + constant, [&](NodeId id) {
    const auto place = places.find(id);
    return place != places.end() ? place->second : state_place(g.input_name(id)).data;
  });
  program.run();
  device_->synchronise();
  for (const auto& [id, place] : places)
    if (const StateInfo* const state = find_state(g.input_name(id));
        !offsets.contains(id) && (state == nullptr || !state->is_lent))
      source.let_go({place, static_cast<size_t>(g.type({id, 0}).bytes())});
  for (const StateInfo& state : states)
    states_[state_index_.find(state.name)->second].is_written = true;
}

std::map<std::string, Type> Engine::sources_to_fill(const DerivedWeight& weight) const {
  const Graph g = refresh_graph(std::span(&weight, 1));
  UnalignedReaders readers(backend_, g);
  std::map<std::string, Type> sources;
  for (const NodeId id : g.inputs(InputKind::parameter))
    if (lent(g, id, readers) == nullptr) sources.emplace(g.input_name(id), g.type({id, 0}));
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
  ended ? ran(program) : weights_.failed(program);
}

void Engine::ran(size_t program) {
  weights_.ran(program);
  Slot& own = *find_slot(program);
  if (own.has_run) return;
  const Graph& g = own.program.graph();
  for (const Output& out : g.outputs())
    if (out.updates != kNoNode)
      states_[state_index_.find(g.input_name(out.updates))->second].is_written = true;
  own.has_run = true;
}

// -- states that nobody has written yet
// -----------------------------------------------------------------------------

void Engine::fill_from(const WeightSource& source, int64_t together, bool rewrites) {
  Arena room;
  std::vector<StateInfo> weights;  // to be made by one program
  int64_t bytes = 0;
  const auto make = [&] {
    if (!weights.empty()) make_weights(weights, source, room);
    weights.clear();
    bytes = 0;
  };
  for (const StateInfo& state : states_) {
    if (state.is_lent || (state.is_written && !rewrites)) continue;
    if (state.kind() == InputKind::parameter) {
      fill_state(state.name, [&](std::span<std::byte> to) {
        if (const std::optional<Type> whole = whole_type(state))
          read_shard(source, state, *whole, backend_.rank, to);
        else
          read_parameter(source, state.name, state.type, to);
      });
    } else if (stands_for_parameters(state) != nullptr) {
      weights.push_back(state);
      bytes += state.type.bytes();
      if (bytes >= together) make();
    }
  }
  make();
}

void Engine::load(const WeightSource& source) { fill_from(source, 0, true); }

void Engine::use_weights(std::shared_ptr<const WeightSource> source, int64_t together) {
  source_ = std::move(source);
  together_ = together;
}

void Engine::load_weights() {
  if (source_) fill_from(*source_, together_, false);
}

void Engine::fill_new_states() {
  load_weights();
  const auto is_written = [&](const std::string& name) { return find_state(name)->is_written; };
  for (const StateInfo& state : states_) {
    if (state.is_written || state.role != Role::derived || !weights_.is_refreshed(state.name))
      continue;
    if (std::ranges::all_of(weights_.weight(state.name).sources, is_written))
      weights_.must_make(state.name);
  }
}

/// In every build: a program that reads zeros for weights gives numbers that look right.
void Engine::check_written(const Graph& graph) const {
  std::vector<bool> is_read(graph.size());
  for (const Node& node : graph.nodes())
    for (const ValueId& v : node.operands) is_read[v.node] = true;
  for (const Output& out : graph.outputs())
    if (out.value != ValueId{out.updates, 0}) is_read[out.value.node] = true;
  for (const NodeId id : graph.inputs()) {
    const Role role = graph.role(id);
    if (!is_read[id] || (role != Role::parameter && role != Role::derived)) continue;
    const StateInfo* const state = find_state(graph.input_name(id));
    BRRR_CHECK(state->is_written, "a program reads the {} '{}', which was never written",
               name_of(role), state->name);
  }
}

/// Derived weights that came after allocate(), that no program but these has, and that can be made
/// again.
std::vector<std::string> Engine::released_with(std::span<const size_t> programs) const {
  std::vector<std::string> names;
  if (!source_) return names;
  for (const auto& [name, arena] : later_) {
    if (stands_for_parameters(*find_state(name)) == nullptr) continue;
    bool is_needed = false;
    for (size_t id = 0; id < programs_.size(); ++id)
      if (programs_[id] && std::ranges::find(programs, id) == programs.end())
        is_needed |= programs_[id]->program.graph().find_input(name) != kNoNode;
    if (!is_needed) names.push_back(name);
  }
  return names;
}

void Engine::release(const std::vector<std::string>& states) {
  if (states.empty()) return;
  const std::set<std::string> gone(states.begin(), states.end());
  std::erase_if(states_, [&](const StateInfo& state) { return gone.contains(state.name); });
  for (const std::string& name : states) {
    later_.erase(name);
    weights_.forget(name);
  }
  state_index_.clear();
  for (size_t i = 0; i < states_.size(); ++i) state_index_[states_[i].name] = i;
}

void Engine::prepare_states(size_t program) {
  const bool is_first_run = !slot(program).has_run;
  if (is_first_run) fill_new_states();
  if (weights_.reads_stale(program)) refresh(program);
  if (is_first_run) check_written(slot(program).program.graph());
}

// The inputs of the program, which lie among the temporaries, stay what they are.
void Engine::refresh(size_t program) {
  std::map<std::string, std::vector<std::byte>> inputs;
  const Graph& g = slot(program).program.graph();
  for (NodeId id : g.inputs(InputKind::data)) {
    if (bound(program).is_lent(id)) continue;  // it lies elsewhere
    const Place place = input_place(program, g.input_name(id));
    std::vector<std::byte>& kept = inputs[g.input_name(id)];
    kept.resize(static_cast<size_t>(place.bytes));
    device_->copy_out(kept.data(), place.data, place.bytes);
  }
  bound(*refresh_).run();
  weights_.refreshed();
  const auto is_written = [&](const std::string& source) { return find_state(source)->is_written; };
  for (StateInfo& state : states_)
    if (state.role == Role::derived && weights_.is_refreshed(state.name) &&
        std::ranges::all_of(weights_.weight(state.name).sources, is_written))
      state.is_written = true;
  for (const auto& [name, kept] : inputs) copy_input(program, name, kept);
}

}  // namespace brrr
