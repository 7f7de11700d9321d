// Ops along axes: reductions, running sums, normalisations.

#include <algorithm>

#include "modules/onnx/export/emission.h"
#include "modules/onnx/export/export_call.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

void reduce(ExportCall& c, std::string_view op_type, int64_t axes_are_input_since) {
  const std::vector<int64_t> axes = c.fixed("axes");
  std::vector<AttributeProto> attributes{
      attribute("keepdims", int64_t{c.node().attrs.get<bool>("keep") ? 1 : 0})};
  std::vector<std::string_view> in{c.in(0)};
  if (axes.empty()) return c.out(c.emit("Identity", in));
  if (c.opset() >= axes_are_input_since)
    in.push_back(c.vector(axes));
  else
    attributes.push_back(attribute("axes", axes));
  c.out(c.emit(op_type, std::move(in), std::move(attributes)));
}

void sum_of(ExportCall& c) { reduce(c, "ReduceSum", 13); }
void max_of(ExportCall& c) { reduce(c, "ReduceMax", 18); }
void min_of(ExportCall& c) { reduce(c, "ReduceMin", 18); }
void product_of(ExportCall& c) { reduce(c, "ReduceProd", 18); }

void softmax_of(ExportCall& c) {
  c.out(c.emit("Softmax", {c.in(0)}, {attribute("axis", int64_t{-1})}));
}

bool uses_first_alone(const Graph& g, NodeId id) {
  for (const Node& node : g.nodes())
    for (const ValueId& v : node.operands)
      if (v.node == id && v.port > 0) return false;
  return std::ranges::none_of(
      g.outputs(), [&](const Output& o) { return o.value.node == id && o.value.port > 0; });
}

bool can_layer_norm(const Graph& g, NodeId id, int64_t) { return uses_first_alone(g, id); }
void layer_norm_of(ExportCall& c) {
  std::vector<std::string_view> in{c.in(0), c.in(1)};
  // A shift that is zero everywhere is left out.
  const Graph& g = c.family().first();
  NodeId shift = c.node().operands[2].node;
  if (is(g.node(shift), Op::broadcast_to)) shift = g.node(shift).operands[0].node;
  if (!is(g.node(shift), Op::full) || full_value(g.node(shift)) != 0) in.push_back(c.in(2));
  c.out(c.emit(
      "LayerNormalization", std::move(in),
      {attribute("axis", int64_t{-1}), attribute("epsilon", c.node().attrs.get<double>("eps"))}));
}

bool can_rms_norm(const Graph& g, NodeId id, int64_t opset) {
  return opset >= 23 && uses_first_alone(g, id);
}
void rms_norm_of(ExportCall& c) {
  c.out(c.emit(
      "RMSNormalization", {c.in(0), c.in(1)},
      {attribute("axis", int64_t{-1}), attribute("epsilon", c.node().attrs.get<double>("eps"))}));
}

void argmax_of(ExportCall& c) {
  const Attrs& attrs = c.node().attrs;
  const std::string_view place =
      c.emit(attrs.get<bool>("smallest") ? "ArgMin" : "ArgMax", {c.in(0)},
             {attribute("axis", c.fixed_integer("axis")), attribute("keepdims", int64_t{0}),
              attribute("select_last_index", int64_t{attrs.get<bool>("last") ? 1 : 0})});
  c.out(place);
}

void cumsum_of(ExportCall& c) {
  const Attrs& attrs = c.node().attrs;
  const std::string_view axis = c.scalar(static_cast<double>(c.fixed_integer("axis")), DType::i64);
  c.out(c.emit("CumSum", {c.in(0), axis},
               {attribute("exclusive", int64_t{attrs.get<bool>("exclusive") ? 1 : 0}),
                attribute("reverse", int64_t{attrs.get<bool>("reverse") ? 1 : 0})}));
}

}  // namespace

std::span<const ExportRow> reduction_exports() {
  static const ExportRow rows[] = {
      {Op::sum, sum_of},
      {Op::max, max_of},
      {Op::min, min_of},
      {Op::product, product_of},
      {Op::softmax, softmax_of},
      {Op::layer_norm, layer_norm_of, can_layer_norm},
      {Op::rms_norm, rms_norm_of, can_rms_norm},
      {Op::argmax, argmax_of},
      {Op::cumsum, cumsum_of},
  };
  return rows;
}

}  // namespace brrr::onnx
