#pragma once
// Graphs of one's own: inputs, parameters where they are used, every op of docs/ops.md.
//
//     brrr::Graph g;
//     auto x = g.input("pixels", brrr::f32, {64, 784}), y = g.input("labels", brrr::i32, {64});
//     auto h = brrr::gelu(brrr::linear(x, 256));
//     g.output("loss", brrr::cross_entropy(brrr::linear(h, 10), y));

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brrr/module.h"
#include "brrr/tensor.h"

namespace brrr {
inline namespace v1 {

class Graph;

/// A tensor of a graph that is not computed yet. A handle: it is valid as long as its graph.
struct Value {
  std::shared_ptr<brrr_graph> graph;
  brrr_value id{};

  DType dtype() const {
    brrr_dtype found = BRRR_F32;
    detail::check(brrr_graph_type(graph.get(), id, &found, nullptr, nullptr, 0));
    return static_cast<DType>(found);
  }
  std::vector<int64_t> sizes() const {
    int rank = 0;
    std::array<int64_t, 64> found{};
    detail::check(brrr_graph_type(graph.get(), id, nullptr, &rank, found.data(), found.size()));
    return {found.begin(), found.begin() + rank};
  }
  /// The size of an axis; negative axes count from the last.
  int64_t size(int axis) const {
    const std::vector<int64_t> all = sizes();
    if (axis < 0) axis += static_cast<int>(all.size());
    if (axis < 0 || axis >= static_cast<int>(all.size()))
      throw Error(BRRR_USAGE, "the value has " + std::to_string(all.size()) + " axes");
    return all[static_cast<size_t>(axis)];
  }
};

/// Appends an op of docs/ops.md. attributes: "{axis=1, eps=1e-05}". The functions of brrr/ops.h
/// call it.
inline std::vector<Value> call(const std::shared_ptr<brrr_graph>& graph, const char* op,
                               std::initializer_list<Value> operands,
                               const std::string& attributes = "") {
  std::vector<brrr_value> ids, results(16);
  for (const Value& v : operands) {
    if (v.graph != graph) throw Error(BRRR_USAGE, std::string(op) + ": values of two graphs");
    ids.push_back(v.id);
  }
  size_t count = 0;
  detail::check(brrr_graph_call(graph.get(), op, ids.data(), ids.size(), attributes.c_str(),
                                results.data(), results.size(), &count));
  std::vector<Value> list;
  for (size_t i = 0; i < count && i < results.size(); ++i) list.push_back({graph, results[i]});
  return list;
}
inline std::vector<Value> call(const char* op, std::initializer_list<Value> operands,
                               const std::string& attributes = "") {
  if (operands.size() == 0) throw Error(BRRR_USAGE, std::string(op) + ": no operands");
  return call(operands.begin()->graph, op, operands, attributes);
}

namespace detail {

/// The shortest decimal that reads back as the same number, as attributes are written.
inline std::string number_text(double value) {
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  std::string found = text;
  if (found.find_first_of(".en") == std::string::npos) found += ".0";
  return found;
}
/// "(0,2,1)"
inline std::string list_text(const std::vector<int64_t>& numbers, char open = '(',
                             char close = ')') {
  std::string text(1, open);
  for (size_t i = 0; i < numbers.size(); ++i)
    text += (i > 0 ? "," : "") + std::to_string(numbers[i]);
  return text + close;
}

}  // namespace detail

class Graph {
 public:
  Graph() {
    detail::require_library();
    brrr_graph* made = nullptr;
    detail::check(brrr_graph_create(&made));
    handle_ = std::shared_ptr<brrr_graph>(made, &brrr_graph_free);
  }
  /// The text form that str() gives.
  static Graph parse(const std::string& text) {
    detail::require_library();
    brrr_graph* made = nullptr;
    detail::check(brrr_graph_parse(text.c_str(), &made));
    Graph g;
    g.handle_ = std::shared_ptr<brrr_graph>(made, &brrr_graph_free);
    return g;
  }
  std::string str() const {
    char* text = nullptr;
    detail::check(brrr_graph_text(handle_.get(), &text));
    return detail::taken(text);
  }

  /// A tensor that each run is given.
  Value input(const std::string& name, DType dtype, const std::vector<int64_t>& sizes) {
    Value v{handle_, {}};
    detail::check(brrr_graph_input(handle_.get(), name.c_str(), static_cast<brrr_dtype>(dtype),
                                   sizes.data(), static_cast<int>(sizes.size()), &v.id));
    return v;
  }
  /// A weight, f32. init: "zeros", "ones", "normal:0.02", "uniform:0.1".
  Value parameter(const std::string& name, const std::vector<int64_t>& sizes,
                  const std::string& init) {
    Value v{handle_, {}};
    detail::check(brrr_graph_parameter(handle_.get(), name.c_str(), sizes.data(),
                                       static_cast<int>(sizes.size()), init.c_str(), &v.id));
    return v;
  }
  Value constant(double number, DType dtype = DType::f32, const std::vector<int64_t>& sizes = {}) {
    Value v{handle_, {}};
    detail::check(brrr_graph_constant(handle_.get(), static_cast<brrr_dtype>(dtype), sizes.data(),
                                      static_cast<int>(sizes.size()), number, &v.id));
    return v;
  }
  void output(const std::string& name, const Value& value) {
    detail::check(brrr_graph_output(handle_.get(), name.c_str(), value.id));
  }
  /// The derivatives of a number with respect to any values.
  std::vector<Value> gradient(const Value& loss, const std::vector<Value>& of) {
    std::vector<brrr_value> ids, made(of.size());
    for (const Value& v : of) ids.push_back(v.id);
    detail::check(brrr_graph_gradient(handle_.get(), loss.id, ids.data(), ids.size(), made.data()));
    std::vector<Value> list;
    for (const brrr_value& id : made) list.push_back({handle_, id});
    return list;
  }
  /// A module that computes the outputs. Parameters that `weights` leaves out have their initial
  /// values by `seed`. Options: those of Module::open().
  Module compile(const std::map<std::string, Tensor>& weights = {}, uint32_t seed = 1337,
                 const Options& options = {}) const {
    std::vector<const char*> names;
    std::vector<brrr_tensor*> tensors;
    for (const auto& [name, tensor] : weights) {
      names.push_back(name.c_str());
      tensors.push_back(tensor.handle());
    }
    const std::vector<brrr_option> o = detail::to_c(options);
    brrr_module* made = nullptr;
    detail::check(brrr_graph_compile(handle_.get(), names.data(), tensors.data(), names.size(),
                                     seed, o.data(), o.size(), &made));
    return Module(made);
  }

  const std::shared_ptr<brrr_graph>& handle() const { return handle_; }

 private:
  std::shared_ptr<brrr_graph> handle_;
};

}  // namespace v1
}  // namespace brrr

