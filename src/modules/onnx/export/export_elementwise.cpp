// Element-wise ops, which broadcast as ONNX's do.

#include "modules/onnx/export/export_call.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

void same(ExportCall& c) { c.out(c.emit(c.node().op->onnx, c.ins())); }

void cast_of(ExportCall& c) { c.out(c.cast(c.in(0), c.result().dtype)); }

void gelu_of(ExportCall& c) {
  const std::string& form = c.node().attrs.get<std::string>("approximate");
  c.out(
      c.emit("Gelu", {c.in(0)}, {text_attribute("approximate", form == "tanh" ? "tanh" : "none")}));
}
bool can_gelu(const Graph&, NodeId, int64_t opset) { return opset >= 20; }

void remainder(ExportCall& c) {
  c.out(c.emit("Mod", {c.in(0), c.in(1)}, {attribute("fmod", int64_t{1})}));
}

bool can_bits(const Graph&, NodeId, int64_t opset) { return opset >= 18; }
void bits(ExportCall& c) {
  const std::string_view name = is(c.node(), Op::bit_and)  ? "BitwiseAnd"
                                : is(c.node(), Op::bit_or) ? "BitwiseOr"
                                                           : "BitwiseXor";
  c.out(c.emit(name, {c.in(0), c.in(1)}));
}

bool can_shift(const Graph& g, NodeId id, int64_t) {
  return is_unsigned_integer(g.node(id).results[0].dtype);
}
void shift(ExportCall& c) {
  const bool left = is(c.node(), Op::shift_left);
  c.out(c.emit("BitShift", {c.in(0), c.in(1)},
               {text_attribute("direction", left ? "LEFT" : "RIGHT")}));
}

}  // namespace

std::span<const ExportRow> elementwise_exports() {
  static const std::vector<ExportRow> rows = [] {
    std::vector<ExportRow> list = {{Op::cast, cast_of},
                                   {Op::gelu, gelu_of, can_gelu},
                                   {Op::fmod, remainder},
                                   {Op::bit_and, bits, can_bits},
                                   {Op::bit_or, bits, can_bits},
                                   {Op::bit_xor, bits, can_bits},
                                   {Op::shift_left, shift, can_shift},
                                   {Op::shift_right, shift, can_shift}};
    for (const OpDef* op : all_ops())
      if (!op->onnx.empty()) list.push_back({op->id, same});
    return list;
  }();
  return rows;
}

}  // namespace brrr::onnx
