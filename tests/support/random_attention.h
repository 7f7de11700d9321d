#pragma once
// Attention made from a seed, written out as exporters do it: masks of every sort (boolean, added,
// finite, -inf, by position, padding), conditions of every shape that broadcasts, guards against
// rows of -inf, scales in every place, heads that lie in rows, share keys or are copied; and what
// only looks like it.
//
// Scores are multiples of 1/256 at least: a mask of -10000 or -65504 that is added to them rounds
// nothing in f32, so that kernels can be compared in rows where nothing but the mask is left.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr::test {

class RandomAttention {
 public:
  explicit RandomAttention(uint32_t seed) : random_(seed) {
    rank_ = static_cast<int>(2 + random_.below(3)) + chance(12);
    for (int a = 0; a < rank_ - 3; ++a) batch_.push_back(Dim(1 + random_.below(2)));
    heads_ = rank_ < 3 ? 1 : any_of<int64_t>({1, 2, 2, 4});
    t_ = 1 + random_.below(5);
    s_ = chance(3) ? t_ : 1 + random_.below(6);
    d_ = any_of<int64_t>({1, 2, 4, 4});
    dv_ = chance(2) ? d_ : 1 + random_.below(4);
    low_ = any_of<double>({-1e4, -1e4, -65504, -1e9, kLowest});
    place_operands();
    Value s = scores();
    for (int64_t n = any_of<int64_t>({0, 1, 1, 1, 2, 2, 3}); n > 0; --n) {
      s = masked(s);
      // Sums of the lowest number overflow, which a scale behind them does not make undone.
      if (!has_lowest_masks_ && chance(6)) s = scaled(s);
    }
    Value p = probabilities(s);
    for (int64_t n = chance(2) ? 0 : 1 + (chance(5) ? 1 : 0); n > 0; --n) p = guarded(p);
    if (chance(10)) {
      p = dropout(p, g_.input("key", {2}, i32), 0.25, 9);
      drops_ = true;
    }
    Value y = values_turned_ ? matmul(p, v_, false, true) : matmul(p, v_);
    if (rank_ >= 3 && chance(2)) y = joined(y);
    g_.output("y", y);
    if (chance(15)) g_.output("p", p);
    if (chance(25)) g_.output("s", s);
    std::vector<int64_t> axes;
    for (int a = 0; a < y.shape().rank(); ++a) axes.push_back(a);
    g_.output("loss", sum(y * y, axes));
  }
  const Graph& graph() const { return g_; }
  bool drops() const { return drops_; }
  /// Whether a mask of a large finite number may be all that a query sees: kernels keep lse in f32,
  /// in which such a row has no digits left for its gradient.
  bool has_large_masks() const { return has_large_masks_; }

  reference::Tensors inputs(uint32_t seed) const {
    Random random(seed);
    reference::Tensors in = random_inputs(g_, seed, -1, 1, 3);
    const bool sees_much = random.coin();
    for (auto& [name, t] : in) {
      if (name.starts_with("v")) continue;
      if (name.starts_with("bias")) {
        for (double& x : t.data) {
          const auto kind = random.below(8);
          x = kind == 0   ? added_.at(name)
              : kind == 1 ? -INFINITY
                          : static_cast<double>(random.below(9) - 4) * 0.5;
        }
      } else if (is_float(t.type.dtype)) {
        for (double& x : t.data) x = static_cast<double>(random.below(5) - 2) * 0.5;
      } else if (name.starts_with("keep")) {
        for (size_t i = 0; i < t.size(); ++i)
          t.set_number(i, random.below(sees_much ? 6 : 2) != 0 ? 1 : 0);
      } else if (name.starts_with("length")) {
        for (size_t i = 0; i < t.size(); ++i)
          t.set_number(i, static_cast<double>(random.below(s_ + 2)));
      }
    }
    return in;
  }

 private:
  bool chance(int64_t one_in) { return random_.below(one_in) == 0; }
  template <typename T>
  T any_of(const std::vector<T>& from) {
    return from[static_cast<size_t>(random_.below(static_cast<int64_t>(from.size())))];
  }
  std::string name(std::string_view what) { return fmt::format("{}{}", what, g_.inputs().size()); }
  Value made(std::string_view what, const Shape& shape) {
    return chance(2) ? g_.input(name(what), shape, f32) : g_.parameter(name(what), shape);
  }
  Value number(double x) {
    Shape shape;
    for (int64_t ones = chance(2) ? 0 : random_.below(rank_ + 1); ones > 0; --ones)
      shape.push_back(Dim(1));
    if (chance(20) && x >= -std::numeric_limits<float>::max())
      return cast(full(g_, shape, x, f64), f32);
    return full(g_, shape, x);
  }

  // -- q, k and v

