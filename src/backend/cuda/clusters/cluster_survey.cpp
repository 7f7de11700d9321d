#include "backend/cuda/clusters/cluster_survey.h"

#include <algorithm>

#include "backend/cuda/text.h"
#include "base/errors.h"
#include "ops/fused.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kWidestRow = 16384;  // that the registers of one block hold

bool is_narrow_float(DType t) { return is_float(t) && t != DType::f64; }

}  // namespace

bool is_end(const Node& node) { return is(node, Op::sum, Op::quantize_scale, Op::transpose); }

ClusterSurvey::ClusterSurvey(const Graph& body) {
  survey(body);
  if (!refusal.empty()) return;
  for (NodeId id = 0; id < body.size() && refusal.empty(); ++id) look_at(body, id);
  for (const Output& o : body.outputs()) {
    const Place& at = place(o.value);
    const bool statistic =
        o.value.port > 0 || is(body.node(o.value.node), Op::sum, Op::quantize_scale);
    if (!statistic && body.type(o.value).shape.elements() != elements)
      refuse("results of several sizes");
    if (at.kind == Place::nowhere) refuse("a result of what is not computed");
  }
}

void ClusterSurvey::set_rows(const Shape& x) {
  if (x.rank() < 1) return refuse("a row function of a scalar");
  const int64_t c = x.size(-1);
  if (c == 0 || x.elements() == 0) return refuse("rows without elements");
  if (width != 0 && (width != c || rows * width != x.elements()))
    return refuse("rows of several widths");
  width = c;
  rows = x.elements() / c;
  elements = x.elements();
}

/// Elements, rows and phases.
void ClusterSurvey::survey(const Graph& body) {
  phase.resize(body.size());
  operand_of.resize(body.size());
  places_.resize(body.size());
  if (body.outputs().empty()) return refuse("no results");
  elements = body.type(body.outputs()[0].value).shape.elements();
  int now = 0;
  uint32_t operand = 0;
  for (NodeId id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    places_[id].resize(node.results.size());
    if (body.is_input(id)) operand_of[id] = operand++;
    phase[id] = now;
    if (node.op->row_operands > 0) {
      row_ops.push_back(id);
      phase[id] = ++now;
      set_rows(body.type(node.operands[0]).shape);
    } else if (is(node, Op::sum)) {
      sums.push_back(id);
      set_rows(body.type(node.operands[0]).shape);
    } else if (is(node, Op::transpose)) {
      transposed.push_back(id);
      set_rows(body.type(node.operands[0]).shape);
    } else if (is(node, Op::quantize_scale)) {
      scales.push_back(id);
      if (body.type(node.operands[0]).shape.elements() == 0) refuse("the scale of no elements");
      if (width == 0) elements = body.type(node.operands[0]).shape.elements();
    } else if (is_pointwise(*node.op)) {
      if (width == 0) elements = node.results[0].shape.elements();
    }
  }
  phases = now + 1;
  if (!row_ops.empty() && width > kWidestRow)
    refuse(fmt::format("rows of {} elements: at most {}", width, kWidestRow));
}

void ClusterSurvey::check_row_op(const Graph& body, const Node& node) {
  for (const ValueId& v : node.operands)
    if (!is_narrow_float(body.type(v).dtype)) refuse(fmt::format("{} of f64", node.op->name));
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const Place& at = place(node.operands[k]);
    if (k >= node.op->row_operands && at.kind == Place::computed)
      refuse(fmt::format("a parameter of {} that is computed", node.op->name));
  }
}

void ClusterSurvey::check_sum(const Graph& body, const Node& node) {
  const Type& x = body.type(node.operands[0]);
  const auto& axes = node.attrs.get<std::vector<int64_t>>("axes");
  bool leading = static_cast<int>(axes.size()) == x.shape.rank() - 1;
  for (size_t i = 0; leading && i < axes.size(); ++i) leading = axes[i] == static_cast<int64_t>(i);
  if (!leading || axes.empty()) refuse("a sum that is not over all rows");
  if (!is_narrow_float(x.dtype)) refuse(fmt::format("a sum of {}", name_of(x.dtype)));
}

/// A tile of it is turned in shared memory, and a column of the tile leaves in 16 bytes.
void ClusterSurvey::check_transposed(const Graph& body, const Node& node) {
  const Type& x = body.type(node.operands[0]);
  const auto& order = node.attrs.get<std::vector<int64_t>>("permutation");
  if (order != std::vector<int64_t>{1, 0}) refuse("a transpose of more than two axes");
  if (bytes_of(x.dtype) != 1) refuse(fmt::format("a transposed {}", name_of(x.dtype)));
  if (!row_ops.empty() || !sums.empty()) refuse("a transpose beside rows and their sums");
}

void ClusterSurvey::look_at(const Graph& body, NodeId id) {
  const Node& node = body.node(id);
  const Op op = node.op->id;
  if (body.is_input(id)) {
    places_[id][0] = {Place::operand, operand_of[id], node.results[0].shape, "", {}};
    return;
  }
  if (op == Op::full) {
    places_[id][0] = {Place::constant, 0, {}, literal(node), {}};
    return;
  }
  if (op == Op::reshape || op == Op::broadcast_to || op == Op::after) {
    Place at = place(node.operands[0]);
    const Shape& to = node.results[0].shape;
    if (at.kind == Place::operand && op == Op::reshape) {
      if (at.view.elements() != to.elements()) return refuse("a reshape of a broadcast");
      at.view = to;
    }
    if (at.kind == Place::computed && op == Op::broadcast_to &&
        to.elements() != body.type(node.operands[0]).shape.elements())
      return refuse("a broadcast of a computed value");
    places_[id][0] = at;
    return;
  }
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const Place& at = place(node.operands[k]);
    if (at.kind != Place::computed) continue;
    if (at.value.port > 0) return refuse("a statistic is read");
    if (is_end(body.node(at.value.node)))
      return refuse(fmt::format("a {} is read", body.node(at.value.node).op->name));
  }
  for (uint32_t port = 0; port < node.results.size(); ++port)
    places_[id][port] = {Place::computed, 0, {}, "", {id, port}};
  if (node.op->row_operands > 0) return check_row_op(body, node);
  if (op == Op::sum) return check_sum(body, node);
  if (op == Op::transpose) return check_transposed(body, node);
  if (op == Op::quantize_scale) {
    if (body.type(node.operands[0]).shape.elements() != elements)
      refuse("a scale of something else");
    return;
  }
  if (op != Op::random_bits && op != Op::iota && !is_pointwise(*node.op))
    return refuse(fmt::format("{} is no part of a cluster", node.op->name));
  if (is_pointwise(*node.op) && !node.op->draws_random && !has_pointwise_expression(node))
    return refuse(fmt::format("there is no code for {}", node.op->name));
  if (node.results[0].shape.elements() != elements)
    return refuse("a computed value that is broadcast");
  if ((op == Op::random_bits || op == Op::dropout) &&
      place(node.operands.back()).kind != Place::operand)
    return refuse("a key that is computed");
}

}  // namespace brrr::cuda
