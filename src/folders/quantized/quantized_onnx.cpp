#include "folders/quantized/quantized_onnx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/errors.h"
#include "folders/quantized/onnx_rewriter.h"

namespace brrr::io {
namespace {

/// The sizes of a tensor around one of its axes.
struct Around {
  int64_t outer = 1, size = 1, inner = 1;

  Around(const std::vector<int64_t>& dims, int axis) {
    for (int a = 0; a < static_cast<int>(dims.size()); ++a)
      (a < axis ? outer : a == axis ? size : inner) *= dims[static_cast<size_t>(a)];
  }
  /// The place in the tensor of an element of the matrix [size, outer * inner].
  size_t place(int64_t row, int64_t column) const {
    return static_cast<size_t>((column / inner * size + row) * inner + column % inner);
  }
  int64_t columns() const { return outer * inner; }
};

/// Returns the elements of a weight as a matrix [outputs, inputs].
std::vector<float> rows_of(const onnx::TensorProto& t, const OnnxWeight& w,
                           const std::string& what) {
  const DType dtype = *onnx::dtype_of(t.type);
  const Around around(w.dims, w.axis);
  std::vector<float> rows(static_cast<size_t>(w.outputs * w.inputs));
  for (int64_t n = 0; n < w.outputs; ++n)
    for (int64_t k = 0; k < w.inputs; ++k) {
      const double x =
          load_as_double(dtype, t.bytes.data(), static_cast<int64_t>(around.place(n, k)));
      if (!std::isfinite(x))
        user_error("{}: the initializer {} contains NaN or infinity; the file is damaged", what,
                   w.initializer);
      rows[static_cast<size_t>(n * w.inputs + k)] = static_cast<float>(x);
    }
  return rows;
}

/// Moves the first axis of a matrix [dims[axis], all other dims] back to `axis`, so that the
/// numbers are in the row-major order of a tensor [dims].
template <typename T>
std::vector<T> as_stored(const std::vector<T>& rows, const std::vector<int64_t>& dims, int axis) {
  const Around around(dims, axis);
  std::vector<T> stored(rows.size());
  for (int64_t n = 0; n < around.size; ++n)
    for (int64_t c = 0; c < around.columns(); ++c)
      stored[around.place(n, c)] = rows[static_cast<size_t>(n * around.columns() + c)];
  return stored;
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

std::string_view bytes_of(const auto& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])};
}

bool reads_quantizable_rows(const OnnxWeight& w, const OnnxProduct& p) {
  return w.type == onnx::ElementType::f32 && p.graph == 0 &&
         (p.kind == OnnxProduct::Kind::matrix || p.kind == OnnxProduct::Kind::convolution);
}

bool feeds_recurrent(const OnnxWeight& w) {
  return std::ranges::any_of(
      w.products, [](const OnnxProduct& p) { return p.kind == OnnxProduct::Kind::recurrent; });
}

/// The graphs of a file, numbered as OnnxWeight::graph.
void list_graphs(const onnx::GraphProto& graph, std::vector<const onnx::GraphProto*>& list) {
  list.push_back(&graph);
  for (const onnx::NodeProto& n : graph.nodes)
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) list_graphs(*a.graph, list);
}

const onnx::TensorProto& tensor_of(const onnx::GraphProto& graph, const OnnxWeight& w) {
  if (w.is_constant_node) return *graph.nodes.at(w.constant_node).find("value")->tensor;
  return *std::ranges::find(graph.initializers, w.initializer, &onnx::TensorProto::name);
}

/// Adds what replaces weights and activations to the changes of a file.
class OnnxChanger {
 public:
  OnnxChanger(const onnx::File& file, int64_t bits, int64_t group, bool has_activations)
      : used_(file.graph), bits_(bits), group_(group), has_activations_(has_activations) {}

