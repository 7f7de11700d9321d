#include "passes/weights/made_of_parameters.h"

#include "ir/op_def.h"

namespace brrr {

std::vector<bool> made_of_parameters(const Graph& g) {
  std::vector<bool> is_fixed(g.size()), has_parameter(g.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& node = g.node(id);
    if (g.is_input(id)) {
      is_fixed[id] = has_parameter[id] = g.role(id) == Role::parameter;
      continue;
    }
    is_fixed[id] = !node.op->draws_random && !node.op->runs_regions;
    for (const ValueId& v : node.operands) {
      is_fixed[id] = is_fixed[id] && is_fixed[v.node];
      has_parameter[id] = has_parameter[id] || has_parameter[v.node];
    }
    has_parameter[id] = has_parameter[id] && is_fixed[id];
  }
  return has_parameter;
}

}  // namespace brrr
