// The graph composed of what ONNX has. Composites that it lacks are decomposed, as for any target;
// the rest are rules, each of them one way to say a primitive by others.

#include <algorithm>

#include "ir/rewriter.h"
#include "modules/onnx/export/export_call.h"
#include "modules/onnx/export/onnx_export.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr::onnx {
namespace {

/// [1, ..., n, ..., 1] from [n].
Shape along(int64_t n, int rank, int64_t axis) {
  Shape shape;
  for (int a = 0; a < rank; ++a) shape.push_back(a == axis ? Dim(n) : Dim(1));
  return shape;
}

Value indices(Graph& g, const Node& node) {
  const Shape& shape = node.results[0].shape;
  const auto axis = node.attrs.get<int64_t>("axis");
  const int64_t n = shape.size(static_cast<int>(axis));
  const Shape thin = along(n, shape.rank(), axis);
  const Value row = reshape(iota(g, {n}, 0, node.results[0].dtype), thin);
  return shape == thin ? row : broadcast_to(row, shape);
}

/// Each row of the result is one of the part, where it lies in it, or that of x.
Value updated(Value x, Value part, Value position, int axis) {
  Graph& g = *x.graph;
  const int64_t whole = x.shape().size(axis), count = part.shape().size(axis);
  const auto number = [&](int64_t n) { return scalar(g, n, DType::i32); };
  if (count == 0 || whole == 0) return x;
  const Value at = maximum(minimum(position, number(whole - count)), number(0));
  const Value row = iota(g, {whole}, 0, DType::i32) - at;
  const Value is_new = logical_and(less_equal(number(0), row), less(row, number(count)));
  const Value source = maximum(minimum(row, number(count - 1)), number(0));
  return where(reshape(is_new, along(whole, x.shape().rank(), axis)), gather(part, source, axis),
               x);
}

bool is_rule_for(const Node& node) {
  const std::string& op = node.op->name;
  if (op == "iota" || op == "full") {
    const int rank = node.results[0].shape.rank();
    return op == "iota" ? rank > 1 : rank > 0;
  }
  if (op == "matmul") return node.attrs.find("dtype") != nullptr;
  if (op == "concat") return node.operands.size() == 1;
  return op == "embedding" || op == "rsqrt" || op == "square" || op == "log1p" || op == "expm1" ||
         op == "after" || op == "update_slice";
}

Value by_rule(Graph& g, const Node& node, std::span<const Value> in) {
  const std::string& op = node.op->name;
  const Type& type = node.results[0];
  if (op == "iota") return indices(g, node);
  if (op == "full") {
    Attrs attrs = node.attrs;
    attrs.set("shape", Shape{});
    return broadcast_to(g.value(g.add(brrr::op("full"), {}, attrs)), type.shape);
  }
  if (op == "matmul") {  // its sums are not rounded
    return matmul(cast(in[0], type.dtype), cast(in[1], type.dtype),
                  node.attrs.get<bool>("transpose_a"), node.attrs.get<bool>("transpose_b"));
  }
  if (op == "embedding") return gather(in[0], in[1], 0);
  if (op == "update_slice")
    return updated(in[0], in[1], in[2], static_cast<int>(node.attrs.get<int64_t>("axis")));
  if (op == "rsqrt") return reciprocal(sqrt(in[0]));
  if (op == "square") return in[0] * in[0];
  if (op == "log1p") return log(in[0] + 1.0);
  if (op == "expm1") return exp(in[0]) - 1.0;
  return in[0];  // after, and a concat of one
}

Graph apply_rules(const Graph& graph) {
  const Graph inner = change_regions(graph, apply_rules);
  return rewrite(inner, [](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (!is_rule_for(node)) return false;
    const std::vector<Value> in = r.operands(id);
    r.enter_scope_of(id);
    r.bind({id, 0}, by_rule(r.out(), node, in));
    return true;
  });
}

Target target_for(int64_t opset) {
  Target target;
  target.name = fmt::format("ONNX {}", opset);
  target.runs = [opset](const Graph& graph, NodeId id) {
    const ExportRow* row = find_export_row(graph.node(id).op->name);
    return row != nullptr && (row->can == nullptr || row->can(graph, id, opset));
  };
  return target;
}

}  // namespace

Graph onnx_form(const Graph& graph, int64_t opset) {
  const Target target = target_for(opset);
  const auto opened = [&](const Graph& g) { return decompose(inference(g), target); };
  Graph form = simplify(opened(change_regions(graph, opened)));
  return drop_dead(apply_rules(form));
}

}  // namespace brrr::onnx
