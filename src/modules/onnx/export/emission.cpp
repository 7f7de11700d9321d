#include "modules/onnx/export/emission.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

/// The file format of the version of operators, as ONNX's releases pair them.
int64_t ir_version_for(int64_t opset) {
  if (opset >= 23) return 11;
  if (opset >= 21) return 10;
  return 8;
}

std::span<const std::byte> bytes_of_values(const auto& values) {
  return std::as_bytes(std::span(values));
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

class Emission::AmongSizes {
 public:
  explicit AmongSizes(Emission& e)
      : e_(e),
        scope_(std::exchange(e.scope_, "sizes")),
        nodes_(e.write_to(&e.model_->model_.graph.nodes)) {}
  AmongSizes(const AmongSizes&) = delete;
  AmongSizes& operator=(const AmongSizes&) = delete;
  ~AmongSizes() {
    e_.write_to(nodes_);
    e_.scope_ = scope_;
  }

 private:
  Emission& e_;
  std::string_view scope_;
  std::vector<NodeProto>* nodes_;
};

Emission::State::State(const Graph& graph) : uses(count_uses(graph)) {
  for (const Node& node : graph.nodes()) names.emplace_back(node.results.size());
}

Emission::Emission(const ExportSource& source, const ExportOptions& options)
    : source_(source), options_(options) {
  if (options.opset < kOldestExport || options.opset > kNewestExport)
    user_error("opset {} is not written; expected {} to {}", options.opset, kOldestExport,
               kNewestExport);
  auto texts = std::make_shared<std::deque<std::string>>();
  texts_ = texts.get();
  model_->holds_.push_back(texts);
}

std::string_view Emission::text(std::string value) {
  texts_->push_back(std::move(value));
  return texts_->back();
}

std::string_view Emission::fresh(std::string_view what) {
  std::string name = scope_.empty() ? std::string(what) : fmt::format("{}/{}", scope_, what);
  const int count = counters_[name]++;
  if (count > 0) name += fmt::format("_{}", count);
  return text(std::move(name));
}

// -- sizes
// ---------------------------------------------------------------------------------------

void Emission::check_family() const {
  if (family_.graphs.size() > 1)
    check_alike(family_, fmt::format("{}", fmt::join(source_.sizes, ", ")));
}

SizeFormula Emission::formula(const SizeValues& values, const std::string& what) {
  const auto found = fit_formula(values, sizes_);
  if (!found)
    throw SizesDiffer(fmt::format("{} is {} for several sizes of {}, which no formula explains",
                                  what, fmt::join(values, ", "), fmt::join(source_.sizes, ", ")));
  model_->has_quotients_ |= found->divisor != 1;
  return *found;
}

void Emission::name_sizes() {
  names_ = source_.sizes;
  readable_.assign(source_.sizes.size(), {"", -1});
  const Graph& g = family_.first();
  for (const NodeId id : g.inputs(InputKind::data))
    for (int axis = 0; axis < g.type({id, 0}).shape.rank(); ++axis) {
      SizeValues values;
      for (const Graph* graph : family_.graphs)
        values.push_back(graph->type({id, 0}).shape.size(axis));
      const auto found = fit_formula(values, sizes_);
      const auto size = found ? found->as_size() : std::nullopt;
      if (size && readable_[*size].second < 0) readable_[*size] = {g.input_name(id), axis};
    }
}

void Emission::find_derived_sizes() {
  const Graph& g = family_.first();
  std::set<SizeValues> seen;
  for (NodeId id = 0; id < g.size(); ++id)
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      for (int axis = 0; axis < g.type({id, port}).shape.rank(); ++axis) {
        SizeValues values;
        for (const Graph* graph : family_.graphs)
          values.push_back(graph->type({id, port}).shape.size(axis));
        if (!seen.insert(values).second) continue;
        const auto found = fit_formula(values, sizes_);
        if (!found || found->is_constant() || found->as_size()) continue;
        model_->has_quotients_ |= found->divisor != 1;
        names_.push_back(found->text(names_));
        derived_.push_back(*found);
        sizes_.push_back(std::move(values));
      }
}

std::string_view Emission::size_vector(const SizeFormula& f) {
  if (f.is_constant()) return vector(std::vector<int64_t>{f.value()});
  const std::string key = f.text(names_);
  const auto known = size_vectors_.find(key);
  if (known != size_vectors_.end()) return known->second;
  const AmongSizes among(*this);
  const std::string_view name = f.as_size() ? size_read(*f.as_size()) : size_computed(f);
  size_vectors_[key] = name;  // a derived size has the key of its formula, which has set it by now
  return name;
}

std::string_view Emission::size_read(size_t size) {
  if (size >= readable_.size()) return size_vector(derived_[size - readable_.size()]);
  const auto& [input, axis] = readable_[size];
  if (axis < 0) user_error("no input has the size {}", names_[size]);
  return append("Shape", {input}, {attribute("start", axis), attribute("end", axis + 1)}, 1)
      .outputs[0];
}

std::string_view Emission::size_computed(const SizeFormula& f) {
  const auto emit = [&](std::string_view op, std::vector<std::string_view> in) {
    return append(op, std::move(in), {}, 1).outputs[0];
  };
  const auto number = [&](int64_t n) { return vector(std::vector<int64_t>{n}); };
  std::string_view sum;
  for (const SizeFormula::Term& term : f.terms) {
    std::string_view product;
    for (const size_t size : term.sizes) {
      const std::string_view one = size_vector(SizeFormula{0, {{1, {size}}}, 1});
      product = product.empty() ? one : emit("Mul", {product, one});
    }
    if (term.factor != 1) product = emit("Mul", {product, number(term.factor)});
    sum = sum.empty() ? product : emit("Add", {sum, product});
  }
  if (f.offset != 0) sum = emit("Add", {sum, number(f.offset)});
  return f.divisor == 1 ? sum : emit("Div", {sum, number(f.divisor)});
}

std::string_view Emission::vector(const std::vector<SizeFormula>& values) {
  if (std::ranges::all_of(values, &SizeFormula::is_constant)) {
    std::vector<int64_t> numbers;
    for (const SizeFormula& f : values) numbers.push_back(f.value());
    return vector(numbers);
  }
  std::vector<std::string_view> parts;
  std::string key = "[";
  for (const SizeFormula& f : values) {
    parts.push_back(size_vector(f));
    key += f.text(names_) + ", ";
  }
  if (parts.size() == 1) return parts[0];
  const auto known = size_vectors_.find(key);
  if (known != size_vectors_.end()) return known->second;
  const AmongSizes among(*this);
  return size_vectors_[key] =
             append("Concat", std::move(parts), {attribute("axis", int64_t{0})}, 1).outputs[0];
}

std::string_view Emission::scalar(const SizeFormula& value, DType dtype) {
  if (value.is_constant()) return scalar(static_cast<double>(value.value()), dtype);
  std::string_view name = append("Squeeze", {size_vector(value)}, {}, 1).outputs[0];
  if (dtype == DType::i64) return name;
  return append("Cast", {name}, {attribute("to", static_cast<int64_t>(element_type_of(dtype)))}, 1)
      .outputs[0];
}

// -- constants
// -----------------------------------------------------------------------------------

std::string_view Emission::constant(DType dtype, const std::vector<int64_t>& dims,
                                    std::vector<std::byte> bytes) {
  std::string key = fmt::format("{} {} ", static_cast<int>(dtype), fmt::join(dims, ","));
  key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto known = constants_.find(key);
  if (known != constants_.end()) return known->second;
  TensorProto tensor;
  const std::string_view scope = std::exchange(scope_, "constants");
  tensor.name = fresh(std::to_string(constants_.size()));
  scope_ = scope;
  tensor.type = element_type_of(dtype);
  tensor.dims = dims;
  auto held = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  tensor.bytes = *held;
  tensor.keeps_bytes = held;
  model_->model_.graph.initializers.push_back(tensor);
  return constants_[key] = tensor.name;
}

std::string_view Emission::scalar(double value, DType dtype) {
  std::vector<std::byte> bytes(bytes_of(dtype));
  store_from_double(dtype, bytes.data(), 0, value);
  return constant(dtype, {}, std::move(bytes));
}

std::string_view Emission::vector(const std::vector<int64_t>& values) {
  return constant(DType::i64, {std::ssize(values)}, copy_of(bytes_of_values(values)));
}

std::string_view Emission::literal(const Node& node) {
  const Type& type = node.results[0];
  std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
  const auto elements = static_cast<size_t>(type.shape.elements());
  const size_t width = bytes_of(type.dtype);
  for (size_t i = 0; i < elements; ++i) store_constant(node, i, bytes.data() + i * width);
  return constant(type.dtype, type.shape.sizes(), std::move(bytes));
}

// -- nodes
// ---------------------------------------------------------------------------------------

std::vector<NodeProto>* Emission::write_to(std::vector<NodeProto>* nodes) {
  return std::exchange(nodes_, nodes);
}

NodeProto& Emission::append(std::string_view op_type, std::vector<std::string_view> inputs,
                            std::vector<AttributeProto> attributes, size_t outputs) {
  NodeProto node;
  node.op_type = op_type;
  node.name = fresh(op_type);
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  for (size_t i = 0; i < outputs; ++i)
    node.outputs.push_back(i == 0 ? node.name : text(fmt::format("{}:{}", node.name, i)));
  nodes_->push_back(std::move(node));
  return nodes_->back();
}

std::string_view Emission::name_of(ValueId value) const {
  return state_->names[value.node][value.port];
}
void Emission::bind(ValueId value, std::string_view name) {
  state_->names[value.node][value.port] = name;
}
bool Emission::is_used(ValueId value) const { return state_->uses[value.node][value.port] > 0; }

void Emission::walk(const GraphFamily& family) {
  const Graph& g = family.first();
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id)) continue;
    scope_ = g.scope_of(id);
    const ExportRow* row = find_export_row(g.node(id).op->id);
    ExportCall call(*this, family, id);
    if (row == nullptr || (row->can != nullptr && !row->can(g, id, options_.opset)))
      call.refuse("ONNX has no such operator");
    constexpr int64_t kSinceFloat8 = 19;
    const auto is_float8 = [](const Type& t) {
      return bytes_of(t.dtype) == 1 && is_float(t.dtype);
    };
    if (options_.opset < kSinceFloat8 &&
        (std::ranges::any_of(g.node(id).results, is_float8) ||
         std::ranges::any_of(operand_types(g, g.node(id)), is_float8)))
      call.refuse("floats of 8 bits came with opset 19");
    row->emit(call);
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      BRRR_CHECK(!is_used({id, port}) || !name_of({id, port}).empty(), "{} gives no result {}",
                 g.node(id).op->name, port);
  }
  scope_ = "";
}

