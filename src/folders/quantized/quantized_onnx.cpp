#include "folders/quantized/quantized_onnx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/human.h"
#include "folders/quantized/quantized_model.h"
#include "formats/protobuf.h"
#include "formats/protobuf_writer.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {
namespace {

constexpr int64_t kOpsetOfAxes = 13, kOpsetOfBlocks = 21;  // of DequantizeLinear
constexpr uint64_t kLargestFile = INT32_MAX;
// The numbers of the fields of ModelProto and GraphProto that are replaced or searched.
constexpr uint32_t kGraphField = 7, kFunctionField = 25, kNodeField = 1, kInitializerField = 5,
                   kSparseField = 15;

/// Operators that only quantised files have.
bool is_quantised_operator(std::string_view op) {
  constexpr std::array kNames = {
      "QuantizeLinear",        "DequantizeLinear",     "MatMulInteger", "DynamicQuantizeLinear",
      "QLinearMatMul",         "QLinearConv",          "ConvInteger",   "MatMulNBits",
      "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",         "QAttention"};
  return std::ranges::find(kNames, op) != kNames.end();
}

bool is_of_onnx(const onnx::NodeProto& n) { return n.domain.empty() || n.domain == "ai.onnx"; }

int64_t opset_of(const onnx::File& file) {
  for (const std::string_view domain : {"", "ai.onnx"})
    if (const auto at = file.opsets.find(domain); at != file.opsets.end()) return at->second;
  return 1;
}

/// How the main graph uses a value.
struct ValueUse {
  std::string node;
  bool multiplied = false, outputs_first = false, has_other_use = false;

  void multiply(std::string_view by, bool has_outputs_first) {
    has_other_use |= multiplied && outputs_first != has_outputs_first;
    if (!multiplied) node = by;
    multiplied = true;
    outputs_first = has_outputs_first;
  }
};

/// Whether a node swaps the two axes of a matrix.
bool swaps_axes(const onnx::NodeProto& n) {
  if (!is_of_onnx(n) || n.op_type != "Transpose" || n.inputs.size() != 1 || n.outputs.size() != 1)
    return false;
  const onnx::AttributeProto* const order = n.find("perm");
  return order != nullptr && order->integers == std::vector<int64_t>{1, 0};
}

void use_all_otherwise(const onnx::GraphProto& graph, std::map<std::string_view, ValueUse>& uses) {
  for (const onnx::NodeProto& n : graph.nodes) {
    for (const std::string_view name : n.inputs) uses[name].has_other_use = true;
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) use_all_otherwise(*a.graph, uses);
  }
  for (const onnx::ValueInfo& output : graph.outputs) uses[output.name].has_other_use = true;
}

std::map<std::string_view, ValueUse> uses_of_values(const onnx::GraphProto& graph) {
  std::map<std::string_view, ValueUse> uses;
  for (const onnx::NodeProto& n : graph.nodes) {
    const bool is_gemm = n.op_type == "Gemm";
    const bool multiplies = is_of_onnx(n) && (is_gemm || n.op_type == "MatMul");
    const onnx::AttributeProto* const transposed = is_gemm ? n.find("transB") : nullptr;
    const bool outputs_first = transposed != nullptr && transposed->integer != 0;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (multiplies && i == 1)
        uses[n.inputs[i]].multiply(n.name, outputs_first);
      else if (!swaps_axes(n))
        uses[n.inputs[i]].has_other_use = true;
    }
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) use_all_otherwise(*a.graph, uses);
  }
  for (const onnx::ValueInfo& v : graph.outputs) uses[v.name].has_other_use = true;
  // A caller may replace an initializer that is an input, too.
  for (const onnx::ValueInfo& v : graph.inputs) uses[v.name].has_other_use = true;
  // A product with the transposed matrix multiplies by the initializer itself.
  for (const onnx::NodeProto& n : graph.nodes) {
    if (!swaps_axes(n)) continue;
    const ValueUse transposed = uses[n.outputs[0]];
    ValueUse& use = uses[n.inputs[0]];
    use.has_other_use |= transposed.has_other_use;
    if (transposed.multiplied) use.multiply(transposed.node, !transposed.outputs_first);
  }
  return uses;
}

