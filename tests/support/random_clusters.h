#pragma once
// Graphs made from a seed for the tests of fusion: rows of all kinds, and products with what
// follows them.

#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr::test {

/// Element-wise ops of all dtypes, broadcasts, row functions and sums over rows on one shape, large
/// enough for many tiles.
class RandomRows {
 public:
  explicit RandomRows(uint32_t seed) : random_(seed) {
    constexpr int64_t kWidths[] = {1, 2, 7, 33, 64, 100, 257, 768, 1029, 5000};
    const int64_t width = kWidths[random_.below(10)];
    const int64_t rows = 1 + random_.below(std::max<int64_t>(3, 20000 / width));
    shape_ = random_.coin() ? Shape{rows, width} : Shape{2, rows, width};
    floats_.push_back(g_.input("x", shape_, f32));
    floats_.push_back(g_.input("r", shape_, f32));
    halves_.push_back(g_.input("h", shape_, random_.coin() ? bf16 : f16));
    ints_.push_back(g_.input("i", shape_, i32));
    masks_.push_back(g_.input("m", shape_, boolean));
    key_ = g_.input("key", {2}, i32);
    weight_ = g_.input("w", {width}, f32);
    bias_ = g_.input("b", {width}, f32);
    Shape column = shape_;
    column[-1] = Dim(1);
    small_ = {weight_, g_.input("c", column, f32), g_.input("s", {}, f32), scalar(g_, 0.75)};
    Shape statistic = shape_;
    statistic.erase(statistic.rank() - 1);
    mean_ = g_.input("mean", statistic, f32);
    rstd_ = g_.input("rstd", statistic, f32);
    const int64_t nodes = 2 + random_.below(18);
    for (int64_t i = 0; i < nodes; ++i) grow();
    for (int i = 0; i < 2; ++i) output(pick(floats_));
    output(pick(halves_));
    if (random_.coin()) output(pick(masks_));
    if (random_.coin()) output(pick(ints_));
  }
  const Graph& graph() const { return g_; }

 private:
  void output(Value v) { g_.output(fmt::format("y{}", outputs_++), v); }
  Value pick(const std::vector<Value>& from) {
    const auto n = static_cast<int64_t>(from.size());
    return from[static_cast<size_t>(n - 1 - std::min(random_.below(n), random_.below(n)))];
  }
  Value other() { return random_.below(3) == 0 ? pick(small_) : pick(floats_); }
  void rows_sum(Value v) {
    std::vector<int64_t> axes;
    for (int axis = 0; axis + 1 < shape_.rank(); ++axis) axes.push_back(axis);
    if (random_.coin())
      output(sum(reshape(v, {shape_.elements() / shape_.size(-1), shape_.size(-1)}), {0}));
    else
      output(sum(v, axes));
  }
  void grow() {
    Value a = pick(floats_), b = other();
    switch (random_.below(30)) {
      case 0:
        return floats_.push_back(a + b);
      case 1:
        return floats_.push_back(random_.coin() ? a - b : b - a);
      case 2:
        return floats_.push_back(a * b);
      case 3:
        return floats_.push_back(random_.coin() ? a / (square(b) + 1.0) : b / (square(a) + 1.0));
      case 4:
        return floats_.push_back(random_.coin() ? maximum(a, b) : minimum(b, a));
      case 5:
        return floats_.push_back(gelu(a, random_.coin() ? Gelu::tanh : Gelu::erf));
      case 6:
        return floats_.push_back(
            call1(Op::gelu_grad, {a, pick(floats_)},
                  {{"approximate", std::string(random_.coin() ? "tanh" : "none")}}));
      case 7: {
        constexpr Op kOps[] = {Op::neg,  Op::exp,    Op::tanh, Op::erf, Op::sigmoid, Op::abs,
                               Op::relu, Op::square, Op::sin,  Op::cos, Op::silu};
        return floats_.push_back(call1(kOps[random_.below(11)], {tanh(a)}));
      }
      case 8:
        return floats_.push_back(dropout(a, key_, 0.3, random_.below(3)));
      case 9:
        return masks_.push_back(random_.coin() ? less(a, b) : greater_equal(b, a));
      case 10:
        return floats_.push_back(random_.coin() ? where(pick(masks_), a, b)
                                                : where(pick(masks_), b, a));
      case 11:
        return masks_.push_back(random_.coin() ? logical_not(pick(masks_))
                                               : logical_and(pick(masks_), pick(masks_)));
      case 12:
        return ints_.push_back(pick(ints_) + pick(ints_));
      case 13:
        return masks_.push_back(less_equal(pick(ints_), scalar(g_, 2, i32)));
      case 14:
        return floats_.push_back(cast(random_.coin() ? pick(ints_) : pick(masks_), f32));
      case 15:
        return halves_.push_back(cast(a, random_.coin() ? bf16 : f16));
      case 16:
        return floats_.push_back(cast(pick(halves_), f32));
      case 17: {
        Value h = pick(halves_);
        return halves_.push_back(random_.coin() ? tanh(h) + h : h * scalar(g_, 0.3, h.dtype()));
      }
      case 18: {
        Value h = pick(halves_), k = pick(halves_);
        return halves_.push_back(where(pick(masks_), h, cast(k, h.dtype())));
      }
      case 19:
        return floats_.push_back(softmax(a));
      case 20:
        return floats_.push_back(call1(Op::softmax_grad, {a, pick(floats_)}));
      case 21: {
        const LayerNorm norm = layer_norm(a, weight_, bias_, 0.01);
        if (random_.coin()) output(norm.rstd);
        return floats_.push_back(norm.y);
      }
      case 22: {
        const Value in[] = {a, pick(floats_), weight_, mean_, rstd_};
        const auto out = call(Op::layer_norm_grad, in);
        output(out[1]);
        if (random_.coin()) output(out[2]);
        return floats_.push_back(out[0]);
      }
      case 23:
        return rows_sum(a);
      case 24: {
        Value h = pick(halves_);
        if (h.dtype() != bf16) return;
        return rows_sum(h);
      }
      case 25: {
        const RmsNorm norm = rms_norm(a, weight_, 0.01);
        if (random_.coin()) output(norm.rstd);
        return floats_.push_back(norm.y);
      }
      case 26: {
        const Value in[] = {a, pick(floats_), weight_, rstd_};
        const auto out = call(Op::rms_norm_grad, in);
        if (random_.coin()) output(out[1]);
        return floats_.push_back(out[0]);
      }
      case 27:
        return floats_.push_back(silu(a) * b);
      case 28:
        return floats_.push_back(call1(Op::silu_grad, {a, pick(floats_)}));
      default:
        return floats_.push_back(a + broadcast_to(weight_, shape_));
    }
  }

