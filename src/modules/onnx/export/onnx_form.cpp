// The graph composed of what ONNX has. Composites that it lacks are decomposed, as for any target;
// the rest are rules, each of them one way to say a primitive by others.

#include <algorithm>
#include <cmath>
#include <optional>

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

/// What an integer of up to 16 bits can be.
struct IntegerRange {
  double low, high;
};
IntegerRange range_of(DType dtype) {
  const double all = std::exp2(8.0 * static_cast<double>(bytes_of(dtype)));
  if (is_unsigned_integer(dtype)) return {0, all - 1};
  return {-all / 2, all / 2 - 1};
}

/// x with its last two axes exchanged; one transpose together with that which made x.
Value turned(Value x) {
  Graph& g = *x.graph;
  std::vector<int64_t> axes;
  for (int64_t a = 0; a < x.shape().rank(); ++a) axes.push_back(a);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  const Node& maker = g.node(x.id.node);
  if (maker.op->name != "transpose") return transpose(x, axes);
  const auto& before = maker.attrs.get<std::vector<int64_t>>("permutation");
  for (int64_t& axis : axes) axis = before[static_cast<size_t>(axis)];
  const Value source = g.value(maker.operands[0]);
  return std::ranges::is_sorted(axes) ? source : transpose(source, axes);
}

/// The number of a constant of one element, where `node` is one, or moves or converts one.
std::optional<AttrValue> folded_constant(const Node& node, std::span<const Value> in) {
  const bool moves =
      node.op->name == "cast" || node.op->name == "reshape" || node.op->name == "broadcast_to";
  const Type& type = node.results[0];
  if (!(moves || node.op->name == "literal") || type.shape.elements() != 1) return std::nullopt;
  const auto maker = [](const Value& x) -> const Node& {
    return x.graph->node(behind_reshapes(*x.graph, x.id).node);
  };
  const Node& constant = moves ? maker(in[0]) : node;
  if (constant.op->name != "full" && constant.op->name != "literal") return std::nullopt;
  std::byte from[sizeof(double)];
  store_constant(constant, 0, from);
  const DType before = constant.results[0].dtype;
  if (!is_integer(type.dtype) && !is_integer(before)) return load_as_double(before, from, 0);
  if (!is_integer(type.dtype) || !is_integer(before)) return std::nullopt;
  return Number(static_cast<int64_t>(load_integer(before, from, 0))).as(type.dtype);
}

bool is_scalar_of(const Graph& g, ValueId v, double value) {
  const Node& node = g.node(v.node);
  return node.op->name == "full" && full_value(node) == value;
}

/// Whether a float goes into a narrow integer and may lie outside of it: our cast takes the nearest
/// that there is, ONNX's gives anything.
bool may_overflow(const Graph& g, NodeId id) {
  const Node& node = g.node(id);
  const DType to = node.results[0].dtype;
  if (node.op->name != "cast" || !is_float(g.type(node.operands[0]).dtype)) return false;
  if (!is_integer(to) || to == DType::boolean || bytes_of(to) > 2) return false;
  const Node& outer = g.node(node.operands[0].node);
  if (outer.op->name != "maximum" || !is_scalar_of(g, outer.operands[1], range_of(to).low))
    return true;
  const Node& inner = g.node(outer.operands[0].node);
  return inner.op->name != "minimum" || !is_scalar_of(g, inner.operands[1], range_of(to).high);
}

bool is_rule_for(const Graph& g, NodeId id) {
  const Node& node = g.node(id);
  if (may_overflow(g, id)) return true;
  const std::string& op = node.op->name;
  if (op == "iota" || op == "full") {
    const int rank = node.results[0].shape.rank();
    return op == "iota" ? rank > 1 : rank > 0;
  }
  if (op == "matmul")
    return node.attrs.find("dtype") != nullptr || node.attrs.get<bool>("transpose_a") ||
           node.attrs.get<bool>("transpose_b");
  if (op == "concat") return node.operands.size() == 1;
  return op == "embedding" || op == "rsqrt" || op == "square" || op == "log1p" || op == "expm1" ||
         op == "not_equal" || op == "after" || op == "update_slice";
}

/// Numbers as a file holds them: constants in their dtype, attributes as f32.
Attrs rounded_attributes(const Node& node) {
  Attrs attrs = node.attrs;
  const bool is_constant = node.op->name == "full" || node.op->name == "literal";
  const DType dtype = is_constant ? node.results[0].dtype : DType::f32;
  if (is_constant && !is_float(dtype)) return attrs;
  for (auto& [name, value] : attrs) {
    if (auto* number = std::get_if<double>(&value)) *number = nearest_in(dtype, *number);
    if (auto* list = std::get_if<std::vector<double>>(&value))
      for (double& number : *list) number = nearest_in(dtype, number);
  }
  return attrs;
}

Value by_rule(Graph& g, const Node& node, std::span<const Value> in) {
  const std::string& op = node.op->name;
  const Type& type = node.results[0];
  if (op == "iota") return indices(g, node);
  if (op == "cast") {
    const IntegerRange range = range_of(type.dtype);
    const Value low = scalar(g, range.low, in[0].dtype()),
                high = scalar(g, range.high, in[0].dtype());
    return cast(maximum(minimum(in[0], high), low), type.dtype);
  }
  if (op == "full") {
    Attrs attrs = rounded_attributes(node);
    attrs.set("shape", Shape{});
    const Value number = g.value(g.add(brrr::op("full"), {}, attrs));
    return type.shape.elements() == 1 ? reshape(number, type.shape)
                                      : broadcast_to(number, type.shape);
  }
  if (op == "matmul") {  // its sums are not rounded
    const auto part = [&](size_t i, const char* transposed) {
      const Value x = node.attrs.get<bool>(transposed) ? turned(in[i]) : in[i];
      return node.attrs.find("dtype") != nullptr ? cast(x, type.dtype) : x;
    };
    return matmul(part(0, "transpose_a"), part(1, "transpose_b"));
  }
  if (op == "not_equal") return logical_not(equal(in[0], in[1]));
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
    if (r.in().is_input(id)) return false;
    const std::vector<Value> in = r.operands(id);
    r.enter_scope_of(id);
    if (const auto value = folded_constant(node, in)) {
      const Type& type = node.results[0];
      const Value number = r.out().value(r.out().add(
          brrr::op("full"), {}, {{"shape", Shape{}}, {"value", *value}, {"dtype", type.dtype}}));
      r.bind({id, 0}, type.shape.rank() == 0 ? number : reshape(number, type.shape));
      return true;
    }
    if (!is_rule_for(r.in(), id)) {
      r.copy(id, rounded_attributes(node));
      return true;
    }
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