/// Whether `part` is the whole name, or a part of it between dots and slashes.
bool matches_name(const std::string& whole, const std::string& part) {
  if (whole == part) return true;
  const auto is_border = [](char c) { return c == '.' || c == '/'; };
  for (size_t at = whole.find(part); at != std::string::npos; at = whole.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || is_border(whole[at - 1])) && (end == whole.size() || is_border(whole[end])))
      return true;
  }
  return false;
}

/// Returns the elements of a weight as a matrix [outputs, inputs].
std::vector<float> numbers_of(const onnx::TensorProto& t, const OnnxWeight& w,
                              const std::string& what) {
  std::vector<float> numbers(static_cast<size_t>(w.outputs * w.inputs));
  std::memcpy(numbers.data(), t.bytes.data(), numbers.size() * sizeof(float));
  if (!std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); }))
    user_error("{}: the initializer {} contains NaN or infinity; the file is damaged", what,
               w.initializer);
  if (w.outputs_first) return numbers;
  std::vector<float> turned(numbers.size());
  for (int64_t k = 0; k < w.inputs; ++k)
    for (int64_t n = 0; n < w.outputs; ++n)
      turned[static_cast<size_t>(n * w.inputs + k)] =
          numbers[static_cast<size_t>(k * w.outputs + n)];
  return turned;
}

/// Returns a matrix [outputs, columns] in the orientation in which the file stores the weight.
template <typename T>
std::vector<T> as_stored(const std::vector<T>& rows, int64_t outputs, int64_t columns,
                         bool outputs_first) {
  if (outputs_first) return rows;
  std::vector<T> turned(rows.size());
  for (int64_t n = 0; n < outputs; ++n)
    for (int64_t c = 0; c < columns; ++c)
      turned[static_cast<size_t>(c * outputs + n)] = rows[static_cast<size_t>(n * columns + c)];
  return turned;
}

std::string packed_nibbles(const std::vector<int8_t>& integers) {
  std::string packed((integers.size() + 1) / 2, '\0');
  for (size_t i = 0; i < integers.size(); ++i) {
    const int nibble = integers[i] & 0xf;
    packed[i / 2] = static_cast<char>(static_cast<unsigned char>(packed[i / 2]) |
                                      (i % 2 == 0 ? nibble : nibble << 4));
  }
  return packed;
}

ProtobufWriter tensor_message(const std::string& name, onnx::ElementType type,
                              const std::vector<int64_t>& dims, std::string_view raw) {
  ProtobufWriter w;
  w.packed(1, dims);
  w.integer(2, static_cast<int64_t>(type));
  w.text(8, name);
  w.text(9, raw);
  return w;
}

void add_integer_attribute(ProtobufWriter& node, const char* name, int64_t value) {
  constexpr int64_t kInteger = 2;  // AttributeProto.INT
  ProtobufWriter a;
  a.text(1, name);
  a.integer(3, value);
  a.integer(20, kInteger);
  node.message(5, std::move(a));
}

/// The names of values and nodes of a file, its subgraphs included, which have to differ.
class UsedNames {
 public:
  explicit UsedNames(const onnx::GraphProto& graph) { add(graph); }