  Random random_;
  Graph g_;
  Shape shape_;
  std::vector<Value> floats_, halves_, ints_, masks_, small_;
  Value key_, weight_, bias_, mean_, rstd_;
  int outputs_ = 0;
};

/// Products of all kinds, and what may follow them: chains with other readers on the way, reshapes,
/// random bits, products of results, sums into states.
class RandomProducts {
 public:
  explicit RandomProducts(uint32_t seed) : random_(seed) {
    constexpr int64_t kSizes[] = {1, 2, 7, 16, 33, 64, 100, 130, 257};
    m_ = kSizes[random_.below(9)];
    n_ = kSizes[random_.below(9)];
    k_ = random_.coin() ? n_ : kSizes[random_.below(9)];
    batch_ = random_.below(3) == 0 ? 3 : 1;
    dtype_ = random_.below(3) > 0 ? f32 : random_.coin() ? bf16 : f16;
    key_ = g_.input("key", {2}, i32);
    bias_ = g_.input("b", {n_}, f32);
    for (int i = 0; i < 2; ++i) all_.push_back(g_.input(fmt::format("r{}", i), shape(m_, n_), f32));
    const int64_t products = 1 + random_.below(3);
    for (int64_t i = 0; i < products; ++i) grow(i);
    g_.output("last", all_.back());
    for (int i = 0; i < 2; ++i)
      g_.output(fmt::format("y{}", i),
                all_[static_cast<size_t>(random_.below(static_cast<int64_t>(all_.size())))]);
  }
  const Graph& graph() const { return g_; }

 private:
  Shape shape(int64_t rows, int64_t columns) const {
    return batch_ > 1 ? Shape{batch_, rows, columns} : Shape{rows, columns};
  }
  Value pick() {
    return all_[static_cast<size_t>(random_.below(static_cast<int64_t>(all_.size())))];
  }

  Value product(int64_t i) {
    const bool linear = random_.below(3) == 0, ta = !linear && random_.coin();
    const bool tb = !linear && random_.coin(), shared = linear || (!ta && random_.coin());
    // What was computed becomes the left operand of the next product, where it fits.
    Value a = i > 0 && k_ == n_ && (!ta || m_ == k_) && random_.coin()
                  ? pick()
                  : g_.input(fmt::format("a{}", i), ta ? shape(k_, m_) : shape(m_, k_), f32);
    const int64_t rows = tb ? n_ : k_, columns = tb ? k_ : n_;
    Value b = g_.input(fmt::format("w{}", i), shared ? Shape{rows, columns} : shape(rows, columns),
                       dtype_);
    a = cast(a, dtype_);
    Attrs attrs;
    if (dtype_ != f32 && random_.coin()) attrs.set("dtype", f32);
    if (linear) return call1(Op::linear, {a, b, bias_}, std::move(attrs));
    attrs.set("transpose_a", ta);
    attrs.set("transpose_b", tb);
    return call1(Op::matmul, {a, b}, std::move(attrs));
  }