GraphProto Emission::region(const GraphFamily& family, const std::vector<std::string_view>& inputs,
                            const std::vector<std::string_view>& outputs) {
  GraphProto proto;
  const Graph& g = family.first();
  State inner(g);
  for (size_t i = 0; i < g.inputs().size(); ++i) inner.names[g.inputs()[i]][0] = inputs[i];
  State* outer = std::exchange(state_, &inner);
  std::vector<NodeProto>* before = write_to(&proto.nodes);
  const std::string_view scope = scope_;
  walk(family);
  scope_ = scope;
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    NodeProto& node = append("Identity", {name_of(g.outputs()[i].value)}, {}, 1);
    node.outputs[0] = outputs[i];
  }
  write_to(before);
  state_ = outer;
  return proto;
}

ValueInfo Emission::value_info(std::string_view name, DType dtype,
                               const std::vector<SizeFormula>& shape) {
  ValueInfo info;
  info.name = name;
  info.type.kind = ValueKind::tensor;
  info.type.element = element_type_of(dtype);
  info.type.shape.emplace();
  for (const SizeFormula& f : shape) {
    Dimension d;
    if (f.is_constant())
      d.size = f.value();
    else
      d.name = text(f.text(names_));
    info.type.shape->push_back(d);
  }
  return info;
}

