#include "runtime/engine.h"

#include <algorithm>
#include <cstring>

#include "base/integers.h"
#include "base/memory.h"
#include "runtime/staging.h"
#include "runtime/unaligned_readers.h"

namespace brrr {

Engine::Engine(Backend backend, WrittenBy written_by)
    : backend_(std::move(backend)),
      device_(host_device()),
      weights_(written_by == WrittenBy::anyone) {}
Engine::~Engine() = default;

size_t Engine::add(Program program) {
  check_states(program.graph());
  const std::vector<std::string> to_own = lent_too_oddly(program.graph());
  // What can fail comes before what changes the engine.
  WeightRefresher weights = weights_;
  const bool plans_refresh = weights.add(programs_.size(), program.graph()) &&
                             weights.refreshable() != weights_.refreshable();
  std::unique_ptr<Slot> refresh = plans_refresh ? refresh_slot(weights) : nullptr;
  if (allocated()) {
    int64_t needed = bytes_with(std::span(&program, 1));
    for (const std::string& name : to_own) needed += find_state(name)->type.bytes();
    if (refresh)
      needed +=
          constant_bytes(refresh->program) +
          std::max<int64_t>(0, refresh->program.plan().temporary_bytes -
                                   std::max(temporary_bytes(), program.plan().temporary_bytes));
    check_limit(needed);
  }
  auto slot = std::make_unique<Slot>(std::move(program));
  const Graph& g = slot->program.graph();
  for (NodeId id : g.inputs()) slot->inputs.emplace(g.input_name(id), id);
  if (allocated())
    for (Slot* const fresh : {slot.get(), refresh.get()})
      if (fresh != nullptr) {
        fresh->own = Arena(*device_, constant_bytes(fresh->program));
        fresh->constant = fresh->own.data();
      }
  for (const std::string& name : to_own) take_over(name);
  register_states(g);
  weights_ = std::move(weights);
  if (plans_refresh) {
    if (refresh_ && allocated()) device_->synchronise();
    refresh_ = std::move(refresh);
    if (refresh_)
      for (const std::string& name : lent_too_oddly(refresh_->program.graph())) take_over(name);
  }
  programs_.push_back(std::move(slot));
  try {
    if (allocated()) resize_temporary();
  } catch (const UserError&) {
    const size_t refused = programs_.size() - 1;
    release(released_with(std::span(&refused, 1)));
    programs_.pop_back();
    weights_.remove(refused);
    throw;
  }
  return programs_.size() - 1;
}

void Engine::remove(size_t id) {
  BRRR_CHECK(id < programs_.size() && programs_[id], "there is no program {}", id);
  device_->synchronise();
  if (staging_) staging_->forget();
  release(released_with(std::span(&id, 1)));
  programs_[id].reset();
  weights_.remove(id);
  if (allocated()) resize_temporary();
}

Engine::Slot* Engine::find_slot(size_t id) const {
  BRRR_CHECK(id < programs_.size() && programs_[id], "there is no program {}", id);
  return programs_[id].get();
}

// Every program that there is.
std::vector<const Engine::Slot*> Engine::slots() const {
  std::vector<const Slot*> list;
  for (const auto& slot : programs_)
    if (slot) list.push_back(slot.get());
  if (refresh_) list.push_back(refresh_.get());
  return list;
}

std::vector<const Graph*> Engine::graphs() const {
  std::vector<const Graph*> list;
  for (const Slot* slot : slots()) list.push_back(&slot->program.graph());
  return list;
}

int64_t Engine::constant_bytes(const Program& program) const {
  return round_up(program.plan().constant_bytes, backend_.alignment);
}

int64_t Engine::temporary_bytes(std::span<const size_t> without) const {
  int64_t most = refresh_ ? refresh_->program.plan().temporary_bytes : 0;
  for (size_t id = 0; id < programs_.size(); ++id)
    if (programs_[id] && std::find(without.begin(), without.end(), id) == without.end())
      most = std::max(most, programs_[id]->program.plan().temporary_bytes);
  return most;
}

int64_t Engine::bytes_with(std::span<const Program> programs,
                           std::span<const size_t> without) const {
  MemoryForecast f = forecast();
  for (const size_t id : without)
    if (!allocated() || slot(id).own.data() != nullptr)
      f.constant_bytes -= constant_bytes(slot(id).program);
  f.temporary_bytes = temporary_bytes(without);
  std::map<std::string, int64_t> fresh;  // bytes of states that are not there yet
  std::vector<std::string> released = released_with(without);
  for (const Program& program : programs) {
    f.constant_bytes += constant_bytes(program);
    f.temporary_bytes = std::max(f.temporary_bytes, program.plan().temporary_bytes);
    const Graph& g = program.graph();
    for (const std::string& name : new_states(g))
      fresh[name] = state_bytes(g.type({g.find_input(name), 0}));
    std::erase_if(released, [&](const std::string& name) { return g.find_input(name) != kNoNode; });
  }
  for (const auto& [name, bytes] : fresh) f.state_bytes += bytes;
  for (const std::string& name : released) f.state_bytes -= state_bytes(find_state(name)->type);
  return f.total();
}

void Engine::check_limit(int64_t needed) const {
  if (limit_ > 0 && needed > limit_)
    throw UserError(fmt::format("the programs would need {} ({} bytes), and the limit is {}",
                                memory_text(needed), needed, memory_text(limit_)),
                    ExitCode::kNoMemory);
}

// As large as the programs need it, no smaller and no larger. Nothing outlives a run in it, so what
// is there is given back first.
void Engine::resize_temporary() {
  const int64_t wanted = temporary_bytes();
  if (allocated() && wanted == temporary_.bytes()) return;
  device_->synchronise();
  if (staging_) staging_->forget();
  const int64_t before = temporary_.bytes();
  ++temporary_count_;
  temporary_ = Arena();
  try {
    temporary_ = Arena(*device_, wanted);
  } catch (const UserError&) {
    temporary_ = Arena(*device_, before);
    throw;
  }
}

void Engine::check_states(const Graph& graph) const {
  for (NodeId id : graph.inputs()) {
    if (graph.input_kind(id) == InputKind::data) continue;
    const std::string& name = graph.input_name(id);
    const StateInfo* info = find_state(name);
    BRRR_CHECK(info == nullptr || info->type == graph.type({id, 0}),
               "state '{}' is {} in one program and {} in another", name, info->type.str(),
               graph.type({id, 0}).str());
  }
  for (const Output& out : graph.outputs())
    if (out.updates != kNoNode) {
      const StateInfo* info = find_state(graph.input_name(out.updates));
      BRRR_CHECK(info == nullptr || !info->is_lent, "'{}' is lent, and only read", info->name);
    }
}

/// The inputs of the graph that will be states of the engine's own, and are none yet.
std::vector<std::string> Engine::new_states(const Graph& graph) const {
  std::vector<std::string> names;
  UnalignedReaders readers(backend_, graph);
  for (const NodeId id : graph.inputs())
    if (graph.input_kind(id) != InputKind::data && find_state(graph.input_name(id)) == nullptr &&
        lent(graph, id, readers) == nullptr)
      names.push_back(graph.input_name(id));
  return names;
}

void Engine::register_states(const Graph& graph) {
  UnalignedReaders readers(backend_, graph);
  for (NodeId id : graph.inputs()) {
    const std::string& name = graph.input_name(id);
    if (graph.input_kind(id) == InputKind::data ||
        !state_index_.emplace(name, states_.size()).second)
      continue;
    StateInfo info{name, graph.type({id, 0}), graph.role(id), graph.node(id).attrs};
    if (const std::byte* const data = lent(graph, id, readers); data != nullptr) {
      // Programs only read it: what updates it is refused when it is added.
      info.apart = const_cast<std::byte*>(data);
      info.is_lent = info.is_written = true;
    } else if (allocated()) {
      info.apart = (later_[name] = Arena(*device_, std::max<int64_t>(info.type.bytes(), 1))).data();
    }
    states_.push_back(std::move(info));
  }
}

int64_t Engine::state_bytes(const Type& type) const {
  return round_up(std::max<int64_t>(type.bytes(), 1), backend_.alignment);
}

int64_t Engine::lent_bytes() const {
  int64_t bytes = 0;
  for (const StateInfo& state : states_)
    if (state.is_lent) bytes += state.type.bytes();
  return bytes;
}

// What the engine itself holds of a state.
int64_t Engine::bytes_of_state(const StateInfo& state) const {
  return state.is_lent ? 0 : state_bytes(state.type);
}

MemoryForecast Engine::forecast() const {
  MemoryForecast f;
  for (const StateInfo& s : states_)
    (s.kind() == InputKind::parameter || stands_for_parameters(s) ? f.parameter_bytes
                                                                  : f.state_bytes) +=
        bytes_of_state(s);
  f.constant_bytes = allocated() ? arena_constants_ : staging_bytes();
  for (const Slot* slot : slots())
    if (!allocated() || slot->own.data() != nullptr)
      f.constant_bytes += constant_bytes(slot->program);
  f.temporary_bytes = temporary_bytes();
  return f;
}

void Engine::allocate() {
  BRRR_CHECK(!allocated(), "allocate() twice");
  std::stable_sort(states_.begin(), states_.end(), [](const StateInfo& a, const StateInfo& b) {
    return (a.kind() == InputKind::parameter) > (b.kind() == InputKind::parameter);
  });
  int64_t offset = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].offset = offset;
    offset += bytes_of_state(states_[i]);
    state_index_[states_[i].name] = i;
  }
  state_total_ = offset;
  const MemoryForecast f = forecast();
  check_limit(f.total());
  staging_bytes_ = staging_bytes();
  if (backend_.open_device) device_ = backend_.open_device();
  arena_ = Arena(*device_, state_total_ + f.constant_bytes);
  arena_constants_ = f.constant_bytes;
  std::byte* constant = arena_.data() + state_total_;
  const auto place = [&](Slot& slot) {
    slot.constant = constant;
    constant += constant_bytes(slot.program);
  };
  for (const auto& slot : programs_)
    if (slot) place(*slot);
  if (refresh_) place(*refresh_);
  if (!device_->is_host()) staging_ = std::make_unique<Staging>(*device_, constant, staging_bytes_);
  resize_temporary();
}

