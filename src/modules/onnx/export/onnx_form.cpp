// The graph composed of what ONNX has. Composites that it lacks are decomposed, as for any target;
// the rest are rules, each of them one way to say a primitive by others.

#include <algorithm>
#include <cmath>
#include <string_view>

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

Value indices(Graph& g, const Node& node, std::span<const Value>) {
  const Shape& shape = node.results[0].shape;
  const auto axis = node.attrs.get<int64_t>("axis");
  const int64_t n = shape.size(static_cast<int>(axis));
  const Shape thin = along(n, shape.rank(), axis);
  const Value row = reshape(iota(g, {n}, 0, node.results[0].dtype), thin);
  return shape == thin ? row : broadcast_to(row, shape);
}

/// Each row of the result is one of the part, where it lies in it, or that of x.
Value updated_rows(Graph& g, const Node& node, std::span<const Value> in) {
  const Value &x = in[0], &part = in[1], &position = in[2];
  const auto axis = static_cast<int>(node.attrs.get<int64_t>("axis"));
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

/// Range of an integer type of up to 16 bits.
struct IntegerRange {
  double low, high;
};
IntegerRange range_of(DType dtype) {
  const double all = std::exp2(8.0 * static_cast<double>(bytes_of(dtype)));
  if (is_unsigned_integer(dtype)) return {0, all - 1};
  return {-all / 2, all / 2 - 1};
}

/// Returns x with its last two axes swapped, merged with the transpose that computed x, if any.
Value with_swapped_axes(Value x) {
  Graph& g = *x.graph;
  std::vector<int64_t> axes;
  for (int64_t a = 0; a < x.shape().rank(); ++a) axes.push_back(a);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  const Node& maker = g.node(x.id.node);
  if (!is(maker, Op::transpose)) return transpose(x, axes);
  const auto& before = maker.attrs.get<std::vector<int64_t>>("permutation");
  for (int64_t& axis : axes) axis = before[static_cast<size_t>(axis)];
  const Value source = g.value(maker.operands[0]);
  return std::ranges::is_sorted(axes) ? source : transpose(source, axes);
}

bool is_scalar_of(const Graph& g, ValueId v, double value) {
  const Node& node = g.node(v.node);
  return is(node, Op::full) && full_value(node) == nearest_in(node.results[0].dtype, value);
}

/// Numbers as a file holds them: constants in their dtype, attributes as f32.
Attrs rounded_attributes(const Node& node) {
  Attrs attrs = node.attrs;
  const DType dtype = node.op->op_class == OpClass::leaf ? node.results[0].dtype : DType::f32;
  if (!is_float(dtype)) return attrs;
  for (auto& [name, value] : attrs) {
    if (auto* number = std::get_if<double>(&value)) *number = nearest_in(dtype, *number);
    if (auto* list = std::get_if<std::vector<double>>(&value))
      for (double& number : *list) number = nearest_in(dtype, number);
  }
  return attrs;
}

// -- rules
// ---------------------------------------------------------------------------------------

using Operands = std::span<const Value>;

/// Rewrites the nodes of one op in terms of ops that ONNX has.
struct FormRule {
  Op op;
  Value (*write)(Graph& g, const Node& node, Operands in);
  bool (*applies)(const Graph& g, const Node& node) = nullptr;  // null: always
};

Value constant_everywhere(Graph& g, const Node& node, Operands) {
  const Shape& shape = node.results[0].shape;
  Attrs attrs = rounded_attributes(node);
  attrs.set("shape", Shape{});
  const Value number = g.value(g.add(*node.op, {}, std::move(attrs)));
  return shape.elements() == 1 ? reshape(number, shape) : broadcast_to(number, shape);
}

Value matmul_form(Graph&, const Node& node, Operands in) {
  const Attrs& attrs = node.attrs;
  const auto part = [&](size_t i, const char* transposed) {
    const Value x = attrs.get<bool>(transposed) ? with_swapped_axes(in[i]) : in[i];
    // A product of a wider dtype does not round its sums.
    return attrs.find("dtype") != nullptr ? cast(x, node.results[0].dtype) : x;
  };
  return matmul(part(0, "transpose_a"), part(1, "transpose_b"));
}
bool is_special_product(const Graph&, const Node& node) {
  return node.attrs.find("dtype") != nullptr || node.attrs.get<bool>("transpose_a") ||
         node.attrs.get<bool>("transpose_b");
}

Value saturated_cast(Graph& g, const Node& node, Operands in) {
  const DType from = in[0].dtype(), to = node.results[0].dtype;
  const IntegerRange range = range_of(to);
  const Value low = scalar(g, range.low, from), high = scalar(g, range.high, from);
  return cast(maximum(minimum(in[0], high), low), to);
}
/// Whether a float goes into a narrow integer and may lie outside of it: our cast takes the nearest
/// that there is, ONNX's gives anything.
bool may_overflow(const Graph& g, const Node& node) {
  const DType to = node.results[0].dtype;
  if (!is_float(g.type(node.operands[0]).dtype)) return false;
  if (!is_integer(to) || to == DType::boolean || bytes_of(to) > 2) return false;
  const Node& outer = g.node(node.operands[0].node);
  if (!is(outer, Op::maximum) || !is_scalar_of(g, outer.operands[1], range_of(to).low)) return true;
  const Node& inner = g.node(outer.operands[0].node);
  return !is(inner, Op::minimum) || !is_scalar_of(g, inner.operands[1], range_of(to).high);
}

const FormRule kRules[] = {
    {Op::iota, indices, [](const Graph&, const Node& n) { return n.results[0].shape.rank() > 1; }},
    {Op::full, constant_everywhere,
     [](const Graph&, const Node& n) { return n.results[0].shape.rank() > 0; }},
    {Op::matmul, matmul_form, is_special_product},
    {Op::cast, saturated_cast, may_overflow},
    {Op::concat, [](Graph&, const Node&, Operands in) { return in[0]; },
     [](const Graph&, const Node& n) { return n.operands.size() == 1; }},
    {Op::after, [](Graph&, const Node&, Operands in) { return in[0]; }},
    {Op::not_equal,
     [](Graph&, const Node&, Operands in) { return logical_not(equal(in[0], in[1])); }},
    {Op::embedding, [](Graph&, const Node&, Operands in) { return gather(in[0], in[1], 0); }},
    {Op::rsqrt, [](Graph&, const Node&, Operands in) { return reciprocal(sqrt(in[0])); }},
    {Op::square, [](Graph&, const Node&, Operands in) { return in[0] * in[0]; }},
    {Op::log1p, [](Graph&, const Node&, Operands in) { return log(in[0] + 1.0); }},
    {Op::expm1, [](Graph&, const Node&, Operands in) { return exp(in[0]) - 1.0; }},
    {Op::update_slice, updated_rows},
};

const FormRule* rule_for(const Graph& g, const Node& node) {
  for (const FormRule& rule : kRules)
    if (is(node, rule.op))
      return rule.applies == nullptr || rule.applies(g, node) ? &rule : nullptr;
  return nullptr;
}

/// Applies the rules to the nodes of the graph itself; change_regions() enters the regions, each
/// once.
Graph apply_rules_outside_regions(const Graph& graph) {
  return rewrite(graph, [](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (r.in().is_input(id)) return false;
    if (const FormRule* rule = rule_for(r.in(), node)) {
      const std::vector<Value> in = r.operands(id);
      r.enter_scope_of(id);
      r.bind({id, 0}, rule->write(r.out(), node, in));
    } else {
      r.copy(id, rounded_attributes(node));
    }
    return true;
  });
}

Target target_for(int64_t opset) {
  Target target;
  target.name = fmt::format("ONNX {}", opset);
  target.runs = [opset](const Graph& graph, NodeId id) {
    const ExportRow* row = find_export_row(graph.node(id).op->id);
    return row != nullptr && (row->can == nullptr || row->can(graph, id, opset));
  };
  return target;
}

}  // namespace

Graph onnx_form(const Graph& graph, int64_t opset) {
  const Target target = target_for(opset);
  const auto opened = [&](const Graph& g) { return decompose(inference(g), target); };
  const Graph form = fold_constants(simplify(opened(change_regions(graph, opened))));
  return drop_dead(apply_rules_outside_regions(change_regions(form, apply_rules_outside_regions)));
}

}  // namespace brrr::onnx
