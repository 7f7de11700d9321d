#include "folders/quantized/quantized_onnx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/human.h"
#include "formats/protobuf.h"
#include "formats/protobuf_writer.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {
namespace {

constexpr int64_t kOpsetOfAxes = 13, kOpsetOfBlocks = 21;  // of DequantizeLinear
constexpr uint64_t kLargestFile = INT32_MAX;
// The numbers of the fields of ModelProto and GraphProto that are replaced.
constexpr uint32_t kGraphField = 7, kNodeField = 1, kInitializerField = 5;
constexpr const char *kIntegersSuffix = "_quantized", *kScaleSuffix = "_scale";

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
  bool multiplied = false, outputs_first = false, is_other = false;

  void multiply(std::string_view by, bool has_outputs_first) {
    is_other |= multiplied && outputs_first != has_outputs_first;
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
    for (const std::string_view name : n.inputs) uses[name].is_other = true;
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) use_all_otherwise(*a.graph, uses);
  }
  for (const onnx::ValueInfo& output : graph.outputs) uses[output.name].is_other = true;
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
        uses[n.inputs[i]].is_other = true;
    }
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) use_all_otherwise(*a.graph, uses);
  }
  for (const onnx::ValueInfo& v : graph.outputs) uses[v.name].is_other = true;
  // A caller may replace an initializer that is an input, too.
  for (const onnx::ValueInfo& v : graph.inputs) uses[v.name].is_other = true;
  // What multiplies by a transposed matrix multiplies by the matrix.
  for (const onnx::NodeProto& n : graph.nodes) {
    if (!swaps_axes(n)) continue;
    const ValueUse transposed = uses[n.outputs[0]];
    ValueUse& use = uses[n.inputs[0]];
    use.is_other |= transposed.is_other;
    if (transposed.multiplied) use.multiply(transposed.node, !transposed.outputs_first);
  }
  return uses;
}

bool names(const std::string& whole, const std::string& part) {
  if (whole == part) return true;
  const auto is_border = [](char c) { return c == '.' || c == '/'; };
  for (size_t at = whole.find(part); at != std::string::npos; at = whole.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || is_border(whole[at - 1])) && (end == whole.size() || is_border(whole[end])))
      return true;
  }
  return false;
}

/// The numbers of a weight as [outputs, inputs].
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

/// A matrix [outputs, columns] as it is stored: as it is, or transposed.
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

/// The node that makes the floats, under the initializer's own name.
ProtobufWriter dequantize_node(const OnnxWeight& w, int64_t group) {
  ProtobufWriter n;
  n.text(1, w.initializer + kIntegersSuffix);
  n.text(1, w.initializer + kScaleSuffix);
  n.text(2, w.initializer);
  n.text(3, w.initializer + "_DequantizeLinear");
  n.text(4, "DequantizeLinear");
  // Per channel the axis is that of the outputs, in blocks that of the inputs.
  const bool axis_is_first = w.outputs_first == (group == 0);
  add_integer_attribute(n, "axis", axis_is_first ? 0 : 1);
  if (group > 0) add_integer_attribute(n, "block_size", group);
  return n;
}

std::string_view text_of(const auto& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])};
}

/// Copies a field, which is no fixed number.
void copy_field(const ProtobufReader& from, ProtobufWriter& to) {
  if (from.is_bytes())
    to.view(from.field(), std::as_bytes(std::span(from.bytes().data(), from.bytes().size())));
  else
    to.varint(from.field(), from.varint());
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
    if (use == uses.end() || !use->second.multiplied || use->second.is_other) continue;
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

std::vector<OnnxWeight> chosen_onnx_weights(const std::vector<OnnxWeight>& weights,
                                            const std::vector<std::string>& keep, int64_t group,
                                            const std::string& what) {
  for (const std::string& name : keep)
    if (std::ranges::none_of(weights, [&](const OnnxWeight& w) {
          return names(w.initializer, name) || names(w.node, name);
        })) {
      std::vector<std::string> all;
      for (const OnnxWeight& w : weights) all.push_back(w.initializer);
      usage_error("--keep {}: {} has no such weight or node; there are: {}", name, what,
                  listed(all, 8));
    }
  std::vector<OnnxWeight> chosen;
  for (const OnnxWeight& w : weights) {
    if (std::ranges::any_of(keep, [&](const std::string& name) {
          return names(w.initializer, name) || names(w.node, name);
        }))
      continue;
    if (group > 0 && w.inputs % group != 0)
      user_error(
          "{}: {} has {} inputs, which groups of {} do not divide; use another --group-size, "
          "--bits 8, or --keep {}",
          what, w.initializer, w.inputs, group, w.initializer);
    chosen.push_back(w);
  }
  if (chosen.empty()) usage_error("--keep: nothing of {} is left to quantise", what);
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

  ProtobufWriter nodes, initializers;
  for (const OnnxWeight& w : chosen) {
    const onnx::TensorProto& t = *tensors.at(w.initializer);
    for (const char* suffix : {kIntegersSuffix, kScaleSuffix})
      if (tensors.contains(w.initializer + suffix))
        user_error("{} has a tensor {} already", what, w.initializer + suffix);
    const std::vector<float> numbers = numbers_of(t, w, what);
    const IntegerMatrix q = quantize(numbers, {w.outputs, w.inputs, bits, group});
    std::vector<float> back(numbers.size());
    dequantize(q.form, q.integers, q.scales, back);
    weights_.push_back({w, relative_error(numbers, back)});
    const std::vector<int8_t> integers =
        as_stored(q.integers, w.outputs, w.inputs, w.outputs_first);
    const std::string raw = bits == 4 ? packed_nibbles(integers) : std::string(text_of(integers));
    initializers.message(
        kInitializerField,
        tensor_message(w.initializer + kIntegersSuffix,
                       bits == 4 ? onnx::ElementType::i4 : onnx::ElementType::i8, t.dims, raw));
    const int64_t groups = q.form.groups();
    std::vector<int64_t> dims{w.outputs};
    if (group > 0)
      dims = w.outputs_first ? std::vector{w.outputs, groups} : std::vector{groups, w.outputs};
    initializers.message(
        kInitializerField,
        tensor_message(w.initializer + kScaleSuffix, onnx::ElementType::f32, dims,
                       text_of(as_stored(q.scales, w.outputs, groups, w.outputs_first))));
    nodes.message(kNodeField, dequantize_node(w, group));
  }

  const MappedFile map(path);
  ProtobufReader model(map.text(), what);
  ProtobufWriter result;
  const std::string new_nodes = nodes.str(), new_initializers = initializers.str();
  while (model.next()) {
    if (model.field() != kGraphField) {
      copy_field(model, result);
      continue;
    }
    ProtobufReader graph(model.bytes(), what);
    // Messages that are joined are fields one behind the other: first the nodes that make weights.
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