int64_t Engine::arena_bytes() const {
  int64_t bytes = arena_.bytes() + temporary_.bytes();
  for (const Slot* slot : slots()) bytes += slot->own.bytes();
  for (const auto& [name, arena] : later_) bytes += arena.bytes();
  return bytes;
}

// Room for the inputs and scalars of every call at once, where the host cannot hand them over call
// by call.
int64_t Engine::staging_bytes() const {
  if (!backend_.open_device) return 0;
  int64_t most = 0;
  for (const Slot* slot : slots()) {
    const Graph& g = slot->program.graph();
    int64_t bytes = 0;
    for (NodeId id : g.inputs(InputKind::data)) bytes += Staging::room_for(g.type({id, 0}).bytes());
    for (const Output& out : g.outputs())
      if (out.updates == kNoNode && g.type(out.value).shape.elements() == 1)
        bytes += Staging::room_for(int64_t{sizeof(float)});
    most = std::max(most, bytes);
  }
  return round_up(most_calls_ * most, backend_.alignment);
}

void Engine::expect_calls(int64_t most) {
  BRRR_CHECK(!allocated(), "expect_calls() after allocate()");
  most_calls_ = most;
}

// The program, its places those of the temporary region as it is now.
Program& Engine::bound(Slot& s) const {
  BRRR_CHECK(allocated(), "a program has no memory yet");
  if (s.bound != temporary_count_)
    s.program.bind(*device_, temporary_.data(), s.constant, [&](NodeId node) {
      return state_place(s.program.graph().input_name(node)).data;
    });
  s.bound = temporary_count_;
  return s.program;
}

