// Element-wise ops, which broadcast as ONNX's do.

#include "modules/onnx/export/export_call.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

/// The op and the operator of the same meaning.
constexpr std::pair<std::string_view, std::string_view> kSame[] = {
    {"neg", "Neg"},
    {"exp", "Exp"},
    {"log", "Log"},
    {"sqrt", "Sqrt"},
    {"reciprocal", "Reciprocal"},
    {"abs", "Abs"},
    {"tanh", "Tanh"},
    {"erf", "Erf"},
    {"sigmoid", "Sigmoid"},
    {"relu", "Relu"},
    {"sin", "Sin"},
    {"cos", "Cos"},
    {"floor", "Floor"},
    {"ceil", "Ceil"},
    {"round", "Round"},
    {"tan", "Tan"},
    {"asin", "Asin"},
    {"acos", "Acos"},
    {"atan", "Atan"},
    {"sinh", "Sinh"},
    {"cosh", "Cosh"},
    {"asinh", "Asinh"},
    {"acosh", "Acosh"},
    {"atanh", "Atanh"},
    {"logical_not", "Not"},
    {"add", "Add"},
    {"sub", "Sub"},
    {"mul", "Mul"},
    {"div", "Div"},
    {"maximum", "Max"},
    {"minimum", "Min"},
    {"pow", "Pow"},
    {"equal", "Equal"},
    {"less", "Less"},
    {"less_equal", "LessOrEqual"},
    {"greater", "Greater"},
    {"greater_equal", "GreaterOrEqual"},
    {"logical_and", "And"},
    {"logical_or", "Or"},
    {"where", "Where"},
};

void same(ExportCall& c) {
  std::string_view op_type;
  for (const auto& [op, name] : kSame)
    if (op == c.node().op->name) op_type = name;
  c.out(c.emit(op_type, c.ins()));
}

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
  const std::string& op = c.node().op->name;
  const std::string_view name = op == "bit_and"  ? "BitwiseAnd"
                                : op == "bit_or" ? "BitwiseOr"
                                                 : "BitwiseXor";
  c.out(c.emit(name, {c.in(0), c.in(1)}));
}

bool can_shift(const Graph& g, NodeId id, int64_t) {
  return is_unsigned_integer(g.node(id).results[0].dtype);
}
void shift(ExportCall& c) {
  const bool left = c.node().op->name == "shift_left";
  c.out(c.emit("BitShift", {c.in(0), c.in(1)},
               {text_attribute("direction", left ? "LEFT" : "RIGHT")}));
}

}  // namespace

std::span<const ExportRow> elementwise_exports() {
  static const std::vector<ExportRow> rows = [] {
    std::vector<ExportRow> list = {{"cast", cast_of},
                                   {"gelu", gelu_of, can_gelu},
                                   {"fmod", remainder},
                                   {"bit_and", bits, can_bits},
                                   {"bit_or", bits, can_bits},
                                   {"bit_xor", bits, can_bits},
                                   {"shift_left", shift, can_shift},
                                   {"shift_right", shift, can_shift}};
    for (const auto& [op, name] : kSame) list.push_back({op, same});
    return list;
  }();
  return rows;
}

}  // namespace brrr::onnx
