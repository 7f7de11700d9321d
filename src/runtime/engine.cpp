#include "runtime/engine.h"

#include <algorithm>
#include <cstring>

namespace brrr {
namespace {

int64_t round_up(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

size_t Engine::add(Graph graph, const ProgramOptions& options) {
  register_states(graph);
  programs_.emplace_back(Program(graph, backend_, options));
  Slot& slot = programs_.back();
  const Graph& g = slot.program.graph();
  for (NodeId id : g.inputs()) slot.inputs.emplace(g.input_name(id), id);
  if (allocated()) {
    const MemoryPlan& plan = slot.program.plan();
    slot.own = Arena(plan.constant_bytes + plan.temporary_bytes + backend_.alignment);
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
    states_.push_back({name, type, graph.input_kind(id), 0});
  }
}

MemoryForecast Engine::forecast() const {
  MemoryForecast f;
  for (const StateInfo& s : states_)
    (s.kind == InputKind::parameter ? f.parameter_bytes : f.state_bytes) +=
        round_up(std::max<int64_t>(s.type.bytes(), 1), backend_.alignment);
  for (const Slot& slot : programs_) {
    f.constant_bytes += round_up(slot.program.plan().constant_bytes, backend_.alignment);
    f.temporary_bytes = std::max(f.temporary_bytes, slot.program.plan().temporary_bytes);
  }
  return f;
}

void Engine::allocate() {
  BRRR_CHECK(!allocated(), "allocate() twice");
  std::stable_sort(states_.begin(), states_.end(), [](const StateInfo& a, const StateInfo& b) {
    return (a.kind == InputKind::parameter) > (b.kind == InputKind::parameter);
  });
  int64_t offset = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].offset = offset;
    offset += round_up(std::max<int64_t>(states_[i].type.bytes(), 1), backend_.alignment);
    state_index_[states_[i].name] = i;
  }
  state_total_ = offset;
  const MemoryForecast f = forecast();
  arena_ = Arena(std::max<int64_t>(f.total(), backend_.alignment));
  std::byte* constant = arena_.data() + state_total_;
  std::byte* temporary = constant + f.constant_bytes;
  for (Slot& slot : programs_) {
    bind(slot, temporary, constant);
    constant += round_up(slot.program.plan().constant_bytes, backend_.alignment);
  }
}

void Engine::bind(Slot& slot, std::byte* temporary, std::byte* constant) {
  slot.program.bind(temporary, constant,
                    [&](NodeId id) { return state_data(slot.program.graph().input_name(id)); });
}

const StateInfo* Engine::find_state(std::string_view name) const {
  const auto at = state_index_.find(name);
  return at == state_index_.end() ? nullptr : &states_[at->second];
}

std::byte* Engine::state_data(std::string_view name) const {
  const StateInfo* info = find_state(name);
  BRRR_CHECK(info != nullptr && allocated(), "there is no state '{}'", name);
  return arena_.data() + info->offset;
}

std::span<float> Engine::state_f32(std::string_view name) const {
  const StateInfo* info = find_state(name);
  BRRR_CHECK(info != nullptr && info->type.dtype == DType::f32, "there is no f32 state '{}'", name);
  return {reinterpret_cast<float*>(state_data(name)),
          static_cast<size_t>(info->type.shape.elements())};
}

std::byte* Engine::input(size_t program, std::string_view name) {
  const Slot& slot = programs_[program];
  const auto at = slot.inputs.find(name);
  BRRR_CHECK(at != slot.inputs.end(), "the program has no input '{}'", name);
  return slot.program.address({at->second, 0});
}

void Engine::copy_input(size_t program, std::string_view name, const void* data, size_t bytes) {
  std::byte* to = input(program, name);
  const Slot& slot = programs_[program];
  const Type& type = slot.program.graph().type({slot.inputs.find(name)->second, 0});
  BRRR_CHECK(static_cast<int64_t>(bytes) == type.bytes(), "input '{}' is {}, got {} bytes", name,
             type.str(), bytes);
  std::memcpy(to, data, bytes);
}

void Engine::run(size_t program, Timeline* timeline) { programs_[program].program.run(timeline); }

const std::byte* Engine::output(size_t program, std::string_view name) const {
  const Program& p = programs_[program].program;
  const Output* out = p.graph().find_output(name);
  BRRR_CHECK(out != nullptr, "the program has no output '{}'", name);
  return p.address(out->value);
}

float Engine::output_scalar(size_t program, std::string_view name) const {
  float value;
  std::memcpy(&value, output(program, name), sizeof(value));
  return value;
}

}  // namespace brrr