  /// Replaces a weight. The output of the last node that is added has its name.
  QuantizedOnnx::Weight add_weight(const OnnxWeight& w, const onnx::TensorProto& t,
                                   const std::string& what) {
    const std::vector<float> rows = rows_of(t, w, what);
    const IntegerMatrix q = quantize(rows, {w.outputs, w.inputs, bits_, group_});
    std::vector<float> back(rows.size());
    dequantize(q.form, q.integers, q.scales, back);
    const std::vector<int8_t> integers = as_stored(q.integers, w.dims, w.axis);
    const std::string raw = bits_ == 4 ? packed_nibbles(integers) : std::string(bytes_of(integers));
    std::vector<int64_t> scale_dims{w.outputs};
    if (has_activations_ && feeds_recurrent(w)) {
      scale_dims.assign(w.dims.size(), 1);
      scale_dims[static_cast<size_t>(w.axis)] = w.outputs;
    }
    if (group_ > 0)
      scale_dims = w.axis == 0 ? std::vector{w.outputs, q.form.groups()}
                               : std::vector{q.form.groups(), w.outputs};
    const std::vector<float> scales =
        group_ > 0 ? as_stored(q.scales, scale_dims, w.axis) : q.scales;

    OnnxGraphChange& change = changes[w.graph];
    const std::string integers_name = used_.take(w.initializer + "_quantized"),
                      scale_name = used_.take(w.initializer + "_scale");
    add_initializer(change, integers_name,
                    bits_ == 4 ? onnx::ElementType::i4 : onnx::ElementType::i8, w.dims, raw);
    add_initializer(change, scale_name, onnx::ElementType::f32, scale_dims, bytes_of(scales));
    ProtobufWriter& nodes = w.is_constant_node ? change.before[w.constant_node] : change.first;
    if (w.is_constant_node)
      change.left_out_nodes.insert(w.constant_node);
    else
      change.left_out_initializers.insert(w.initializer);
    const bool is_half = w.type == onnx::ElementType::f16;
    const std::string floats = is_half ? used_.take(w.initializer + "_f32") : w.initializer;
    if (has_activations_ && feeds_recurrent(w))
      multiply(nodes, w, integers_name, scale_name, floats);
    else
      dequantize_linear(nodes, w, integers_name, scale_name, floats);
    // Before opset 19 the scale, and with it the output, is f32.
    if (is_half) cast(nodes, w, floats, w.initializer, onnx::ElementType::f16);
    return {w, relative_error(rows, back), static_cast<int64_t>(t.bytes.size()),
            std::ssize(raw) + std::ssize(scales) * int64_t{sizeof(float)}};
  }

  /// Rounds the value that products read to u8. They are those of `readers`, nodes of the main
  /// graph, in its order.
  void add_activation(const std::string& value, ActivationRange range,
                      const std::set<size_t>& readers) {
    const ActivationScale scale = activation_scale(range);
    OnnxGraphChange& change = changes[0];
    const std::string scale_name = used_.take(value + "_scale"),
                      zero_name = used_.take(value + "_zero_point"),
                      integers = used_.take(value + "_quantized"),
                      floats = used_.take(value + "_dequantized");
    add_initializer(change, scale_name, onnx::ElementType::f32, {},
                    bytes_of(std::span(&scale.scale, 1)));
    add_initializer(change, zero_name, onnx::ElementType::u8, {},
                    bytes_of(std::span(&scale.zero, 1)));
    ProtobufWriter& nodes = change.before[*readers.begin()];
    nodes.message(kOnnxNode, onnx_node("QuantizeLinear", used_.take(value + "_QuantizeLinear"),
                                       {value, scale_name, zero_name}, integers));
    nodes.message(kOnnxNode, onnx_node("DequantizeLinear", used_.take(value + "_DequantizeLinear"),
                                       {integers, scale_name, zero_name}, floats));
    for (const size_t reader : readers) change.inputs[reader][0] = floats;
  }

  OnnxChanges changes;