const StateInfo* Engine::find_state(std::string_view name) const {
  const auto at = state_index_.find(name);
  return at == state_index_.end() ? nullptr : &states_[at->second];
}

Engine::Place Engine::state_place(std::string_view name) const {
  const StateInfo* info = find_state(name);
  BRRR_CHECK(info != nullptr && allocated(), "there is no state '{}'", name);
  return {info->apart != nullptr ? info->apart : arena_.data() + info->offset, info->type.bytes()};
}

Engine::Place Engine::state_to_write(std::string_view name) {
  const Place place = state_place(name);
  StateInfo& info = states_[state_index_.find(name)->second];
  BRRR_CHECK(!info.is_lent, "'{}' is lent, and only read", name);
  if (info.kind() == InputKind::parameter) weights_.wrote(name);
  info.is_written = true;
  return place;
}

NodeId Engine::input_node(size_t program, std::string_view name) const {
  const auto at = slot(program).inputs.find(name);
  BRRR_CHECK(at != slot(program).inputs.end(), "the program has no input '{}'", name);
  return at->second;
}

Engine::Place Engine::input_place(size_t program, std::string_view name) const {
  const NodeId node = input_node(program, name);
  const Program& p = bound(program);
  return {p.address({node, 0}), p.graph().type({node, 0}).bytes()};
}

