#include "modules/onnx/export/export_call.h"

#include <algorithm>
#include <unordered_map>

#include "base/errors.h"
#include "modules/onnx/export/emission.h"

namespace brrr::onnx {

using Kind = AttributeProto::Kind;

namespace {

AttributeProto named(std::string_view name, Kind kind) {
  AttributeProto a;
  a.name = name;
  a.kind = kind;
  return a;
}

}  // namespace

AttributeProto attribute(std::string_view name, int64_t value) {
  AttributeProto a = named(name, Kind::integer);
  a.integer = value;
  return a;
}
AttributeProto attribute(std::string_view name, double value) {
  AttributeProto a = named(name, Kind::number);
  a.number = static_cast<float>(value);
  return a;
}
AttributeProto attribute(std::string_view name, std::vector<int64_t> values) {
  AttributeProto a = named(name, Kind::integers);
  a.integers = std::move(values);
  return a;
}
AttributeProto text_attribute(std::string_view name, std::string_view value) {
  AttributeProto a = named(name, Kind::string);
  a.string = value;
  return a;
}
AttributeProto graph_attribute(std::string_view name, GraphProto graph) {
  AttributeProto a = named(name, Kind::graph);
  a.graph = std::make_shared<GraphProto>(std::move(graph));
  return a;
}

double nearest_in(DType dtype, double value) {
  std::byte bits[sizeof(double)];
  store_from_double(dtype, bits, 0, value);
  return load_as_double(dtype, bits, 0);
}

ExportCall::ExportCall(Emission& emission, const GraphFamily& family, NodeId id)
    : emission_(emission), family_(family), id_(id) {}

const Node& ExportCall::node() const { return family_.first().node(id_); }
const Type& ExportCall::type(size_t operand) const {
  return family_.first().type(node().operands[operand]);
}
const Type& ExportCall::result(size_t port) const { return node().results[port]; }
bool ExportCall::is_used(uint32_t port) const { return emission_.is_used({id_, port}); }
int64_t ExportCall::opset() const { return emission_.options().opset; }

std::string_view ExportCall::in(size_t i) const { return emission_.name_of(node().operands[i]); }

std::string_view ExportCall::emit(std::string_view op_type, std::vector<std::string_view> inputs,
                                  std::vector<AttributeProto> attributes, size_t outputs) {
  last_ = emission_.append(op_type, std::move(inputs), std::move(attributes), outputs).outputs;
  return last_[0];
}
std::string_view ExportCall::further(size_t output) const { return last_[output]; }

std::string_view ExportCall::cast(std::string_view name, DType dtype) {
  return emit("Cast", {name}, {attribute("to", static_cast<int64_t>(element_type_of(dtype)))});
}

std::vector<std::string_view> ExportCall::ins(size_t first) const {
  std::vector<std::string_view> names;
  for (size_t i = first; i < node().operands.size(); ++i) names.push_back(in(i));
  return names;
}

void ExportCall::out(std::string_view name, uint32_t port) { emission_.bind({id_, port}, name); }

SizeFormula ExportCall::integer(std::string_view attribute) const {
  SizeValues values;
  for (const Graph* graph : family_.graphs)
    values.push_back(graph->node(id_).attrs.get<int64_t>(attribute));
  return emission_.formula(values, fmt::format("{} of {}", attribute, node().op->name));
}

std::vector<SizeFormula> ExportCall::integers(std::string_view attribute) const {
  std::vector<SizeValues> values;
  for (const Graph* graph : family_.graphs) {
    const AttrValue* value = graph->node(id_).attrs.find(attribute);
    const std::vector<int64_t> list = std::holds_alternative<Shape>(*value)
                                          ? std::get<Shape>(*value).sizes()
                                          : std::get<std::vector<int64_t>>(*value);
    values.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) values[i].push_back(list[i]);
  }
  std::vector<SizeFormula> formulas;
  for (const SizeValues& v : values)
    formulas.push_back(emission_.formula(v, fmt::format("{} of {}", attribute, node().op->name)));
  return formulas;
}

namespace {

std::vector<SizeFormula> formulas_of(Emission& emission, const GraphFamily& family,
                                     const auto& shape_in) {
  std::vector<SizeFormula> formulas;
  for (int axis = 0; axis < shape_in(*family.graphs[0]).rank(); ++axis) {
    SizeValues values;
    for (const Graph* graph : family.graphs) values.push_back(shape_in(*graph).size(axis));
    formulas.push_back(emission.formula(values, "an axis"));
  }
  return formulas;
}

}  // namespace

std::vector<SizeFormula> ExportCall::shape_of(size_t port) const {
  return formulas_of(emission_, family_, [&](const Graph& g) -> const Shape& {
    return g.node(id_).results[port].shape;
  });
}
std::vector<SizeFormula> ExportCall::operand_shape(size_t i) const {
  return formulas_of(emission_, family_, [&](const Graph& g) -> const Shape& {
    return g.type(g.node(id_).operands[i]).shape;
  });
}

std::vector<int64_t> ExportCall::fixed(std::string_view attribute) const {
  std::vector<int64_t> numbers;
  for (const SizeFormula& f : integers(attribute)) {
    if (!f.is_constant()) refuse(fmt::format("{} depends on a size", attribute));
    numbers.push_back(f.value());
  }
  return numbers;
}

int64_t ExportCall::fixed_integer(std::string_view attribute) const {
  const SizeFormula f = integer(attribute);
  if (!f.is_constant()) refuse(fmt::format("{} depends on a size", attribute));
  return f.value();
}

std::string_view ExportCall::scalar(double value, DType dtype) {
  return emission_.scalar(value, dtype);
}
std::string_view ExportCall::scalar(const SizeFormula& value, DType dtype) {
  return emission_.scalar(value, dtype);
}
std::string_view ExportCall::vector(const std::vector<int64_t>& values) {
  return emission_.vector(values);
}
std::string_view ExportCall::vector(const std::vector<SizeFormula>& values) {
  return emission_.vector(values);
}
std::string_view ExportCall::text(std::string value) { return emission_.text(std::move(value)); }

void ExportCall::refuse(const std::string& why) const {
  std::string types;
  for (size_t i = 0; i < node().operands.size(); ++i) types += (i > 0 ? ", " : "") + type(i).str();
  user_error("{}({}) cannot be written with opset {}: {}", node().op->name, types, opset(), why);
}

const ExportRow* find_export_row(Op op) {
  static const std::unordered_map<Op, const ExportRow*> all = [] {
    std::unordered_map<Op, const ExportRow*> map;
    for (auto* rows : {elementwise_exports, movement_exports, reduction_exports, product_exports,
                       control_exports})
      for (const ExportRow& row : rows()) map.emplace(row.op, &row);
    return map;
  }();
  const auto at = all.find(op);
  return at == all.end() ? nullptr : at->second;
}

}  // namespace brrr::onnx