  Shape axes_of(std::initializer_list<int64_t> last) const {
    Shape shape = batch_;
    for (const int64_t n : last) shape.push_back(Dim(n));
    return shape;
  }
  Shape by_heads(int64_t heads, int64_t rows, int64_t width) const {
    return rank_ < 3 ? Shape{rows, width} : axes_of({heads, rows, width});
  }
  static Value turned(Value x, int a, int b) {
    std::vector<int64_t> axes;
    for (int axis = 0; axis < x.shape().rank(); ++axis) axes.push_back(axis);
    std::swap(axes[axes.size() + static_cast<size_t>(a)],
              axes[axes.size() + static_cast<size_t>(b)]);
    return transpose(x, axes);
  }
  /// [..., rows, heads width] -> [..., heads, rows, width]
  Value heads_apart(Value rows, int64_t heads, int64_t width) {
    Shape shape = rows.shape();
    shape[-1] = Dim(heads);
    shape.push_back(Dim(width));
    return turned(reshape(rows, shape), -3, -2);
  }
  Value operand(std::string_view what, int64_t heads, int64_t rows, int64_t width) {
    if (what == "q" && chance(8))  // columns that lie apart are copied
      return turned(made(what, by_heads(heads, width, rows)), -1, -2);
    if (rank_ < 3 || chance(3)) return made(what, by_heads(heads, rows, width));
    const Shape in_rows = axes_of({rows, heads * width});
    if (chance(2) || what == "v") return heads_apart(made(what, in_rows), heads, width);
    constexpr int64_t kWidth = 4;
    const Value x = made("x", axes_of({rows, kWidth}));
    return heads_apart(matmul(x, g_.parameter(name("w"), {kWidth, heads * width})), heads, width);
  }
  /// Each head `times` in a row.
  Value repeated(Value x, int64_t times) {
    Shape one = x.shape(), many, all = x.shape();
    one.insert(one.rank() - 2, Dim(1));
    many = one;
    many[-3] = Dim(times);
    all[-3] = Dim(x.shape().size(-3) * times);
    return reshape(broadcast_to(reshape(x, one), many), all);
  }
  void place_operands() {
    if (rank_ >= 3 && t_ == s_ && d_ == dv_ && chance(2)) {  // in one value
      const Value all = made("x", axes_of({t_, 3 * heads_ * d_}));
      const auto part = [&](int64_t i) {
        return heads_apart(slice(all, rank_ - 2, i * heads_ * d_, heads_ * d_), heads_, d_);
      };
      q_ = part(0), k_ = part(1), v_ = part(2);
    } else {
      const int64_t shared = heads_ > 1 && chance(3) ? any_of<int64_t>({1, heads_ / 2}) : heads_;
      q_ = operand("q", heads_, t_, d_);
      if (rank_ >= 3 && chance(4)) {  // keys and values in one
        const Value both = made("k", axes_of({s_, shared * (d_ + dv_)}));
        k_ = heads_apart(slice(both, rank_ - 2, 0, shared * d_), shared, d_);
        v_ = heads_apart(slice(both, rank_ - 2, shared * d_, shared * dv_), shared, dv_);
      } else {
        k_ = operand("k", shared, s_, d_);
        v_ = operand("v", shared, s_, dv_);
      }
      if (shared != heads_ && !(shared == 1 && chance(2))) {
        k_ = repeated(k_, heads_ / shared);
        v_ = repeated(v_, heads_ / shared);
      }
    }
    if (chance(6)) {
      v_ = turned(v_, -1, -2);
      values_turned_ = true;
    }
  }

  // -- scores

  Value scaled(Value x) {
    const double factor = any_of<double>({0.5, 0.5, 1, -0.5});
    switch (random_.below(4)) {
      case 0:
        return x / number(1 / factor);
      case 1:
        return number(factor) * x;
      case 2:
        return factor > 0 ? x * sqrt(full(g_, {}, factor * factor)) : -(x * -factor);
      default:
        return x * number(factor);
    }
  }
  Value scores() {
    Value q = q_, k = k_;
    if (chance(4)) q = scaled(q);
    if (chance(2)) {
      k = turned(k, -1, -2);
      if (chance(4)) k = scaled(k);
      q = matmul(q, k);
    } else {
      if (chance(6)) k = scaled(k);
      q = matmul(q, k, false, true);
    }
    return chance(3) ? q : scaled(q);
  }
  Shape score_shape() const { return by_heads(heads_, t_, s_); }
  /// A shape that broadcasts to the scores, seldom of one axis more.
  Shape mask_shape() {
    Shape shape = score_shape();
    for (int a = 0; a < shape.rank(); ++a)
      if (chance(a >= shape.rank() - 2 ? 4 : 2)) shape[a] = Dim(1);
    for (int64_t drop = random_.below(shape.rank()); drop > 0; --drop) shape.erase(0);
    if (chance(40)) {
      shape = score_shape();
      shape.insert(0, Dim(1));
    }
    return shape;
  }

  // -- masks