// -- the graph
// -----------------------------------------------------------------------------------

void Emission::parameter(NodeId id) {
  const Graph& g = family_.first();
  const std::string& name = g.input_name(id);
  const Type& type = g.type({id, 0});
  TensorProto tensor;
  tensor.name = name;
  tensor.type = element_type_of(type.dtype);
  tensor.dims = type.shape.sizes();
  tensor.bytes = source_.weight(name);
  const bool narrows =
      type.dtype == DType::f32 && options_.storage != DType::f32 && type.shape.rank() >= 2;
  std::string_view value = name;
  if (narrows) {
    const int64_t elements = type.shape.elements();
    auto held = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(elements) *
                                                         bytes_of(options_.storage));
    convert(DType::f32, tensor.bytes.data(), options_.storage, held->data(), elements);
    tensor.type = element_type_of(options_.storage);
    tensor.bytes = *held;
    tensor.keeps_bytes = held;
    scope_ = name;
    value = append("Cast", {name}, {attribute("to", static_cast<int64_t>(ElementType::f32))}, 1)
                .outputs[0];
    scope_ = "";
  }
  bind({id, 0}, value);
  model_->model_.graph.initializers.push_back(std::move(tensor));
}

void Emission::inputs() {
  const Graph& g = family_.first();
  std::vector<NodeId> ids = g.inputs();
  const auto place = [&](NodeId id) {
    return std::ranges::find(source_.inputs, g.input_name(id)) - source_.inputs.begin();
  };
  std::stable_sort(ids.begin(), ids.end(), [&](NodeId a, NodeId b) { return place(a) < place(b); });
  for (const NodeId id : ids) {
    if (g.role(id) == Role::parameter) {
      parameter(id);
      continue;
    }
    BRRR_CHECK(g.role(id) == Role::data, "'{}' is neither data nor a parameter", g.input_name(id));
    const ExportCall call(*this, family_, id);
    bind({id, 0}, g.input_name(id));
    model_->model_.graph.inputs.push_back(
        value_info(g.input_name(id), g.type({id, 0}).dtype, call.shape_of()));
  }
}

