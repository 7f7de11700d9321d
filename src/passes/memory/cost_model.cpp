#include "passes/memory/cost_model.h"

#include <algorithm>
#include <vector>

#include "ops/ops.h"

namespace brrr {

double compute_seconds(const Graph& g, NodeId id, const Rates& rates) {
  const Node& node = g.node(id);
  const double flops = cost_of(g, id).flops;
  if (node.op->op_class != OpClass::contraction) return flops / rates.other_flops;
  const bool low = bytes_of(g.type(node.operands[0]).dtype) == 2;
  const double share = node.op->is_attention ? rates.attention_share : 1;
  return flops / (share * (low ? rates.low_contraction_flops : rates.contraction_flops));
}

double predicted_seconds(const Graph& g, NodeId id, const Rates& rates) {
  const Node& node = g.node(id);
  if (g.is_input(id) || view_offset(g, node)) return 0;
  const Cost cost = cost_of(g, id);
  return rates.node_seconds + std::max(compute_seconds(g, id, rates),
                                       (cost.bytes_read + cost.bytes_written) / rates.bytes);
}

double predicted_seconds(const Graph& g, const Rates& rates) {
  double total = 0;
  std::vector<bool> constant(g.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    constant[id] = !g.is_input(id);
    for (const ValueId& v : g.node(id).operands) constant[id] = constant[id] && constant[v.node];
    if (!constant[id]) total += predicted_seconds(g, id, rates);
  }
  return total;
}

}  // namespace brrr
