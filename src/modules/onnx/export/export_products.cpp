// Products, attention, convolutions and pools.

#include <algorithm>

#include "modules/onnx/export/export_call.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "ops/spatial/windows.h"

namespace brrr::onnx {
namespace {

void matmul_of(ExportCall& c) {
  c.out(c.emit(c.type(0).dtype == DType::i8 ? "MatMulInteger" : "MatMul", {c.in(0), c.in(1)}));
}

/// What the operator says without a mask: its masks treat queries that see no key otherwise.
bool can_attend(const Graph& g, NodeId id, int64_t opset) {
  constexpr int64_t kSince = 23;
  if (opset < kSince) return false;
  const Node& node = g.node(id);
  const std::vector<Type> in = operand_types(g, node);
  const AttentionForm form(node, in);
  const AttentionPlaces& p = form.places;
  if (form.position || form.mask || form.lengths || form.starts || form.key || form.window != 0 ||
      form.window_after)
    return false;
  if (form.batch.rank() != 1 || form.sources != 3) return false;
  for (const auto& part : form.parts())
    if (part.place.column != 0 || part.place.in_rows != p.y_in_rows ||
        part.taken() != form.columns(static_cast<size_t>(part.place.source)))
      return false;
  for (const Node& reader : g.nodes())
    for (const ValueId& v : reader.operands)
      if (v.node == id && v.port == 1) return false;
  return std::ranges::none_of(
      g.outputs(), [&](const Output& o) { return o.value.node == id && o.value.port == 1; });
}
void attention_of(ExportCall& c) {
  const Attrs& attrs = c.node().attrs;
  const auto source = [&](const char* name) {
    return c.in(static_cast<size_t>(attrs.get<std::vector<int64_t>>(name)[0]));
  };
  std::vector<AttributeProto> attributes{
      attribute("is_causal", int64_t{attrs.get<bool>("causal") ? 1 : 0}),
      attribute("scale", attrs.get<double>("scale"))};
  if (attrs.get<bool>("y_in_rows")) {
    attributes.push_back(attribute("q_num_heads", c.fixed_integer("heads")));
    attributes.push_back(attribute("kv_num_heads", c.fixed_integer("kv_heads")));
  }
  c.out(c.emit("Attention", {source("q"), source("k"), source("v")}, std::move(attributes)));
}

// -- windows
// -------------------------------------------------------------------------------------

std::vector<AttributeProto> window_attributes(ExportCall& c) {
  return {attribute("strides", c.fixed("strides")), attribute("dilations", c.fixed("dilations")),
          attribute("pads", c.fixed("pads"))};
}

void conv_of(ExportCall& c) {
  std::vector<AttributeProto> attributes = window_attributes(c);
  attributes.push_back(attribute("group", c.fixed_integer("groups")));
  c.out(c.emit("Conv", c.ins(), std::move(attributes)));
}
/// ONNX has channels first, and no passes have run on what is exported.
bool has_channels_first(const Graph& g, NodeId id, int64_t) {
  return !ops::has_channels_last(g.node(id).attrs);
}
bool can_conv(const Graph& g, NodeId id, int64_t opset) {
  return is_float(g.node(id).results[0].dtype) && has_channels_first(g, id, opset);
}

void conv_transpose_of(ExportCall& c) {
  std::vector<AttributeProto> attributes = window_attributes(c);
  attributes.push_back(attribute("group", c.fixed_integer("groups")));
  c.out(c.emit("ConvTranspose", {c.in(0), c.in(1)}, std::move(attributes)));
}

void max_pool_of(ExportCall& c) {
  std::vector<AttributeProto> attributes = window_attributes(c);
  attributes.push_back(attribute("kernel_shape", c.fixed("kernel")));
  const bool wants_places = c.is_used(1);
  c.out(c.emit("MaxPool", {c.in(0)}, std::move(attributes), wants_places ? 2 : 1));
  if (wants_places) c.out(c.further(1), 1);
}

/// The mean with padding counted, times the number of elements of a window.
void sum_pool_of(ExportCall& c) {
  const std::vector<int64_t> kernel = c.fixed("kernel"), dilations = c.fixed("dilations");
  std::vector<AttributeProto> attributes{
      attribute("strides", c.fixed("strides")), attribute("pads", c.fixed("pads")),
      attribute("kernel_shape", kernel), attribute("count_include_pad", int64_t{1})};
  constexpr int64_t kSinceDilations = 19;
  if (std::ranges::any_of(dilations, [](int64_t d) { return d != 1; })) {
    if (c.opset() < kSinceDilations) c.refuse("means of windows with dilations");
    attributes.push_back(attribute("dilations", dilations));
  }
  double elements = 1;
  for (const int64_t size : kernel) elements *= static_cast<double>(size);
  const std::string_view mean = c.emit("AveragePool", {c.in(0)}, std::move(attributes));
  c.out(c.emit("Mul", {mean, c.scalar(elements, c.result().dtype)}));
}

}  // namespace

std::span<const ExportRow> product_exports() {
  static const ExportRow rows[] = {
      {Op::matmul, matmul_of},
      {Op::attention, attention_of, can_attend},
      {Op::conv, conv_of, can_conv},
      {Op::conv_transpose, conv_transpose_of, has_channels_first},
      {Op::max_pool, max_pool_of, has_channels_first},
      {Op::sum_pool, sum_pool_of, has_channels_first},
  };
  return rows;
}

}  // namespace brrr::onnx