void Emission::rename_outputs(const std::map<std::string_view, std::string_view>& renamed) {
  const auto rename = [&](std::string_view& name) {
    const auto at = renamed.find(name);
    if (at != renamed.end()) name = at->second;
  };
  const auto in_graph = [&](const auto& self, std::vector<NodeProto>& nodes) -> void {
    for (NodeProto& node : nodes) {
      std::ranges::for_each(node.inputs, rename);
      std::ranges::for_each(node.outputs, rename);
      for (AttributeProto& a : node.attributes)
        if (a.graph) self(self, a.graph->nodes);
    }
  };
  in_graph(in_graph, model_->model_.graph.nodes);
}

void Emission::outputs() {
  const Graph& g = family_.first();
  std::set<std::string_view> produced;
  for (const NodeProto& node : model_->model_.graph.nodes)
    produced.insert(node.outputs.begin(), node.outputs.end());
  if (g.outputs().empty()) user_error("the graph has no outputs, which an ONNX file must have");
  std::map<std::string_view, std::string_view> renamed;
  for (const Output& output : g.outputs()) {
    BRRR_CHECK(output.updates == kNoNode && output.gradient_of == kNoNode, "an update");
    const std::string_view name = text(output.name), value = name_of(output.value);
    if (g.find_input(name) != kNoNode)
      user_error("the output '{}' has the name of an input, which an ONNX file cannot have", name);
    const bool is_renamed = produced.contains(value) && renamed.emplace(value, name).second;
    if (!is_renamed) append("Identity", {value}, {}, 1).outputs[0] = name;
    const ExportCall call(*this, family_, output.value.node);
    model_->model_.graph.outputs.push_back(
        value_info(name, g.type(output.value).dtype, call.shape_of(output.value.port)));
  }
  rename_outputs(renamed);
}

std::shared_ptr<const ExportedModel> Emission::run() {
  sizes_.resize(source_.sizes.size());
  const auto examples =
      source_.sizes.empty() ? std::vector<std::vector<int64_t>>{{}} : source_.examples;
  for (const std::vector<int64_t>& sizes : examples) {
    graphs_.push_back(onnx_form(source_.graph(sizes), options_.opset));
    for (size_t i = 0; i < sizes.size(); ++i) sizes_[i].push_back(sizes[i]);
  }
  for (const Graph& graph : graphs_) family_.graphs.push_back(&graph);
  check_family();
  name_sizes();
  find_derived_sizes();
  ModelProto& model = model_->model_;
  model.ir_version = ir_version_for(options_.opset);
  model.producer = "brrr";
  model.producer_version = text(source_.producer_version);
  model.opsets[""] = options_.opset;
  model.graph.name = text(source_.name);
  for (const auto& [key, value] : source_.metadata)
    model.metadata.emplace_back(text(key), text(value));
  const Graph& g = family_.first();
  State state(g);
  state_ = &state;
  nodes_ = &model.graph.nodes;
  for (const NodeId id : g.inputs()) counters_[g.input_name(id)] = 1;
  for (const Output& output : g.outputs()) counters_[output.name] = 1;
  inputs();
  walk(family_);
  outputs();
  // Names of inputs are those of the graphs, which go with this object.
  const auto keep = std::make_shared<std::vector<Graph>>(std::move(graphs_));
  model_->holds_.push_back(keep);
  return model_;
}

std::shared_ptr<const ExportedModel> export_model(const ExportSource& source,
                                                  const ExportOptions& options) {
  return Emission(source, options).run();
}

}  // namespace brrr::onnx