  /// Takes the name, or, where it is used, the first free one of NAME_2, NAME_3, ...
  std::string take(const std::string& wanted) {
    std::string name = wanted;
    for (int64_t i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
    return name;
  }

 private:
  void add(const onnx::GraphProto& graph) {
    for (const auto* values : {&graph.inputs, &graph.outputs})
      for (const onnx::ValueInfo& v : *values) names_.emplace(v.name);
    for (const onnx::TensorProto& t : graph.initializers) names_.emplace(t.name);
    for (const onnx::SparseTensorProto& t : graph.sparse_initializers)
      names_.emplace(t.values.name);
    for (const onnx::NodeProto& n : graph.nodes) {
      names_.emplace(n.name);
      for (const auto* values : {&n.inputs, &n.outputs})
        for (const std::string_view name : *values) names_.emplace(name);
      for (const onnx::AttributeProto& a : n.attributes)
        if (a.graph) add(*a.graph);
    }
  }

  std::set<std::string> names_;
};

/// The names of the tensors and the node that replace a weight.
struct NewNames {
  std::string integers, scale, node;

  NewNames(UsedNames& used, const std::string& weight)
      : integers(used.take(weight + "_quantized")),
        scale(used.take(weight + "_scale")),
        node(used.take(weight + "_DequantizeLinear")) {}
};

/// Returns the DequantizeLinear node, whose output has the name of the initializer that it
/// replaces.
ProtobufWriter dequantize_node(const OnnxWeight& w, const NewNames& names, int64_t group) {
  ProtobufWriter n;
  n.text(1, names.integers);
  n.text(1, names.scale);
  n.text(2, w.initializer);
  n.text(3, names.node);
  n.text(4, "DequantizeLinear");
  // Per channel the axis is that of the outputs, in blocks that of the inputs.
  const bool axis_is_first = w.outputs_first == (group == 0);
  add_integer_attribute(n, "axis", axis_is_first ? 0 : 1);
  if (group > 0) add_integer_attribute(n, "block_size", group);
  return n;
}

std::string_view bytes_of(const auto& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])};
}

/// Copies a varint or length-delimited field.
void copy_field(const ProtobufReader& from, ProtobufWriter& to) {
  if (from.is_bytes())
    to.view(from.field(), std::as_bytes(std::span(from.bytes().data(), from.bytes().size())));
  else
    to.varint(from.field(), from.varint());
}

/// Throws UserError for a tensor whose numbers lie in another file.
void refuse_external_tensor(std::string_view message, const std::string& what) {
  constexpr uint32_t kName = 8, kDataLocation = 14;
  constexpr uint64_t kExternal = 1;  // TensorProto.EXTERNAL
  ProtobufReader tensor(message, what);
  std::string_view name;
  bool is_external = false;
  while (tensor.next()) {
    if (tensor.field() == kName) name = tensor.bytes();
    if (tensor.field() == kDataLocation) is_external = tensor.varint() == kExternal;
  }
  if (is_external)
    user_error(
        "{}: the tensor '{}' of an attribute, a subgraph or a function lies in another file, which "
        "the quantised file would not find; write the model with its tensors inside: "
        "onnx.save(onnx.load(FILE), NEW)",
        what, name);
}

void refuse_external_sparse_tensor(std::string_view message, const std::string& what) {
  constexpr uint32_t kValues = 1, kIndices = 2;
  ProtobufReader sparse(message, what);
  while (sparse.next())
    if (sparse.field() == kValues || sparse.field() == kIndices)
      refuse_external_tensor(sparse.bytes(), what);
}

void refuse_external_in_node(std::string_view message, const std::string& what);

/// Searches a subgraph. The recursion is bounded, because File::load() limits the nesting.
void refuse_external_in_subgraph(std::string_view message, const std::string& what) {
  ProtobufReader graph(message, what);
  while (graph.next()) {
    if (graph.field() == kNodeField) refuse_external_in_node(graph.bytes(), what);
    if (graph.field() == kInitializerField) refuse_external_tensor(graph.bytes(), what);
    if (graph.field() == kSparseField) refuse_external_sparse_tensor(graph.bytes(), what);
  }
}

