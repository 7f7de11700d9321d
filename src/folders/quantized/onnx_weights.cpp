#include "folders/quantized/onnx_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "base/errors.h"
#include "base/human.h"
#include "folders/quantized/quantized_model.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {
namespace {

constexpr int64_t kOpsetOfAxes = 13, kOpsetOfBlocks = 21;  // of DequantizeLinear
/// Reads of one constant that are followed, through moving nodes. Graphs that double the reads with
/// each node would else take forever.
constexpr int kMostReads = 10'000;

bool is_one_of(std::string_view op, const auto& names) {
  return std::ranges::find(names, op) != names.end();
}

/// Operators that only quantised files have.
bool is_quantised_operator(std::string_view op) {
  constexpr std::array<std::string_view, 13> kNames = {
      "QuantizeLinear",        "DequantizeLinear",     "MatMulInteger", "DynamicQuantizeLinear",
      "QLinearMatMul",         "QLinearConv",          "ConvInteger",   "MatMulNBits",
      "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",         "QAttention",
      "DynamicQuantizeLSTM"};
  return is_one_of(op, kNames);
}

bool is_of_onnx(const onnx::NodeProto& n) { return n.domain.empty() || n.domain == "ai.onnx"; }

int64_t opset_of(const onnx::File& file) {
  for (const std::string_view domain : {"", "ai.onnx"})
    if (const auto at = file.opsets.find(domain); at != file.opsets.end()) return at->second;
  return 1;
}

/// The name of the first quantised operator; "": none.
std::string_view quantised_operator_of(const onnx::GraphProto& graph) {
  for (const onnx::NodeProto& n : graph.nodes) {
    if (is_quantised_operator(n.op_type)) return n.op_type;
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph)
        if (const std::string_view op = quantised_operator_of(*a.graph); !op.empty()) return op;
  }
  return "";
}

struct OnnxScope;

/// An input of a node.
struct OnnxRead {
  const OnnxScope* scope;
  size_t node;
  size_t input;
};

struct OnnxValue {
  const onnx::TensorProto* constant = nullptr;
  std::optional<size_t> constant_node;  // the Constant node that gives it
  std::vector<OnnxRead> reads;
  bool is_visible = false;  // outside of its graph
};

/// One graph of the file, and the values that it defines.
struct OnnxScope {
  const onnx::GraphProto* graph = nullptr;
  OnnxScope* outer = nullptr;
  size_t index = 0;
  std::map<std::string_view, OnnxValue> values;
};

const onnx::TensorProto* tensor_of_constant(const onnx::NodeProto& n) {
  if (!is_of_onnx(n) || n.op_type != "Constant" || n.outputs.size() != 1) return nullptr;
  const onnx::AttributeProto* const value = n.find("value");
  return value == nullptr ? nullptr : value->tensor.get();
}

/// The graphs of a file, numbered as OnnxWeight::graph.
class OnnxScopes {
 public:
  explicit OnnxScopes(const onnx::GraphProto& main) { add(main, nullptr); }
  const std::deque<OnnxScope>& all() const { return scopes_; }

 private:
  static OnnxValue& find(OnnxScope& scope, std::string_view name) {
    for (OnnxScope* s = &scope; s != nullptr; s = s->outer)
      if (const auto at = s->values.find(name); at != s->values.end()) return at->second;
    return scope.values[name];
  }

  void add(const onnx::GraphProto& graph, OnnxScope* outer) {
    OnnxScope& scope = scopes_.emplace_back();
    scope.graph = &graph;
    scope.outer = outer;
    scope.index = scopes_.size() - 1;
    for (const onnx::TensorProto& t : graph.initializers) scope.values[t.name].constant = &t;
    // A caller may replace an initializer that is an input, too.
    for (const onnx::ValueInfo& v : graph.inputs) scope.values[v.name].is_visible = true;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const onnx::NodeProto& n = graph.nodes[i];
      for (size_t k = 0; k < n.inputs.size(); ++k)
        if (!n.inputs[k].empty()) find(scope, n.inputs[k]).reads.push_back({&scope, i, k});
      for (const onnx::AttributeProto& a : n.attributes)
        if (a.graph) add(*a.graph, &scope);
      for (const std::string_view name : n.outputs) scope.values[name];
      if (const onnx::TensorProto* const t = tensor_of_constant(n)) {
        scope.values[n.outputs[0]].constant = t;
        scope.values[n.outputs[0]].constant_node = i;
      }
    }
    for (const onnx::ValueInfo& v : graph.outputs) find(scope, v.name).is_visible = true;
  }

  std::deque<OnnxScope> scopes_;
};

