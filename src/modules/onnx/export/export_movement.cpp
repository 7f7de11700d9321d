// Ops that make, move, choose and reshape elements.

#include <algorithm>
#include <cmath>

#include "modules/onnx/export/emission.h"
#include "modules/onnx/export/export_call.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

// -- leaves
// --------------------------------------------------------------------------------------

/// A number, which may be a size, or one divided by a size.
void full_of(ExportCall& c) {
  const DType dtype = c.result().dtype;
  SizeValues integers, inverses;
  bool are_integers = true, are_inverses = true, vary = false;
  const NodeId id = c.id();
  const double first = full_value(c.node());
  for (const Graph* graph : c.family().graphs) {
    const double value = full_value(graph->node(id));
    vary |= value != first && !(std::isnan(value) && std::isnan(first));
    const double inverse = std::round(1 / value);
    are_integers &= std::floor(value) == value && std::abs(value) < 1e15;
    are_inverses &= std::abs(inverse) < 1e15 && nearest_in(dtype, 1 / inverse) == value;
    if (are_integers) integers.push_back(static_cast<int64_t>(value));
    if (are_inverses) inverses.push_back(static_cast<int64_t>(inverse));
  }
  if (!vary) return c.out(c.emission().literal(c.node()));
  if (are_integers) return c.out(c.scalar(c.emission().formula(integers, "a constant"), dtype));
  if (!are_inverses) c.refuse("a constant depends on sizes");
  const std::string_view count =
      c.scalar(c.emission().formula(inverses, "the inverse of a constant"), dtype);
  c.out(c.emit("Reciprocal", {count}));
}

/// A list of constants, among which sizes may be.
void literal_of(ExportCall& c) {
  const bool is_fixed = std::ranges::all_of(c.family().graphs, [&](const Graph* graph) {
    return graph->node(c.id()).attrs == c.node().attrs;
  });
  if (is_fixed) return c.out(c.emission().literal(c.node()));
  if (!std::holds_alternative<std::vector<int64_t>>(*c.node().attrs.find("values")))
    c.refuse("a list of constants depends on sizes");
  const DType dtype = c.result().dtype;
  std::string_view list = c.vector(c.integers("values"));
  if (dtype != DType::i64) list = c.cast(list, dtype);
  if (c.result().shape.rank() != 1) list = c.emit("Reshape", {list, c.vector(c.shape_of())});
  c.out(list);
}

void iota_of(ExportCall& c) {
  const DType dtype = c.result().dtype;
  const SizeFormula n = c.shape_of()[0];
  // Range has no narrow integers.
  const bool is_direct = dtype == DType::i64 || dtype == DType::i32 || dtype == DType::i16 ||
                         dtype == DType::f32 || dtype == DType::f64;
  const DType counted = is_direct ? dtype : DType::i64;
  const std::string_view list =
      c.emit("Range", {c.scalar(0.0, counted), c.scalar(n, counted), c.scalar(1.0, counted)});
  c.out(is_direct ? list : c.cast(list, dtype));
}

// -- movement
// ------------------------------------------------------------------------------------

/// A size that is that of the operand at the same axis is written as 0; one more that is not
/// constant as -1, where nothing is empty.
void reshape_of(ExportCall& c) {
  const std::vector<SizeFormula> from = c.operand_shape(0), wanted = c.shape_of();
  std::vector<SizeFormula> sizes = wanted;
  const auto is_zero = [](const SizeFormula& f) { return f.is_constant() && f.value() == 0; };
  if (std::ranges::any_of(wanted, is_zero))
    return c.out(
        c.emit("Reshape", {c.in(0), c.vector(sizes)}, {attribute("allowzero", int64_t{1})}));
  std::vector<size_t> open;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_constant()) continue;
    if (i < from.size() && from[i] == sizes[i])
      sizes[i] = SizeFormula::constant(0);
    else
      open.push_back(i);
  }
  if (open.size() == 1) sizes[open[0]] = SizeFormula::constant(-1);
  c.out(c.emit("Reshape", {c.in(0), c.vector(sizes)}));
}