  Value rows() {
    switch (random_.below(3)) {
      case 0:
        return iota(g_, {t_, 1}, 0);
      case 1:
        return reshape(iota(g_, {t_}, 0), {t_, 1});
      default:
        return broadcast_to(iota(g_, {t_, 1}, 0), {t_, s_});
    }
  }
  Value columns() {
    switch (random_.below(3)) {
      case 0:
        return iota(g_, {1, s_}, 1);
      case 1:
        return iota(g_, {s_}, 0);
      default:
        return iota(g_, {t_, s_}, 1);
    }
  }
  /// [] or one number for each sequence, beside the scores.
  Value per_sequence(std::string_view what) {
    if (rank_ < 4 || chance(2)) return g_.input(name(what), {}, i32);
    Shape beside = batch_;
    for (int a = 0; a < 3; ++a) beside.push_back(Dim(1));
    return reshape(g_.input(name(what), batch_, i32), beside);
  }
  Value at_or_before(Value a, Value b) {
    switch (random_.below(4)) {
      case 0:
        return less_equal(a, b);
      case 1:
        return greater_equal(b, a);
      case 2:
        return logical_not(less(b, a));
      default:
        return less(a, b + scalar(g_, 1, i32));
    }
  }
  Value causal() {
    Value row = rows();
    const auto kind = random_.below(6);
    if (kind == 0) row = row + scalar(g_, random_.below(5) - 2, i32);
    if (kind == 1) row = row + per_sequence("position");
    return at_or_before(columns(), row);
  }
  Value near() {
    const Value window = scalar(g_, 1 + random_.below(3), i32);
    return chance(2) ? greater(columns(), rows() - window) : less(rows() - columns(), window);
  }
  Value condition() {
    switch (random_.below(9)) {
      case 0:
      case 1:
        return causal();
      case 2:
        return less(columns(), per_sequence("length"));
      case 3:
        return logical_and(causal(), near());
      case 4:
        return near();
      case 5:
        return logical_and(condition(), g_.input(name("keep"), mask_shape(), boolean));
      case 6:
        return logical_not(logical_or(logical_not(condition()), logical_not(causal())));
      default:
        return g_.input(name("keep"), mask_shape(), boolean);
    }
  }
  /// One finite number to a graph: the sum of two is rounded where all scores are masked, and what
  /// is left of them depends on the order.
  double hidden() {
    const auto kind = random_.below(9);
    const double x = kind < 3 ? -INFINITY : kind == 3 ? -5 : low_;
    has_large_masks_ = has_large_masks_ || (std::isfinite(x) && x < -2e4);
    has_lowest_masks_ = has_lowest_masks_ || x == kLowest;
    return x;
  }
  Value masked(Value s) {
    const double low = hidden();
    const Value zero = number(0);
    switch (random_.below(8)) {
      case 0:
      case 1:
        return where(condition(), s, number(low));
      case 2:
        return where(logical_not(condition()), number(low), s);
      case 3:
        return s + where(condition(), zero, number(low));
      case 4:
        return where(logical_not(condition()), number(low), zero) + s;
      case 5:
        if (std::isinf(low)) return s + where(condition(), zero, number(low));
        return s + (1.0 - cast(condition(), f32)) * low;
      case 6:
        if (std::isinf(low)) return where(condition(), s, number(low));
        return s - cast(logical_not(condition()), f32) * -low;
      default: {
        const std::string bias = name("bias");
        added_[bias] = low;
        const Value b =
            chance(3) ? g_.parameter(bias, mask_shape()) : g_.input(bias, mask_shape(), f32);
        return chance(2) ? s + b : b + s;
      }
    }
  }

  // -- probabilities

  Value probabilities(Value s) {
    if (!chance(3)) return softmax(s);
    const int last = s.shape().rank() - 1;
    const Value e = exp(s - max(s, {last}, true));
    return e / sum(e, {last}, true);
  }
  Value guarded(Value p) {
    const Value zero = number(0);
    switch (random_.below(5)) {
      case 0:
        return where(not_equal(p, p), zero, p);
      case 1:
        return where(equal(p, p), p, zero);
      case 2:
        return where(logical_not(equal(p, p)), zero, p);
      case 3: {
        const Value seen = cast(g_.input(name("keep"), mask_shape(), boolean), f32);
        const Value any = max(seen, {seen.shape().rank() - 1}, true);
        return where(equal(any, scalar(g_, 0.0)), zero, p);
      }
      default:
        return where(less(rows(), scalar(g_, random_.below(3), i32)), zero, p);
    }
  }
  Value joined(Value y) {
    const Value apart = turned(y, -3, -2);
    if (chance(4)) return apart;
    Shape rows = apart.shape().without_last(2);
    rows.push_back(Dim(apart.shape().size(-2) * apart.shape().size(-1)));
    const Value together = reshape(apart, rows);
    return chance(2) ? together : matmul(together, g_.parameter(name("v_out"), {rows.size(-1), 3}));
  }

  static constexpr double kLowest = std::numeric_limits<float>::lowest();

  Random random_;
  Graph g_;
  double low_ = -1e4;
  int rank_;
  Shape batch_;
  int64_t heads_, t_, s_, d_, dv_;
  Value q_, k_, v_;
  bool values_turned_ = false, drops_ = false, has_large_masks_ = false, has_lowest_masks_ = false;
  std::map<std::string, double> added_;  // the low number among the elements of a bias
};

}  // namespace brrr::test