/// The elements of a constant list of integers; nothing where it is not known.
std::optional<std::vector<int64_t>> constant_integers(const OnnxScope& scope,
                                                      std::string_view name) {
  for (const OnnxScope* s = &scope; s != nullptr; s = s->outer) {
    const auto at = s->values.find(name);
    if (at == s->values.end()) continue;
    if (const onnx::TensorProto* const t = at->second.constant) {
      if (t->type != onnx::ElementType::i64 || at->second.is_visible) return std::nullopt;
      std::vector<int64_t> numbers(t->bytes.size() / sizeof(int64_t));
      std::memcpy(numbers.data(), t->bytes.data(), numbers.size() * sizeof(int64_t));
      return numbers;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

/// How a value's elements are those of a constant: for each of its axes the axis of the constant
/// (-1: of none), and the size (-1: not known).
struct OnnxView {
  std::vector<int> axes;
  std::vector<int64_t> dims;

  int rank() const { return static_cast<int>(axes.size()); }
};

OnnxView view_transposed(const OnnxView& v, const onnx::NodeProto& n) {
  std::vector<int64_t> order;
  if (const onnx::AttributeProto* const perm = n.find("perm"))
    order = perm->integers;
  else
    for (int a = v.rank(); a-- > 0;) order.push_back(a);
  OnnxView to;
  for (const int64_t a : order) {
    if (a < 0 || a >= v.rank()) return {};
    to.axes.push_back(v.axes[static_cast<size_t>(a)]);
    to.dims.push_back(v.dims[static_cast<size_t>(a)]);
  }
  return to;
}

/// The list of axes of a Squeeze or an Unsqueeze, counted from the front of `rank` axes.
std::optional<std::vector<int64_t>> axes_of(const OnnxScope& scope, const onnx::NodeProto& n,
                                            int64_t rank) {
  if (n.inputs.size() < 2) return std::nullopt;
  auto axes = constant_integers(scope, n.inputs[1]);
  if (!axes) return std::nullopt;
  for (int64_t& a : *axes) {
    if (a < 0) a += rank;
    if (a < 0 || a >= rank) return std::nullopt;
  }
  std::ranges::sort(*axes);
  return axes;
}

OnnxView view_unsqueezed(OnnxView v, const OnnxScope& scope, const onnx::NodeProto& n) {
  const auto given = n.inputs.size() < 2 ? std::nullopt : constant_integers(scope, n.inputs[1]);
  if (!given || given->size() > 8) return {};
  const auto axes = axes_of(scope, n, v.rank() + std::ssize(*given));
  if (!axes) return {};
  for (const int64_t a : *axes) {
    if (a > v.rank()) return {};
    v.axes.insert(v.axes.begin() + a, -1);
    v.dims.insert(v.dims.begin() + a, 1);
  }
  return v;
}

OnnxView view_squeezed(OnnxView v, const OnnxScope& scope, const onnx::NodeProto& n) {
  const auto axes = axes_of(scope, n, v.rank());
  if (!axes) return {};
  for (auto a = axes->rbegin(); a != axes->rend(); ++a) {
    if (*a >= v.rank()) return {};
    v.axes.erase(v.axes.begin() + *a);
    v.dims.erase(v.dims.begin() + *a);
  }
  return v;
}

/// An axis before and after a Reshape is the same where its size and all in front of it agree.
OnnxView view_reshaped(const OnnxView& v, const OnnxScope& scope, const onnx::NodeProto& n) {
  if (n.inputs.size() < 2 || std::ranges::find(v.dims, -1) != v.dims.end()) return {};
  auto to = constant_integers(scope, n.inputs[1]);
  if (!to) return {};
  int64_t elements = 1, others = 1;
  for (const int64_t d : v.dims) elements *= d;
  for (size_t i = 0; i < to->size(); ++i) {
    if ((*to)[i] == 0 && i < v.dims.size()) (*to)[i] = v.dims[i];
    if ((*to)[i] == 0 || (*to)[i] < -1 || (*to)[i] > elements) return {};
    if ((*to)[i] > 0) others *= (*to)[i];
    if (others > elements) return {};
  }
  OnnxView r{std::vector<int>(to->size(), -1), *to};
  for (int64_t& d : r.dims)
    if (d == -1) d = elements / others;
  int64_t before = 1;
  for (size_t i = 0; i < r.dims.size(); before *= r.dims[i++]) {
    int64_t source_before = 1;
    for (size_t k = 0; k < v.dims.size(); source_before *= v.dims[k++])
      if (source_before == before && v.dims[k] == r.dims[i]) r.axes[i] = v.axes[k];
  }
  return r;
}

/// The view behind a node that only moves elements; one without axes for any other node.
OnnxView view_moved(const OnnxView& v, const OnnxRead& read, const onnx::NodeProto& n) {
  constexpr std::array<std::string_view, 4> kKeepAxes = {"Identity", "Slice", "Split", "Concat"};
  if (!is_of_onnx(n) || (read.input > 0 && n.op_type != "Concat")) return {};
  if (n.op_type == "Cast") {
    const onnx::AttributeProto* const to = n.find("to");
    const auto type =
        to == nullptr ? onnx::ElementType::undefined : static_cast<onnx::ElementType>(to->integer);
    const bool is_float = type == onnx::ElementType::f32 || type == onnx::ElementType::f16;
    return is_float ? v : OnnxView{};
  }
  if (is_one_of(n.op_type, kKeepAxes)) {
    OnnxView to = v;
    if (n.op_type != "Identity") std::ranges::fill(to.dims, -1);
    return to;
  }
  if (n.op_type == "Transpose") return view_transposed(v, n);
  if (n.op_type == "Unsqueeze") return view_unsqueezed(v, *read.scope, n);
  if (n.op_type == "Squeeze") return view_squeezed(v, *read.scope, n);
  if (n.op_type == "Reshape") return view_reshaped(v, *read.scope, n);
  return {};
}

/// How a node multiplies by what it reads as this input.
struct WeightUse {
  OnnxProduct::Kind kind;
  int axis;  // of the weight's outputs
};

/// Nothing where the input is no weight.
std::optional<WeightUse> use_as_weight(const onnx::NodeProto& n, size_t input, int rank) {
  using Kind = OnnxProduct::Kind;
  constexpr std::array<std::string_view, 3> kRecurrent = {"LSTM", "GRU", "RNN"};
  if (!is_of_onnx(n)) return std::nullopt;
  // W and R: [directions, gates * hidden, inputs]
  if (is_one_of(n.op_type, kRecurrent) && rank == 3 && (input == 1 || input == 2))
    return WeightUse{Kind::recurrent, 1};
  if (input != 1 || rank < 2) return std::nullopt;
  if (n.op_type == "MatMul") return WeightUse{Kind::matrix, rank - 1};
  if (n.op_type == "Gemm" && rank == 2) {
    const onnx::AttributeProto* const trans_b = n.find("transB");
    return WeightUse{Kind::matrix, trans_b != nullptr && trans_b->integer != 0 ? 0 : 1};
  }
  if (n.op_type == "Conv" && rank > 2) return WeightUse{Kind::convolution, 0};
  // [inputs, outputs of a group, ...]
  if (n.op_type == "ConvTranspose" && rank > 2) return WeightUse{Kind::transposed_convolution, 1};
  return std::nullopt;
}

/// Finds the products that read a constant. Nothing where something else reads it, too, or where
/// they do not agree on the axis of the outputs.
class OnnxTracer {
 public:
  bool run(const OnnxValue& constant, int rank, const std::vector<int64_t>& dims) {
    OnnxView whole{{}, dims};
    for (int a = 0; a < rank; ++a) whole.axes.push_back(a);
    std::vector<std::pair<const OnnxValue*, OnnxView>> open{{&constant, whole}};
    int reads = 0;
    while (!open.empty()) {
      const auto [value, view] = std::move(open.back());
      open.pop_back();
      if (value->is_visible) return false;
      for (const OnnxRead& read : value->reads) {
        if (++reads > kMostReads) return false;
        const onnx::NodeProto& n = read.scope->graph->nodes[read.node];
        if (const auto use = use_as_weight(n, read.input, view.rank())) {
          if (!add_product(*use, view, read, n)) return false;
          continue;
        }
        const OnnxView next = view_moved(view, read, n);
        if (next.axes.empty()) return false;
        for (const std::string_view name : n.outputs)
          if (!name.empty()) open.emplace_back(&read.scope->values.at(name), next);
      }
    }
    std::ranges::sort(products, [](const OnnxProduct& a, const OnnxProduct& b) {
      return std::pair(a.graph, a.node) < std::pair(b.graph, b.node);
    });
    // A node may read two slices of one constant.
    const auto end = std::unique(
        products.begin(), products.end(),
        [](const auto& a, const auto& b) { return a.graph == b.graph && a.node == b.node; });
    products.erase(end, products.end());
    return !products.empty();
  }

  std::optional<int> axis;
  std::vector<OnnxProduct> products;

 private:
  bool add_product(const WeightUse& use, const OnnxView& view, const OnnxRead& read,
                   const onnx::NodeProto& n) {
    const int of = view.axes[static_cast<size_t>(use.axis)];
    if (of < 0 || (axis && *axis != of)) return false;
    axis = of;
    products.push_back(
        {use.kind, read.scope->index, read.node, std::string(n.name), std::string(n.inputs[0])});
    return true;
  }
};

/// The weight that a constant is; nothing where it is none, or too small.
std::optional<OnnxWeight> weight_of(const OnnxScope& scope, std::string_view name, int64_t bits) {
  const auto at = scope.values.find(name);
  if (at == scope.values.end() || at->second.constant == nullptr) return std::nullopt;
  const onnx::TensorProto& t = *at->second.constant;
  if (t.type != onnx::ElementType::f32 && t.type != onnx::ElementType::f16) return std::nullopt;
  if (t.dims.size() < 2 || t.elements() < kLeastQuantizedElements) return std::nullopt;
  OnnxTracer tracer;
  if (!tracer.run(at->second, static_cast<int>(t.dims.size()), t.dims)) return std::nullopt;
  OnnxWeight w;
  w.initializer = name;
  w.node = tracer.products[0].name;
  w.dims = t.dims;
  w.axis = *tracer.axis;
  w.outputs = t.dims[static_cast<size_t>(w.axis)];
  w.inputs = t.elements() / w.outputs;
  w.graph = scope.index;
  w.is_constant_node = at->second.constant_node.has_value();
  w.constant_node = at->second.constant_node.value_or(0);
  w.type = t.type;
  w.products = std::move(tracer.products);
  if (!is_worth_quantizing({w.outputs, w.inputs})) return std::nullopt;
  const bool is_matrix = w.dims.size() == 2 && std::ranges::all_of(w.products, [](const auto& p) {
                           return p.kind == OnnxProduct::Kind::matrix;
                         });
  return bits == 8 || is_matrix ? std::optional(w) : std::nullopt;
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

std::vector<OnnxWeight> onnx_weights(const onnx::File& file, int64_t bits) {
  const std::string& what = file.what();
  if (const std::string_view op = quantised_operator_of(file.graph); !op.empty())
    user_error(
        "{} is quantised already (it has {}): quantise the file that it was made from, because "
        "errors would add up",
        what, op);
  const int64_t opset = opset_of(file), needed = bits == 8 ? kOpsetOfAxes : kOpsetOfBlocks;
  if (opset < needed)
    user_error("{} has opset {}, and weights of {} bits need opset {} or newer; export it again{}",
               what, opset, bits, needed, bits == 4 ? ", or use --bits 8" : "");
  const OnnxScopes scopes(file.graph);
  std::vector<OnnxWeight> weights;
  const auto add = [&](const OnnxScope& scope, std::string_view name) {
    if (auto w = weight_of(scope, name, bits)) weights.push_back(std::move(*w));
  };
  for (const OnnxScope& scope : scopes.all()) {
    for (const onnx::TensorProto& t : scope.graph->initializers) add(scope, t.name);
    for (const onnx::NodeProto& n : scope.graph->nodes)
      if (tensor_of_constant(n) != nullptr) add(scope, n.outputs[0]);
  }
  if (weights.empty())
    user_error(
        "{}: no {} has an f32 or f16 constant of {} elements and {} inputs and outputs that "
        "nothing else reads",
        what, bits == 8 ? "MatMul, Gemm, Conv, LSTM or GRU" : "MatMul or Gemm",
        with_commas(kLeastQuantizedElements), kLeastQuantizedSize);
  return weights;
}

std::vector<OnnxWeight> chosen_onnx_weights(const std::vector<OnnxWeight>& weights,
                                            const std::vector<std::string>& keep, int64_t group,
                                            const std::string& what) {
  const auto is_named = [](const OnnxWeight& w, const std::string& name) {
    return matches_name(w.initializer, name) || std::ranges::any_of(w.products, [&](const auto& p) {
             return matches_name(p.name, name);
           });
  };
  for (const std::string& name : keep)
    if (std::ranges::none_of(weights, [&](const OnnxWeight& w) { return is_named(w, name); })) {
      std::vector<std::string> all;
      for (const OnnxWeight& w : weights) all.push_back(w.initializer);
      usage_error("--keep {}: {} has no such weight or node; there are: {}", name, what,
                  listed(all, 8));
    }
  std::vector<OnnxWeight> chosen;
  for (const OnnxWeight& w : weights)
    if (std::ranges::none_of(keep, [&](const std::string& name) { return is_named(w, name); }))
      chosen.push_back(w);
  if (chosen.empty()) usage_error("--keep: nothing of {} is left to quantise", what);
  check_groups(chosen, group, what);
  return chosen;
}

}  // namespace brrr::io