Engine::Place Engine::output_place(size_t program, std::string_view name) const {
  const Program& p = bound(program);
  const Output* out = p.graph().find_output(name);
  BRRR_CHECK(out != nullptr, "the program has no output '{}'", name);
  return {p.address(out->value), p.graph().type(out->value).bytes()};
}

// -- state
// ----------------------------------------------------------------------------------------

std::span<const std::byte> Engine::read_state(std::string_view name,
                                              std::vector<std::byte>& room) const {
  return read(state_place(name), room);
}

std::span<const std::byte> Engine::read(Place place, std::vector<std::byte>& room) const {
  if (device_->is_host()) return {place.data, static_cast<size_t>(place.bytes)};
  room.resize(static_cast<size_t>(place.bytes));
  device_->copy_out(room.data(), place.data, place.bytes);
  return room;
}

void Engine::write_state(std::string_view name, std::span<const std::byte> bytes) {
  const Place place = state_to_write(name);
  BRRR_CHECK(static_cast<int64_t>(bytes.size()) == place.bytes, "state '{}' has {} bytes, got {}",
             name, place.bytes, bytes.size());
  device_->copy_in(place.data, bytes.data(), place.bytes);
}

void Engine::fill_state(std::string_view name,
                        const std::function<void(std::span<std::byte>)>& fill) {
  fill_place(state_to_write(name), fill);
}

void Engine::fill_place(Place place, const std::function<void(std::span<std::byte>)>& fill) {
  if (device_->is_host()) return fill({place.data, static_cast<size_t>(place.bytes)});
  std::vector<std::byte> room(static_cast<size_t>(place.bytes));
  fill(room);
  device_->copy_in(place.data, room.data(), place.bytes);
}

float Engine::read_scalar(std::string_view name) const {
  float value = 0;
  const Place place = state_place(name);
  BRRR_CHECK(place.bytes == sizeof(value), "state '{}' is not an f32 scalar", name);
  device_->copy_out(&value, place.data, place.bytes);
  return value;
}

void Engine::write_scalar(std::string_view name, float value) {
  write_state(name, std::as_bytes(std::span(&value, 1)));
}

// -- running
// --------------------------------------------------------------------------------------

void Engine::copy_input(size_t program, std::string_view name, std::span<const std::byte> bytes) {
  if (const NodeId input = input_node(program, name); bound(program).is_lent(input))
    bound(program).place_input(input, nullptr);
  const Place place = input_place(program, name);
  BRRR_CHECK(static_cast<int64_t>(bytes.size()) == place.bytes, "input '{}' has {} bytes, got {}",
             name, place.bytes, bytes.size());
  device_->copy_in(place.data, bytes.data(), place.bytes);
}

bool Engine::lend_input(size_t program, const Call::Input& input) {
  Program& p = bound(program);
  const NodeId node = input_node(program, input.name);
  const Type& type = p.graph().type({node, 0});
  const bool is_aligned = reinterpret_cast<uintptr_t>(input.bytes.data()) %
                              static_cast<uintptr_t>(bytes_of(type.dtype)) ==
                          0;
  if (!device_->is_host() || !is_aligned || std::ssize(input.bytes) != type.bytes() ||
      input.bytes.empty())
    return false;
  p.place_input(node, input.bytes.data());
  return true;
}

void Engine::set_inputs(const Call& call) {
  for (const Call::Input& in : call.inputs) {
    if (in.is_lent && lend_input(call.program, in)) continue;
    if (in.is_lent) copied_input_bytes_ += std::ssize(in.bytes);
    copy_input(call.program, in.name, in.bytes);
  }
}

std::optional<Program::Origin> Engine::first_non_finite(const Call& call) {
  prepare_states(call.program);
  set_inputs(call);
  std::optional<Program::Origin> origin;
  tracked(call.program, [&] {
    origin = bound(call.program).first_non_finite();
    return !origin;
  });
  return origin;
}