 private:
  void dequantize_linear(ProtobufWriter& nodes, const OnnxWeight& w, const std::string& integers,
                         const std::string& scale, const std::string& output) {
    // Per channel the axis is that of the outputs, in blocks that of the inputs.
    std::map<std::string, int64_t> attributes{{"axis", group_ == 0 ? w.axis : 1 - w.axis}};
    if (group_ > 0) attributes["block_size"] = group_;
    nodes.message(kOnnxNode,
                  onnx_node("DequantizeLinear", used_.take(w.initializer + "_DequantizeLinear"),
                            {integers, scale}, output, attributes));
  }

  /// Dequantises without DequantizeLinear, which OpenVINO does not compute ahead in a file with
  /// quantised activations, while its LSTM takes constant weights only. With a cast from 8 bits to
  /// f32 it would take the nodes for DequantizeLinear's.
  void multiply(ProtobufWriter& nodes, const OnnxWeight& w, const std::string& integers,
                const std::string& scale, const std::string& output) {
    const std::string wide = used_.take(w.initializer + "_i32"),
                      unscaled = used_.take(w.initializer + "_unscaled");
    cast(nodes, w, integers, wide, onnx::ElementType::i32);
    cast(nodes, w, wide, unscaled, onnx::ElementType::f32);
    nodes.message(kOnnxNode,
                  onnx_node("Mul", used_.take(w.initializer + "_Mul"), {unscaled, scale}, output));
  }

  void cast(ProtobufWriter& nodes, const OnnxWeight& w, const std::string& from,
            const std::string& output, onnx::ElementType to) {
    nodes.message(kOnnxNode, onnx_node("Cast", used_.take(w.initializer + "_Cast"), {from}, output,
                                       {{"to", static_cast<int64_t>(to)}}));
  }

  static void add_initializer(OnnxGraphChange& change, const std::string& name,
                              onnx::ElementType type, const std::vector<int64_t>& dims,
                              std::string_view raw) {
    change.initializers.message(kOnnxInitializer, onnx_tensor(name, type, dims, raw));
  }

  UsedOnnxNames used_;
  int64_t bits_, group_;
  bool has_activations_;  // that are quantised
};

}  // namespace

std::vector<std::string> quantizable_activations(const std::vector<OnnxWeight>& chosen) {
  std::map<size_t, std::string> by_node;
  for (const OnnxWeight& w : chosen)
    for (const OnnxProduct& p : w.products)
      if (reads_quantizable_rows(w, p)) by_node[p.node] = p.input;
  std::vector<std::string> values;
  for (const auto& [node, value] : by_node)
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  return values;
}

ActivationScale activation_scale(ActivationRange range) {
  constexpr double kMost = 255;
  const double low = std::min(0.0, static_cast<double>(range.low)),
               high = std::max(0.0, static_cast<double>(range.high));
  ActivationScale s;
  // A smaller scale would be subnormal.
  s.scale = static_cast<float>((high - low) / kMost);
  if (!std::isnormal(s.scale)) return {};
  s.zero = static_cast<uint8_t>(
      std::clamp(std::nearbyint(-low / static_cast<double>(s.scale)), 0.0, kMost));
  return s;
}

QuantizedOnnx::QuantizedOnnx(const fs::path& path, int64_t bits, int64_t group,
                             const std::vector<OnnxWeight>& chosen,
                             const ActivationRanges& ranges) {
  const std::shared_ptr<const onnx::File> file = onnx::File::load(path);
  std::vector<const onnx::GraphProto*> graphs;
  list_graphs(file->graph, graphs);
  OnnxChanger changer(*file, bits, group, !ranges.empty());
  std::map<std::string, std::set<size_t>> readers;
  for (const OnnxWeight& w : chosen) {
    weights_.push_back(changer.add_weight(w, tensor_of(*graphs.at(w.graph), w), path.string()));
    for (const OnnxProduct& p : w.products)
      if (reads_quantizable_rows(w, p) && ranges.contains(p.input)) readers[p.input].insert(p.node);
  }
  for (const auto& [value, nodes] : readers)
    changer.add_activation(value, ranges.find(value)->second, nodes);
  bytes_ = rewritten_onnx(path, *file, changer.changes);
}

}  // namespace brrr::io
