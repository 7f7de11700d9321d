#include "runtime/engine.h"

#include <algorithm>
#include <cstring>

#include "base/integers.h"
#include "runtime/staging.h"

namespace brrr {
Engine::Engine(Backend backend) : backend_(std::move(backend)), device_(host_device()) {}
Engine::~Engine() = default;

size_t Engine::add(Graph graph, const ProgramOptions& options) {
  register_states(graph);
  programs_.emplace_back(Program(graph, backend_, options));
  Slot& slot = programs_.back();
  const Graph& g = slot.program.graph();
  for (NodeId id : g.inputs()) slot.inputs.emplace(g.input_name(id), id);
  if (allocated()) {
    const MemoryPlan& plan = slot.program.plan();
    slot.own = Arena(*device_, plan.constant_bytes + plan.temporary_bytes + backend_.alignment);
    extra_bytes_ += slot.own.bytes();
    bind(slot, slot.own.data() + plan.constant_bytes, slot.own.data());
  }
  return programs_.size() - 1;
}

void Engine::register_states(const Graph& graph) {
  for (NodeId id : graph.inputs()) {
    if (graph.input_kind(id) == InputKind::data) continue;
    const std::string& name = graph.input_name(id);
    const Type& type = graph.type({id, 0});
    const auto at = state_index_.find(name);
    if (at != state_index_.end()) {
      BRRR_CHECK(states_[at->second].type == type,
                 "state '{}' is {} in one program and {} in another", name,
                 states_[at->second].type.str(), type.str());
      continue;
    }
    BRRR_CHECK(!allocated(), "a program added later needs the new state '{}'", name);
    state_index_.emplace(name, states_.size());
    states_.push_back({name, type, graph.role(id), graph.node(id).attrs, 0});
  }
}

MemoryForecast Engine::forecast() const {
  MemoryForecast f;
  for (const StateInfo& s : states_)
    (s.kind() == InputKind::parameter ? f.parameter_bytes : f.state_bytes) +=
        round_up(std::max<int64_t>(s.type.bytes(), 1), backend_.alignment);
  for (const Slot& slot : programs_) {
    f.constant_bytes += round_up(slot.program.plan().constant_bytes, backend_.alignment);
    f.temporary_bytes = std::max(f.temporary_bytes, slot.program.plan().temporary_bytes);
  }
  f.constant_bytes += staging_bytes();
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
    offset += round_up(std::max<int64_t>(states_[i].type.bytes(), 1), backend_.alignment);
    state_index_[states_[i].name] = i;
  }
  state_total_ = offset;
  const MemoryForecast f = forecast();
  if (backend_.open_device) device_ = backend_.open_device();
  arena_ = Arena(*device_, std::max<int64_t>(f.total(), backend_.alignment));
  std::byte* constant = arena_.data() + state_total_;
  std::byte* temporary = constant + f.constant_bytes;
  for (Slot& slot : programs_) {
    bind(slot, temporary, constant);
    constant += round_up(slot.program.plan().constant_bytes, backend_.alignment);
  }
  staging_bytes_ = staging_bytes();
  if (!device_->is_host())
    staging_ = std::make_unique<Staging>(*device_, temporary - staging_bytes_, staging_bytes_);
}