void refuse_external_in_node(std::string_view message, const std::string& what) {
  constexpr uint32_t kAttribute = 5;  // a field of NodeProto
  // The numbers of the fields of AttributeProto that hold tensors or graphs.
  constexpr uint32_t kTensor = 5, kGraph = 6, kTensors = 10, kSparse = 22, kSparses = 23;
  ProtobufReader node(message, what);
  while (node.next()) {
    if (node.field() != kAttribute) continue;
    ProtobufReader a(node.bytes(), what);
    while (a.next()) {
      if (a.field() == kTensor || a.field() == kTensors) refuse_external_tensor(a.bytes(), what);
      if (a.field() == kSparse || a.field() == kSparses)
        refuse_external_sparse_tensor(a.bytes(), what);
      if (a.field() == kGraph) refuse_external_in_subgraph(a.bytes(), what);
    }
  }
}

void refuse_external_in_function(std::string_view message, const std::string& what) {
  constexpr uint32_t kNode = 7;  // of FunctionProto
  ProtobufReader function(message, what);
  while (function.next())
    if (function.field() == kNode) refuse_external_in_node(function.bytes(), what);
}

}  // namespace

std::vector<OnnxWeight> onnx_weights(const onnx::File& file, int64_t bits) {
  const std::string& what = file.what();
  for (const onnx::NodeProto& n : file.graph.nodes)
    if (is_quantised_operator(n.op_type))
      user_error(
          "{} is quantised already (it has {}): quantise the file that it was made from, because "
          "errors would add up",
          what, n.op_type);
  const int64_t opset = opset_of(file), needed = bits == 8 ? kOpsetOfAxes : kOpsetOfBlocks;
  if (opset < needed)
    user_error("{} has opset {}, and weights of {} bits need opset {} or newer; export it again{}",
               what, opset, bits, needed, bits == 4 ? ", or use --bits 8" : "");
  const auto uses = uses_of_values(file.graph);
  std::vector<OnnxWeight> weights;
  for (const onnx::TensorProto& t : file.graph.initializers) {
    const auto use = uses.find(t.name);
    if (use == uses.end() || !use->second.multiplied || use->second.has_other_use) continue;
    if (t.type != onnx::ElementType::f32 || t.dims.size() != 2) continue;
    if (!is_worth_quantizing({t.dims[0], t.dims[1]})) continue;
    const bool outputs_first = use->second.outputs_first;
    weights.push_back({std::string(t.name), use->second.node, t.dims[outputs_first ? 0 : 1],
                       t.dims[outputs_first ? 1 : 0], outputs_first});
  }
  if (weights.empty())
    user_error(
        "{}: no MatMul or Gemm has an f32 initializer of {} elements and {} inputs and outputs "
        "that nothing else reads",
        what, with_commas(kLeastQuantizedElements), kLeastQuantizedSize);
  return weights;
}

namespace {

/// Throws UserError where groups do not divide the inputs of a weight, as for a folder's layers.
void check_groups(const std::vector<OnnxWeight>& weights, int64_t group, const std::string& what) {
  std::vector<LinearLayer> layers;
  for (const OnnxWeight& w : weights) {
    LinearLayer& layer = layers.emplace_back();
    layer.tensor = w.initializer;
    layer.outputs = w.outputs;
    layer.inputs = w.inputs;
  }
  chosen_layers(layers, {}, group, what);
}

}  // namespace

std::vector<OnnxWeight> chosen_onnx_weights(const std::vector<OnnxWeight>& weights,
                                            const std::vector<std::string>& keep, int64_t group,
                                            const std::string& what) {
  for (const std::string& name : keep)
    if (std::ranges::none_of(weights, [&](const OnnxWeight& w) {
          return matches_name(w.initializer, name) || matches_name(w.node, name);
        })) {
      std::vector<std::string> all;
      for (const OnnxWeight& w : weights) all.push_back(w.initializer);
      usage_error("--keep {}: {} has no such weight or node; there are: {}", name, what,
                  listed(all, 8));
    }
  std::vector<OnnxWeight> chosen;
  for (const OnnxWeight& w : weights) {
    if (std::ranges::any_of(keep, [&](const std::string& name) {
          return matches_name(w.initializer, name) || matches_name(w.node, name);
        }))
      continue;
    chosen.push_back(w);
  }
  if (chosen.empty()) usage_error("--keep: nothing of {} is left to quantise", what);
  check_groups(chosen, group, what);
  return chosen;
}

