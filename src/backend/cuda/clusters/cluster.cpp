#include "backend/cuda/clusters/cluster.h"

#include <numeric>

#include "backend/cuda/clusters/cluster_survey.h"
#include "backend/cuda/clusters/cluster_writer.h"
#include "backend/cuda/text.h"
#include "base/errors.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::cuda {

std::string cluster_refusal(const Graph& body) { return ClusterSurvey(body).refusal; }

void add_cluster(LaunchPlan& plan, const Cluster& cluster, const GpuDescription& gpu) {
  ClusterWriter(cluster, gpu).add_to(plan);
}

Graph body_of(const NodeView& node) {
  Graph body;
  std::vector<ValueId> operands;
  for (const Type& t : node.in)
    operands.push_back(body.input(fmt::format("a{}", operands.size()), t).id);
  const NodeId id = body.add(*node.node().op, operands, node.attrs());
  for (uint32_t port = 0; port < node.out().size(); ++port)
    body.output(std::to_string(port), body.value(id, port));
  return body;
}

int64_t operand_alignment(const NodeView& node, size_t k) {
  int64_t alignment = LaunchPlan::kAlignment;
  for (ValueId v = node.node().operands[k];;) {
    const auto offset = view_offset(node.graph, node.graph.node(v.node));
    if (!offset) return alignment;
    alignment = std::gcd(alignment, *offset);
    v = node.graph.node(v.node).operands[0];
  }
}

Cluster cluster_of(const NodeView& node, const Graph& body) {
  Cluster c{body, {}, {}, identifier(node.node().op->name) + "_kernel"};
  for (size_t k = 0; k < node.in.size(); ++k)
    c.operands.push_back({LaunchArg::in(k), operand_alignment(node, k)});
  for (size_t r = 0; r < node.out().size(); ++r) c.results.push_back(LaunchArg::out(r));
  return c;
}

namespace {

LaunchPlan plan_of(const NodeView& node, const Graph& body, const GpuDescription& gpu) {
  LaunchPlan plan;
  add_cluster(plan, cluster_of(node, body), gpu);
  return plan;
}

PlanEntry entry_of(Op op) {
  return {op, "cluster",
          [](const NodeView& node, const GpuDescription&) {
            if (is(node.node(), Op::sum) && node.in[0].shape.rank() > 0 &&
                node.in[0].shape.size(-1) <= 1)
              return std::string("one column");
            return cluster_refusal(body_of(node));
          },
          [](const NodeView& node, const GpuDescription& gpu) {
            return plan_of(node, body_of(node), gpu);
          }};
}

}  // namespace

std::vector<PlanEntry> cluster_entries() {
  std::vector<PlanEntry> list;
  for (const OpDef* op : all_ops())
    if (is_pointwise(*op) && op->id != Op::fused) list.push_back(entry_of(op->id));
  for (const Op op : {Op::full, Op::iota, Op::random_bits, Op::broadcast_to, Op::softmax,
                      Op::softmax_grad, Op::layer_norm, Op::layer_norm_grad, Op::rms_norm,
                      Op::rms_norm_grad, Op::sum, Op::quantize_scale})
    list.push_back(entry_of(op));
  list.push_back({Op::fused, "cluster",
                  [](const NodeView& node, const GpuDescription&) {
                    return cluster_refusal(fused_body(node.node()));
                  },
                  [](const NodeView& node, const GpuDescription& gpu) {
                    return plan_of(node, fused_body(node.node()), gpu);
                  }});
  return list;
}

}  // namespace brrr::cuda