#include "brrr/ops.h"

namespace brrr {
inline namespace v1 {

// ---- what models are usually written with. Ops with attributes under their own names take them
// ---- as text (namespace brrr::ops).

using ops::cos;
using ops::exp;
using ops::log;
using ops::maximum;
using ops::minimum;
using ops::relu;
using ops::rsqrt;
using ops::sigmoid;
using ops::sin;
using ops::sqrt;
using ops::square;
using ops::tanh;

inline Value operator+(const Value& a, const Value& b) { return ops::add(a, b); }
inline Value operator-(const Value& a, const Value& b) { return ops::sub(a, b); }
inline Value operator*(const Value& a, const Value& b) { return ops::mul(a, b); }
inline Value operator/(const Value& a, const Value& b) { return ops::div(a, b); }
inline Value operator-(const Value& a) { return ops::neg(a); }

namespace detail {
inline Value like(const Value& v, double number) {
  Value made{v.graph, {}};
  check(brrr_graph_constant(v.graph.get(), static_cast<brrr_dtype>(v.dtype()), nullptr, 0, number,
                            &made.id));
  return made;
}
/// Declares a parameter in the graph of x.
inline Value parameter(const Value& x, const std::string& name, const std::vector<int64_t>& sizes,
                       const std::string& init) {
  Value v{x.graph, {}};
  check(brrr_graph_parameter(x.graph.get(), name.c_str(), sizes.data(),
                             static_cast<int>(sizes.size()), init.c_str(), &v.id));
  return v;
}
/// A new name, "linear.7", by the number of nodes of the graph: the same program makes the same
/// names. The constant that counts them is used by nothing and is dropped.
inline std::string fresh(const Value& x, const char* kind) {
  return std::string(kind) + "." + std::to_string(like(x, 0).id.node);
}
}  // namespace detail

inline Value operator+(const Value& a, double b) { return a + detail::like(a, b); }
inline Value operator-(const Value& a, double b) { return a - detail::like(a, b); }
inline Value operator*(const Value& a, double b) { return a * detail::like(a, b); }
inline Value operator/(const Value& a, double b) { return a / detail::like(a, b); }
inline Value operator+(double a, const Value& b) { return detail::like(b, a) + b; }
inline Value operator-(double a, const Value& b) { return detail::like(b, a) - b; }
inline Value operator*(double a, const Value& b) { return detail::like(b, a) * b; }
inline Value operator/(double a, const Value& b) { return detail::like(b, a) / b; }

/// a: [..., M, K], b: [..., K, N] -> [..., M, N]
inline Value matmul(const Value& a, const Value& b, bool transpose_a = false,
                    bool transpose_b = false) {
  return call("matmul", {a, b},
              std::string("{transpose_a=") + (transpose_a ? "true" : "false") +
                  ", transpose_b=" + (transpose_b ? "true" : "false") + "}")[0];
}
/// x w + b with parameters "NAME.weight" [K, width], uniform within 1 / sqrt(K), and "NAME.bias".
/// x: [..., K] -> [..., width]
inline Value linear(const Value& x, int64_t width, std::string name = "") {
  if (name.empty()) name = detail::fresh(x, "linear");
  const int64_t k = x.size(-1);
  const std::string bound = "uniform:" + detail::number_text(1 / std::sqrt(static_cast<double>(k)));
  const Value w = detail::parameter(x, name + ".weight", {k, width}, bound);
  const Value b = detail::parameter(x, name + ".bias", {width}, "zeros");
  return call("linear", {x, w, b})[0];
}
/// Rows of the parameter "NAME.weight" [rows, width]. ids: i32 [...] -> [..., width]
inline Value embedding(const Value& ids, int64_t rows, int64_t width, std::string name = "") {
  if (name.empty()) name = detail::fresh(ids, "embedding");
  return call("embedding",
              {detail::parameter(ids, name + ".weight", {rows, width}, "normal:0.02"), ids})[0];
}
/// Normalises the last axis, with parameters "NAME.weight" and "NAME.bias".
inline Value layer_norm(const Value& x, double eps = 1e-5, std::string name = "") {
  if (name.empty()) name = detail::fresh(x, "layer_norm");
  const int64_t k = x.size(-1);
  return call("layer_norm",
              {x, detail::parameter(x, name + ".weight", {k}, "ones"),
               detail::parameter(x, name + ".bias", {k}, "zeros")},
              "{eps=" + detail::number_text(eps) + "}")[0];
}
inline Value gelu(const Value& x) { return call("gelu", {x}, "{approximate=\"tanh\"}")[0]; }
inline Value silu(const Value& x) { return call("silu", {x})[0]; }
/// Softmax over the last axis.
inline Value softmax(const Value& x) { return call("softmax", {x})[0]; }
inline Value reshape(const Value& x, const std::vector<int64_t>& sizes) {
  return call("reshape", {x}, "{shape=" + detail::list_text(sizes, '[', ']') + "}")[0];
}
inline Value transpose(const Value& x, const std::vector<int64_t>& permutation) {
  return call("transpose", {x}, "{permutation=" + detail::list_text(permutation) + "}")[0];
}
/// Along `axes`; none: a number from all elements.
inline Value mean(const Value& x, const std::vector<int64_t>& axes = {}) {
  Value v{x.graph, {}};
  detail::check(brrr_graph_mean(x.graph.get(), x.id, axes.data(), axes.size(), &v.id));
  return v;
}
inline Value sum(const Value& x, const std::vector<int64_t>& axes, bool keep = false) {
  return call("sum", {x},
              "{axes=" + detail::list_text(axes) + ", keep=" + (keep ? "true" : "false") + "}")[0];
}
/// Each element is 0 with probability p in training, else scaled by 1 / (1 - p).
inline Value dropout(const Value& x, double p) {
  Value v{x.graph, {}};
  detail::check(brrr_graph_dropout(x.graph.get(), x.id, p, &v.id));
  return v;
}
/// The mean over all rows of -log softmax(logits)[target]. logits: [..., C], targets: i32 [...] ->
/// [] A target of -1 adds 0 to the mean.
inline Value cross_entropy(const Value& logits, const Value& targets) {
  return mean(call("cross_entropy", {logits, targets}, "{ignore_index=-1}")[0]);
}
/// The mean of the squares of differences, a number.
inline Value mean_squared_error(const Value& x, const Value& target) {
  return mean(square(x - target));
}

}  // namespace v1
}  // namespace brrr