  void grow(int64_t i) {
    Value y = product(i);
    if (random_.below(4) == 0) g_.output(fmt::format("product{}", i), y);
    if (random_.below(5) == 0) g_.output(fmt::format("sum{}", i), sum(cast(y, f32), {0}));
    Value x = cast(y, f32);
    if (random_.below(4) == 0) {  // another way to look at it, and back
      Value flat = reshape(x, {batch_ * m_, n_});
      x = reshape(flat * 0.5, shape(m_, n_));
    }
    const int64_t length = random_.below(4);
    for (int64_t step = 0; step < length; ++step) x = follow(x);
    if (random_.below(3) == 0) {
      Value state = g_.input(fmt::format("s{}", i), shape(m_, n_), f32, InputKind::state);
      x = state + x;
      g_.update(state, x);
    }
    all_.push_back(x);
  }
  Value follow(Value x) {
    switch (random_.below(8)) {
      case 0:
        return gelu(x);
      case 1:
        return call1(Op::gelu_grad, {x, pick()}, {{"approximate", std::string("tanh")}});
      case 2:
        return x + pick();
      case 3:
        return dropout(x, key_, 0.3, random_.below(3));
      case 4:
        return cast(cast(x, random_.coin() ? bf16 : f16), f32);
      case 5:
        return x * bias_;
      case 6:
        return where(less(x, pick()), x, -x);
      default:
        return tanh(x) - x;
    }
  }

  Random random_;
  Graph g_;
  int64_t m_, n_, k_, batch_;
  DType dtype_;
  std::vector<Value> all_;
  Value key_, bias_;
};

/// Gradients of weights and biases: dY computed in one way or the other, in several views; a weight
/// that lies this way or that; sums into states; other readers of everything.
class RandomBiasGradients {
 public:
  explicit RandomBiasGradients(uint32_t seed, int64_t most_rows = 3000) : random_(seed) {
    constexpr int64_t kWidths[] = {2, 7, 16, 33, 64, 100, 257, 770};
    const int64_t width = kWidths[random_.below(8)], other = kWidths[random_.below(8)];
    rows_ = 2 * (1 + random_.below(std::min(most_rows, 200000 / width) / 2));
    dtype_ = random_.below(4) > 0 ? bf16 : random_.coin() ? f16 : f32;
    const int64_t layers = 1 + random_.below(2);
    Value dy = g_.input("dy", shape(width), dtype_);
    for (layer_ = 0; layer_ < layers; ++layer_) {
      dy = changed(dy, layer_ % 2 == 0 ? width : other);
      backward(dy, layer_ % 2 == 0 ? other : width);
      if (layer_ + 1 < layers) {
        Value w = g_.input(fmt::format("w{}", layer_), {dy.shape().size(-1), other}, dtype_);
        dy = matmul(dy, w);
      }
    }
    if (random_.coin()) g_.output("dy", dy);
  }
  const Graph& graph() const { return g_; }

 private:
  Shape shape(int64_t width) {
    return random_.coin() ? Shape{2, rows_ / 2, width} : Shape{rows_, width};
  }
  std::string name(const char* what) const { return fmt::format("{}{}", what, layer_); }
  Value flat(Value x) { return reshape(x, {rows_, x.shape().size(-1)}); }

  Value changed(Value dy, int64_t width) {
    Value other = g_.input(name("z"), dy.shape(), dtype_);
    switch (random_.below(5)) {
      case 0:
        return call1(Op::gelu_grad, {dy, other}, {{"approximate", std::string("tanh")}});
      case 1:
        return reshape(transpose(reshape(dy, {2, rows_ / 2, width}), {1, 0, 2}), {rows_, width});
      case 2:
        return cast(softmax(cast(dy, f32)), dtype_);
      default:
        return dy;
    }
  }
  void backward(Value dy, int64_t width) {
    Value x = flat(g_.input(name("x"), shape(width), dtype_));
    Value total = cast(dy, f32);
    total = random_.coin()              ? sum(flat(total), {0})
            : total.shape().rank() == 3 ? sum(total, {0, 1})
                                        : sum(total, {0}, random_.coin());
    const bool left = random_.below(3) == 0, wide = random_.below(4) > 0;
    Attrs attrs{{"transpose_a", true}, {"transpose_b", false}};
    if (dtype_ != f32 && wide) attrs.set("dtype", f32);
    Value a = left ? flat(dy) : x, b = left ? x : flat(dy);
    Value dw = call1(Op::matmul, {a, b}, attrs);
    collect("dw", cast(dw, f32));
    collect("db", total);
    if (random_.below(4) == 0) g_.output(name("wide"), tanh(cast(dw, f32)));
  }
  void collect(const char* what, Value v) {
    if (random_.coin()) return void(g_.output(name(what), v));
    Value state = g_.input(fmt::format("sum:{}", name(what)), v.shape(), f32, InputKind::state);
    g_.update(state, state + v);
  }

  Random random_;
  Graph g_;
  int64_t rows_ = 0, layer_ = 0;
  DType dtype_ = bf16;
};

}  // namespace brrr::test