void transpose_of(ExportCall& c) {
  c.out(c.emit("Transpose", {c.in(0)}, {attribute("perm", c.fixed("permutation"))}));
}

std::string_view axis_vector(ExportCall& c) {
  return c.vector(std::vector<int64_t>{c.fixed_integer("axis")});
}

void slice_of(ExportCall& c) {
  SizeValues ends;
  const NodeId id = c.id();
  for (const Graph* graph : c.family().graphs) {
    const Attrs& attrs = graph->node(id).attrs;
    ends.push_back(attrs.get<int64_t>("start") + attrs.get<int64_t>("size"));
  }
  const SizeFormula end = c.emission().formula(ends, "the end of a slice");
  c.out(
      c.emit("Slice", {c.in(0), c.vector({c.integer("start")}), c.vector({end}), axis_vector(c)}));
}

void pad_of(ExportCall& c) {
  const auto axis = static_cast<size_t>(c.fixed_integer("axis"));
  const size_t rank = static_cast<size_t>(c.type(0).shape.rank());
  std::vector<SizeFormula> pads(2 * rank, SizeFormula::constant(0));
  pads[axis] = c.integer("before");
  pads[axis + rank] = c.integer("after");
  c.out(c.emit("Pad", {c.in(0), c.vector(pads), c.scalar(0.0, c.result().dtype)}));
}

void concat_of(ExportCall& c) {
  c.out(c.emit("Concat", c.ins(), {attribute("axis", c.fixed_integer("axis"))}));
}

void broadcast_of(ExportCall& c) { c.out(c.emit("Expand", {c.in(0), c.vector(c.shape_of())})); }

void gather_of(ExportCall& c) {
  const DType dtype = c.type(1).dtype;
  const bool is_index = dtype == DType::i32 || dtype == DType::i64;
  const std::string_view ids = is_index ? c.in(1) : c.cast(c.in(1), DType::i64);
  c.out(c.emit("Gather", {c.in(0), ids}, {attribute("axis", c.fixed_integer("axis"))}));
}

bool can_scatter(const Graph& g, NodeId id, int64_t opset) {
  const std::string& mode = g.node(id).attrs.get<std::string>("mode");
  return opset >= 18 || (mode != "max" && mode != "min");
}
void scatter_of(ExportCall& c) {
  const std::string_view ids =
      c.emit("Unsqueeze", {c.cast(c.in(1), DType::i64), c.vector(std::vector<int64_t>{1})});
  const std::string& mode = c.node().attrs.get<std::string>("mode");
  const std::string_view reduction = c.text(mode == "set" ? "none" : mode);
  c.out(c.emit("ScatterND", {c.in(0), ids, c.in(2)}, {text_attribute("reduction", reduction)}));
}

void sort_of(ExportCall& c) {
  const int64_t axis = c.fixed_integer("axis");
  const std::string_view count = c.vector({c.integer("count")});
  const bool descending = c.node().attrs.get<bool>("descending");
  const std::string_view values =
      c.emit("TopK", {c.in(0), count},
             {attribute("axis", axis), attribute("largest", int64_t{descending ? 1 : 0})}, 2);
  const std::string_view places = c.further(1);
  c.out(values);
  const DType dtype = c.result(1).dtype;
  c.out(dtype == DType::i64 ? places : c.cast(places, dtype), 1);
}

}  // namespace

std::span<const ExportRow> movement_exports() {
  static const ExportRow rows[] = {
      {Op::full, full_of},
      {Op::literal, literal_of},
      {Op::iota, iota_of},
      {Op::reshape, reshape_of},
      {Op::transpose, transpose_of},
      {Op::slice, slice_of},
      {Op::pad, pad_of},
      {Op::concat, concat_of},
      {Op::broadcast_to, broadcast_of},
      {Op::gather, gather_of},
      {Op::scatter, scatter_of, can_scatter},
      {Op::sort, sort_of},
  };
  return rows;
}

}  // namespace brrr::onnx
