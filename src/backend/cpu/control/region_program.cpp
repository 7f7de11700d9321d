#include "backend/cpu/control/region_program.h"

#include <map>

#include "backend/cpu/target.h"
#include "base/integers.h"
#include "ir/rewriter.h"

namespace brrr::cpu {
namespace {

int64_t constant_bytes_of(const Program& program) {
  return round_up(program.plan().constant_bytes, int64_t{64});
}

}  // namespace

Graph with_inputs_as_states(const Graph& region) {
  return rewrite(region, [&](Rewriter& r, NodeId id) {
    if (!region.is_input(id)) return false;
    const Type& t = region.type({id, 0});
    r.bind({id, 0}, r.out().input(region.input_name(id), t, Role::state));
    return true;
  });
}

RegionProgram::RegionProgram(const Graph& graph)
    : device_(host_device()), program_(graph, cpu_backend()) {
  for (const Output& o : program_.graph().outputs())
    if (o.updates == kNoNode) outputs_.push_back(o.value);
}

int64_t RegionProgram::scratch_bytes() const {
  return constant_bytes_of(program_) + program_.plan().temporary_bytes;
}

void RegionProgram::place(std::vector<const void*> states, std::byte* scratch) {
  if (states == states_ && scratch == scratch_) return program_.forget_constants();
  states_ = std::move(states);
  scratch_ = scratch;
  const std::vector<NodeId> inputs = program_.graph().inputs();
  std::map<NodeId, const void*> where;
  for (size_t i = 0; i < inputs.size(); ++i) where[inputs[i]] = states_[i];
  // A state that takes no new value is only read.
  program_.bind(*device_, scratch + constant_bytes_of(program_), scratch, [&](NodeId id) {
    return static_cast<std::byte*>(const_cast<void*>(where.at(id)));
  });
}

}  // namespace brrr::cpu