void Engine::run_and_look(const Call& call, const Program::Look& look) {
  prepare_states(call.program);
  set_inputs(call);
  tracked(call.program, [&] {
    bound(call.program).run_and_look(look);
    return true;
  });
}

void Engine::run(size_t program, Timeline* timeline) {
  prepare_states(program);
  tracked(program, [&] {
    bound(program).run(timeline);
    return true;
  });
}

std::vector<std::vector<float>> Engine::run(std::span<const Call> calls, Timeline* timeline) {
  BRRR_CHECK(static_cast<int64_t>(calls.size()) <= most_calls_, "{} calls; expected {}",
             calls.size(), most_calls_);
  if (staging_ && timeline == nullptr && can_stage(calls)) return run_staged(calls);
  std::vector<std::vector<float>> scalars;
  for (const Call& call : calls) {
    set_inputs(call);
    run(call.program, timeline);
    scalars.emplace_back();
    for (std::string_view name : call.scalars)
      scalars.back().push_back(output_scalar(call.program, name));
  }
  return scalars;
}

// A program that was added later may have more inputs than there is room for; and what one program
// makes stale has to be made again before another one reads it.
bool Engine::can_stage(std::span<const Call> calls) const {
  for (size_t i = 1; i < calls.size(); ++i)
    for (const Call& before : calls.first(i))
      if (weights_.must_refresh_between(before.program, calls[i].program)) return false;
  int64_t bytes = 0;
  for (const Call& call : calls) {
    for (const Call::Input& in : call.inputs)
      bytes += Staging::room_for(static_cast<int64_t>(in.bytes.size()));
    bytes += static_cast<int64_t>(call.scalars.size()) * Staging::room_for(sizeof(float));
  }
  return bytes <= staging_bytes_;
}

std::vector<std::vector<float>> Engine::run_staged(std::span<const Call> calls) {
  for (const Call& call : calls) prepare_states(call.program);
  staging_->clear();
  for (const Call& call : calls) {
    bound(call.program).prepare();
    for (const Call::Input& in : call.inputs) {
      if (in.is_lent) copied_input_bytes_ += std::ssize(in.bytes);
      const Place to = input_place(call.program, in.name);
      BRRR_CHECK(static_cast<int64_t>(in.bytes.size()) == to.bytes,
                 "input '{}' has {} bytes, got {}", in.name, to.bytes, in.bytes.size());
      staging_->add_input(to.data, in.bytes);
    }
    staging_->add_run(call.program, [this, id = call.program] { bound(id).run(); });
    for (std::string_view name : call.scalars)
      staging_->add_output(output_place(call.program, name).data, sizeof(float));
  }
  const std::span<const std::byte> read = staging_->run();
  for (const Call& call : calls) ran(call.program);
  std::vector<std::vector<float>> scalars;
  size_t at = 0;
  for (const Call& call : calls) {
    scalars.emplace_back(call.scalars.size());
    for (float& value : scalars.back()) {
      std::memcpy(&value, read.data() + at, sizeof(value));
      at += static_cast<size_t>(Staging::room_for(sizeof(value)));
    }
  }
  return scalars;
}

std::span<const std::byte> Engine::read_output(size_t program, std::string_view name,
                                               std::vector<std::byte>& room) const {
  return read(output_place(program, name), room);
}

float Engine::output_scalar(size_t program, std::string_view name) const {
  float value = 0;
  device_->copy_out(&value, output_place(program, name).data, sizeof(value));
  return value;
}

// -- the arena itself
// -----------------------------------------------------------------------------

std::byte* Engine::host(Place place) const {
  BRRR_CHECK(device_->is_host(), "the host tried to touch the memory of {}", device_->name());
  return place.data;
}

std::byte* Engine::state_data(std::string_view name) { return host(state_to_write(name)); }

std::span<float> Engine::state_f32(std::string_view name) {
  const StateInfo* info = find_state(name);
  BRRR_CHECK(info != nullptr && info->type.dtype == DType::f32, "there is no f32 state '{}'", name);
  return {reinterpret_cast<float*>(state_data(name)),
          static_cast<size_t>(info->type.shape.elements())};
}

std::byte* Engine::input(size_t program, std::string_view name) {
  return host(input_place(program, name));
}

const std::byte* Engine::output(size_t program, std::string_view name) const {
  return host(output_place(program, name));
}

}  // namespace brrr