// Room for the inputs and scalars of every call at once, where the host cannot hand them over call
// by call.
int64_t Engine::staging_bytes() const {
  if (!backend_.open_device) return 0;
  int64_t most = 0;
  for (const Slot& slot : programs_) {
    const Graph& g = slot.program.graph();
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

void Engine::bind(Slot& slot, std::byte* temporary, std::byte* constant) {
  slot.program.bind(*device_, temporary, constant, [&](NodeId id) {
    return state_place(slot.program.graph().input_name(id)).data;
  });
}

const StateInfo* Engine::find_state(std::string_view name) const {
  const auto at = state_index_.find(name);
  return at == state_index_.end() ? nullptr : &states_[at->second];
}

Engine::Place Engine::state_place(std::string_view name) const {
  const StateInfo* info = find_state(name);
  BRRR_CHECK(info != nullptr && allocated(), "there is no state '{}'", name);
  return {arena_.data() + info->offset, info->type.bytes()};
}

Engine::Place Engine::state_to_write(std::string_view name) {
  const Place place = state_place(name);
  parameter_writes_ += find_state(name)->kind() == InputKind::parameter;
  return place;
}

Engine::Place Engine::input_place(size_t program, std::string_view name) const {
  const Slot& slot = programs_[program];
  const auto at = slot.inputs.find(name);
  BRRR_CHECK(at != slot.inputs.end(), "the program has no input '{}'", name);
  return {slot.program.address({at->second, 0}),
          slot.program.graph().type({at->second, 0}).bytes()};
}

Engine::Place Engine::output_place(size_t program, std::string_view name) const {
  const Program& p = programs_[program].program;
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
  const Place place = state_to_write(name);
  if (device_->is_host()) return fill({place.data, static_cast<size_t>(place.bytes)});
  std::vector<std::byte> room(static_cast<size_t>(place.bytes));
  fill(room);
  device_->copy_in(place.data, room.data(), place.bytes);
}

float Engine::read_scalar(std::string_view name) const {
  float value = 0;
  const Place place = state_place(name);
  BRRR_CHECK(place.bytes == sizeof(value), "state '{}' is no f32 scalar", name);
  device_->copy_out(&value, place.data, place.bytes);
  return value;
}

void Engine::write_scalar(std::string_view name, float value) {
  write_state(name, std::as_bytes(std::span(&value, 1)));
}

// -- running
// --------------------------------------------------------------------------------------

void Engine::copy_input(size_t program, std::string_view name, std::span<const std::byte> bytes) {
  const Place place = input_place(program, name);
  BRRR_CHECK(static_cast<int64_t>(bytes.size()) == place.bytes, "input '{}' has {} bytes, got {}",
             name, place.bytes, bytes.size());
  device_->copy_in(place.data, bytes.data(), place.bytes);
}

void Engine::set_inputs(const Call& call) {
  for (const Call::Input& in : call.inputs) copy_input(call.program, in.name, in.bytes);
}

std::optional<std::string> Engine::first_non_finite(const Call& call) {
  set_inputs(call);
  return programs_[call.program].program.first_non_finite();
}

void Engine::run_and_look(const Call& call, const Program::Look& look) {
  set_inputs(call);
  programs_[call.program].program.run_and_look(look);
}

void Engine::run(size_t program, Timeline* timeline) { programs_[program].program.run(timeline); }

std::vector<std::vector<float>> Engine::run(std::span<const Call> calls, Timeline* timeline) {
  BRRR_CHECK(static_cast<int64_t>(calls.size()) <= most_calls_, "{} calls; {} were expected",
             calls.size(), most_calls_);
  if (staging_ && timeline == nullptr && fits_staging(calls)) return run_staged(calls);
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

// A program that was added later may have more inputs than there is room for.
bool Engine::fits_staging(std::span<const Call> calls) const {
  int64_t bytes = 0;
  for (const Call& call : calls) {
    for (const Call::Input& in : call.inputs)
      bytes += Staging::room_for(static_cast<int64_t>(in.bytes.size()));
    bytes += static_cast<int64_t>(call.scalars.size()) * Staging::room_for(sizeof(float));
  }
  return bytes <= staging_bytes_;
}

std::vector<std::vector<float>> Engine::run_staged(std::span<const Call> calls) {
  staging_->clear();
  for (const Call& call : calls) {
    programs_[call.program].program.prepare();
    for (const Call::Input& in : call.inputs) {
      const Place to = input_place(call.program, in.name);
      BRRR_CHECK(static_cast<int64_t>(in.bytes.size()) == to.bytes,
                 "input '{}' has {} bytes, got {}", in.name, to.bytes, in.bytes.size());
      staging_->add_input(to.data, in.bytes);
    }
    staging_->add_run(call.program, [this, id = call.program] { programs_[id].program.run(); });
    for (std::string_view name : call.scalars)
      staging_->add_output(output_place(call.program, name).data, sizeof(float));
  }
  const std::span<const std::byte> read = staging_->run();
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
  BRRR_CHECK(device_->is_host(), "the memory of {} was to be touched by the host", device_->name());
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
