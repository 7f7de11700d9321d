#include "modules/onnx/call.h"

#include "base/errors.h"
#include "formats/onnx/packed_integers.h"

namespace brrr::onnx {

Call::Call(Lowering& lowering, const NodeProto& node, Names& names)
    : lowering_(lowering), node_(node), names_(names) {
  const auto version = names.opsets->find(node.domain);
  if (version != names.opsets->end()) {
    opset_ = version->second;
  } else {
    const auto of_file = lowering.file().opsets.find(node.domain);
    opset_ = of_file != lowering.file().opsets.end() ? of_file->second : 1;
  }
}

std::string Call::where() const {
  std::string text = fmt::format("{}: {}", lowering_.file().what(), node_.op_type);
  const std::string_view name = !node_.name.empty()      ? node_.name
                                : !node_.outputs.empty() ? node_.outputs[0]
                                                         : std::string_view();
  if (!name.empty()) text += fmt::format(" '{}{}'", names_.prefix, name);
  return text;
}

std::string Call::operand_types() {
  std::string text;
  for (size_t i = 0; i < node_.inputs.size(); ++i) {
    const bool is_tensor = has(i) && item(i).is_tensor();
    text += (i > 0 ? ", " : "") + (is_tensor ? in(i).type().str() : std::string("-"));
  }
  return text;
}

void Call::refuse_text(const std::string& message) const {
  throw Unsupported(fmt::format("{}: not supported: {}", where(), message));
}

void Call::fail_text(const std::string& message) const {
  throw UserError(fmt::format("{}: {}", where(), message));
}

// -- operands
// ---------------------------------------------------------------------------------------

bool Call::has(size_t i) const {
  if (i >= node_.inputs.size() || node_.inputs[i].empty()) return false;
  const Item* item = lowering_.find(names_, node_.inputs[i]);
  return item != nullptr && item->kind != Item::Kind::none;
}

const Item& Call::item(size_t i) {
  if (i >= node_.inputs.size() || node_.inputs[i].empty()) fail("operand {} is missing", i);
  return *lowering_.find(names_, node_.inputs[i]);
}

Value Call::in(size_t i) {
  const Item& it = item(i);
  if (!it.is_tensor())
    fail("operand {} ('{}') must be a tensor; got {}", i, node_.inputs[i],
         it.kind == Item::Kind::list ? "a sequence" : "nothing");
  return it.value;
}

std::optional<Value> Call::optional(size_t i) {
  return has(i) ? std::optional(in(i)) : std::nullopt;
}

const RefTensor& Call::known(size_t i) {
  const Value v = in(i);  // the operand is there
  return lowering_.known(v, names_.source(node_.inputs[i]));
}

double Call::known_number(size_t i) {
  const RefTensor& t = known(i);
  if (t.size() != 1) fail("operand {} must have one element; got {}", i, t.type.str());
  return t.number(0);
}

int64_t Call::known_integer(size_t i) {
  const std::vector<int64_t> list = integers(i);
  if (list.size() != 1) fail("operand {} must have one element; got {}", i, known(i).type.str());
  return list[0];
}

const RefTensor* Call::known_or_null(size_t i) { return lowering_.known_or_null(in(i)); }

std::vector<int64_t> Call::integers(size_t i) {
  const RefTensor& t = known(i);
  if (!is_integer(t.type.dtype)) fail("operand {} must be of integers; got {}", i, t.type.str());
  std::vector<int64_t> list;
  for (size_t k = 0; k < t.size(); ++k) list.push_back(t.integer<int64_t>(k));
  return list;
}

// -- attributes
// -------------------------------------------------------------------------------------

const AttributeProto* Call::find(std::string_view name) const {
  const NodeProto* node = &node_;
  const Names* names = &names_;
  for (;;) {
    const AttributeProto* a = node->find(name);
    if (a == nullptr || a->refers_to.empty()) return a;
    if (names->call == nullptr) return nullptr;
    name = a->refers_to;
    const FunctionProto* function = names->function;
    node = names->call;
    names = names->caller;
    if (node->find(name) != nullptr) continue;
    for (const AttributeProto& fallback : function->defaults)
      if (fallback.name == name) return &fallback;
    return nullptr;
  }
}

const AttributeProto& Call::get(std::string_view name, AttributeProto::Kind kind,
                                const char* what) const {
  const AttributeProto* a = find(name);
  if (a == nullptr) fail("needs the attribute '{}'", name);
  // Old files leave the kind out.
  if (a->kind != kind && a->kind != AttributeProto::Kind::undefined)
    fail("the attribute '{}' must be {}", name, what);
  return *a;
}

int64_t Call::integer(std::string_view name, std::optional<int64_t> fallback) const {
  if (fallback && find(name) == nullptr) return *fallback;
  return get(name, AttributeProto::Kind::integer, "an integer").integer;
}

double Call::number(std::string_view name, std::optional<double> fallback) const {
  if (fallback && find(name) == nullptr) return *fallback;
  return static_cast<double>(get(name, AttributeProto::Kind::number, "a number").number);
}

std::string Call::text(std::string_view name, std::optional<std::string> fallback) const {
  if (fallback && find(name) == nullptr) return *fallback;
  return std::string(get(name, AttributeProto::Kind::string, "a text").string);
}

std::optional<std::vector<int64_t>> Call::integer_list(std::string_view name) const {
  if (find(name) == nullptr) return std::nullopt;
  return get(name, AttributeProto::Kind::integers, "a list of integers").integers;
}

std::optional<std::vector<float>> Call::number_list(std::string_view name) const {
  if (find(name) == nullptr) return std::nullopt;
  return get(name, AttributeProto::Kind::numbers, "a list of numbers").numbers;
}

std::vector<std::string> Call::text_list(std::string_view name) const {
  if (find(name) == nullptr) return {};
  const AttributeProto& a = get(name, AttributeProto::Kind::strings, "a list of texts");
  return {a.strings.begin(), a.strings.end()};
}

const TensorProto* Call::tensor(std::string_view name) const {
  if (find(name) == nullptr) return nullptr;
  return get(name, AttributeProto::Kind::tensor, "a tensor").tensor.get();
}

const GraphProto& Call::subgraph(std::string_view name) const {
  const AttributeProto& a = get(name, AttributeProto::Kind::graph, "a graph");
  if (!a.graph) fail("the attribute '{}' must be a graph", name);
  return *a.graph;
}

ElementType Call::element_type(std::string_view name) const {
  const auto type = static_cast<ElementType>(integer(name));
  if (!dtype_of(type)) refuse("{} {}", name, onnx::name_of(type));
  return type;
}

DType Call::dtype(std::string_view name, std::optional<DType> fallback) const {
  if (fallback && find(name) == nullptr) return *fallback;
  const ElementType type = element_type(name);
  if (narrow_integer(type)) refuse("{} {}", name, onnx::name_of(type));
  return *dtype_of(type);
}

std::optional<std::vector<int64_t>> Call::integers_of(std::string_view name, size_t i) {
  if (auto list = integer_list(name)) return list;
  if (has(i)) return integers(i);
  return std::nullopt;
}

// -- results
// ----------------------------------------------------------------------------------------

bool Call::wants(size_t i) const { return i < node_.outputs.size() && !node_.outputs[i].empty(); }

void Call::out(size_t i, Item item) {
  if (wants(i)) names_.items[node_.outputs[i]] = std::move(item);
}

Value Call::vector(const std::vector<int64_t>& list) {
  const std::vector<Number> values(list.begin(), list.end());
  return literal(graph(), {std::ssize(list)}, values, DType::i64);
}

Value Call::vector(const std::vector<float>& list) {
  std::vector<Number> values;
  for (const float x : list) values.emplace_back(static_cast<double>(x));
  return literal(graph(), {std::ssize(list)}, values, DType::f32);
}

int64_t Call::axis(int64_t axis, int rank) const {
  if (axis < -rank || axis >= rank) fail("there is no axis {} of {}", axis, rank);
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> Call::axes(std::vector<int64_t> axes, int rank) const {
  for (int64_t& a : axes) a = axis(a, rank);
  return axes;
}

}  // namespace brrr::onnx