QuantizedOnnx::QuantizedOnnx(const fs::path& path, int64_t bits, int64_t group,
                             const std::vector<OnnxWeight>& chosen) {
  const std::shared_ptr<const onnx::File> file = onnx::File::load(path);
  const std::string what = path.string();
  std::map<std::string_view, const OnnxWeight*> by_name;
  for (const OnnxWeight& w : chosen) by_name[w.initializer] = &w;
  std::map<std::string_view, const onnx::TensorProto*> tensors;
  for (const onnx::TensorProto& t : file->graph.initializers) tensors[t.name] = &t;

  UsedNames used(file->graph);
  ProtobufWriter nodes, initializers;
  for (const OnnxWeight& w : chosen) {
    const onnx::TensorProto& t = *tensors.at(w.initializer);
    const NewNames names(used, w.initializer);
    const std::vector<float> numbers = numbers_of(t, w, what);
    const IntegerMatrix q = quantize(numbers, {w.outputs, w.inputs, bits, group});
    std::vector<float> back(numbers.size());
    dequantize(q.form, q.integers, q.scales, back);
    weights_.push_back({w, relative_error(numbers, back)});
    const std::vector<int8_t> integers =
        as_stored(q.integers, w.outputs, w.inputs, w.outputs_first);
    const std::string raw = bits == 4 ? packed_nibbles(integers) : std::string(bytes_of(integers));
    initializers.message(
        kInitializerField,
        tensor_message(names.integers, bits == 4 ? onnx::ElementType::i4 : onnx::ElementType::i8,
                       t.dims, raw));
    const int64_t groups = q.form.groups();
    std::vector<int64_t> dims{w.outputs};
    if (group > 0)
      dims = w.outputs_first ? std::vector{w.outputs, groups} : std::vector{groups, w.outputs};
    initializers.message(
        kInitializerField,
        tensor_message(names.scale, onnx::ElementType::f32, dims,
                       bytes_of(as_stored(q.scales, w.outputs, groups, w.outputs_first))));
    nodes.message(kNodeField, dequantize_node(w, names, group));
  }

  const MappedFile map(path);
  ProtobufReader model(map.text(), what);
  ProtobufWriter result;
  const std::string new_nodes = nodes.str(), new_initializers = initializers.str();
  while (model.next()) {
    if (model.field() != kGraphField) {
      if (model.field() == kFunctionField) refuse_external_in_function(model.bytes(), what);
      copy_field(model, result);
      continue;
    }
    ProtobufReader graph(model.bytes(), what);
    // Concatenated messages merge: prepend the new nodes.
    std::string body = new_nodes;
    while (graph.next()) {
      ProtobufWriter field;
      if (graph.field() == kInitializerField) {
        ProtobufReader tensor(graph.bytes(), what);
        std::string_view name;
        while (tensor.next())
          if (tensor.field() == 8) name = tensor.bytes();
        if (by_name.contains(name)) continue;
        // Tensors of other files come into this one, which may lie elsewhere.
        if (const onnx::TensorProto& t = *tensors.at(name); t.is_external)
          field.message(
              kInitializerField,
              tensor_message(std::string(name), t.type, t.dims,
                             {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}));
        else
          copy_field(graph, field);
      } else {
        if (graph.field() == kNodeField) refuse_external_in_node(graph.bytes(), what);
        if (graph.field() == kSparseField) refuse_external_sparse_tensor(graph.bytes(), what);
        copy_field(graph, field);
      }
      body += field.str();
    }
    body += new_initializers;
    result.text(kGraphField, body);
  }
  if (result.size() > kLargestFile)
    user_error("{} would have more than 2 GiB with its weights inside, which ONNX does not allow",
               what);
  bytes_ = result.str();
}

}  // namespace brrr::io
