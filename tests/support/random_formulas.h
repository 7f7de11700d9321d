#pragma once
// Graphs made from a seed in which norms, activations, batch normalisations and loss heads are
// written out of simpler ops in the ways of many exporters: constants, biases and scales of odd
// ranks, means that are nearly right, values that are read a second time. What match_formulas,
// fold_channels, fold_constants, join_products and match_loss_head look for, and what only looks
// like it.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr::test {

class RandomFormulas {
 public:
  explicit RandomFormulas(uint32_t seed) : random_(seed) {
    const Shape shape = start();
    x_ = chance(2) ? g_.input("x", shape, f32) : g_.parameter("x", shape);
    values_.push_back(x_);
    for (int64_t steps = 1 + random_.below(3); steps > 0; --steps) {
      const Value y = step(values_.back());
      if (y.shape().elements() <= 600) values_.push_back(y);
      if (chance(8)) values_.push_back(any_of(values_));
    }
    g_.output("y", values_.back());
    if (chance(3)) g_.output("seen", any_of(values_));
    g_.output("loss", loss(values_.back()));
  }
  const Graph& graph() const { return g_; }
  reference::Tensors inputs(uint32_t seed) const {
    return random_inputs(g_, seed, -1.5, 1.5, kClasses);
  }

 private:
  static constexpr int64_t kClasses = 5;

  bool chance(int64_t one_in) { return random_.below(one_in) == 0; }
  template <typename T>
  T any_of(const std::vector<T>& from) {
    return from[static_cast<size_t>(random_.below(static_cast<int64_t>(from.size())))];
  }
  template <typename F, typename... Fs>
  Value one_of(const F& first, const Fs&... others) {
    const std::vector<std::function<Value()>> all{first, others...};
    return any_of(all)();
  }
  Value either_order(Value a, Value b, bool adds) {
    if (chance(2)) std::swap(a, b);
    return adds ? a + b : a * b;
  }
  Value times(Value a, Value b) { return either_order(a, b, false); }
  Value plus(Value a, Value b) { return either_order(a, b, true); }

  Shape start() {
    Shape shape;
    for (int64_t rank = 1 + random_.below(4); rank > 0; --rank)
      shape.push_back(Dim(1 + random_.below(4)));
    if (chance(2)) shape[-1] = Dim(4);
    return shape;
  }

  // -- operands

  /// The number as files hold it: one element of any rank, seldom of more ranks than v or of its
  /// whole shape, and seldom computed.
  Value number(Value v, double x) {
    Shape shape;
    const auto kind = random_.below(12);
    if (kind < 3)
      for (int64_t rank = random_.below(v.shape().rank() + 1 + (kind == 0)); rank > 0; --rank)
        shape.push_back(Dim(1));
    else if (kind == 3)
      shape = v.shape();
    if (kind == 4 && x > 0) return sqrt(scalar(g_, x * x));
    if (kind == 5) return literal(g_, {1}, {x});
    return full(g_, shape, x);
  }
  double as_written(double x) {  // f32 digits, or fewer
    if (chance(2)) return x;
    return chance(2) ? static_cast<double>(static_cast<float>(x)) : std::round(x * 1e8) / 1e8;
  }

  Value made(const Shape& shape, std::string_view what) {
    const std::string name = fmt::format("{}{}", what, g_.inputs().size());
    return chance(5) ? g_.input(name, shape, f32) : g_.parameter(name, shape);
  }
  /// A weight or a bias for the last axis of v, mostly as it should be.
  Value vector(Value v, std::string_view what) {
    const Shape& shape = v.shape();
    const int rank = shape.rank();
    Shape own{shape[-1]};
    const auto kind = random_.below(12);
    if (kind < 3) {  // ones in front, up to more than v has
      for (int64_t ones = random_.below(rank + 1 + (kind == 0)); ones > 0; --ones)
        own.insert(0, Dim(1));
    } else if (kind == 3) {  // the last axes of v
      own = shape;
      for (int64_t drop = random_.below(rank); drop > 0; --drop) own.erase(0);
    } else if (kind == 4) {
      own = shape;
      own[-1] = Dim(1);
    } else if (kind == 5) {
      own = chance(2) ? Shape{} : Shape{1};
    } else if (kind == 6) {  // it widens what it meets
      own = shape;
      own.insert(0, Dim(1 + random_.below(2)));
    }
    if (chance(6)) return reshape(made({own.elements()}, what), own);
    return made(own, what);
  }

  // -- norms

  struct Axis {
    int at;
    double count;
  };
  Value mean_of(Value v, const Axis& axis) {
    const bool keeps = chance(2);
    Value total = sum(v, {axis.at}, keeps);
    Shape column = v.shape();
    column[axis.at] = Dim(1);
    const auto in_columns = [&](Value t) { return t.shape() == column ? t : reshape(t, column); };
    if (chance(2)) total = in_columns(total);
    const double part = 1 / axis.count;
    const Value mean = one_of([&] { return times(total, number(total, as_written(part))); },
                              [&] { return total / number(total, axis.count); });
    if (mean.shape().elements() != column.elements()) return in_columns(total) * part;
    return in_columns(mean);
  }
  Value squared(Value v) {
    return one_of([&] { return v * v; }, [&] { return square(v); },
                  [&] { return pow(v, number(v, 2)); });
  }
  /// v over the root of the variance, with a weight in one of the places that it can have.
  Value normalised(Value v, Value variance) {
    const Value w = chance(4) ? number(v, 1.5) : vector(v, "w");
    const bool weighs = !chance(3);
    const auto scaled = [&](Value x) { return weighs ? times(x, w) : x; };
    return one_of([&] { return scaled(v / sqrt(variance)); },
                  [&] { return scaled(times(v, rsqrt(variance))); },
                  [&] { return times(v, scaled(rsqrt(variance))); },
                  [&] { return times(scaled(v), rsqrt(variance)); },
                  [&] { return scaled(times(v, reciprocal(sqrt(variance)))); },
                  [&] { return scaled(times(v, number(variance, 1) / sqrt(variance))); },
                  [&] { return scaled(times(v, pow(variance, number(variance, -0.5)))); },
                  [&] { return scaled(v / pow(variance, number(variance, 0.5))); });
  }
  Value norm(Value v, bool centred) {
    Axis axis{v.shape().rank() - 1, 1};
    if (chance(12)) axis.at = static_cast<int>(random_.below(v.shape().rank()));
    axis.count = static_cast<double>(v.shape().size(axis.at)) + (chance(20) ? 1 : 0);
    const auto centre = [&](Value a) {
      const Value mean = mean_of(a, axis);
      return chance(30) ? a + mean : a - mean;
    };
    Value d = v;
    if (centred) d = centre(v);
    const Value again = centred && chance(4) ? centre(v) : d;
    const Value of = chance(25) ? v : again;
    const double eps = any_of(std::vector<double>{1e-5, 1e-6, 0.1, 1e-2});
    const Value mean = mean_of(squared(of), axis);
    Value y = normalised(d, plus(mean, number(mean, eps)));
    if (chance(8)) y = times(y, number(y, any_of(std::vector<double>{2, -0.5, 1})));
    if (chance(15)) values_.push_back(y);  // which something else may read
    if (centred ? !chance(4) : chance(5)) y = plus(y, vector(y, "b"));
    return y;
  }

  // -- activations

  Value gelu_by_erf(Value x) {
    const double root = chance(12) ? 0.7 : std::sqrt(0.5);
    const Value inner = one_of([&] { return times(x, number(x, as_written(root))); },
                               [&] { return x / number(x, as_written(1 / root)); });
    return halved(x, erf(inner));
  }
  Value gelu_by_tanh(Value x) {
    const double c = chance(12) ? 0.05 : 0.044715,
                 root = as_written(std::sqrt(2 / std::numbers::pi));
    const Value inner = one_of(
        [&] { return times(x + times(pow(x, number(x, 3)), number(x, c)), number(x, root)); },
        [&] { return (x + x * x * x * c) * number(x, root); },
        [&] { return (x * root) * plus(times(square(x), number(x, c)), number(x, 1)); },
        [&] { return root * (x * (number(x, 1) + c * x * x)); });
    return halved(x, tanh(inner));
  }
  /// x (1 + e) / 2, where x is seldom another value.
  Value halved(Value x, Value e) {
    const Value of = chance(15) ? vector(x, "g") : x;
    const Value one = number(x, 1), half = number(x, chance(20) ? 0.4 : 0.5);
    return one_of([&] { return times(times(of, plus(e, one)), half); },
                  [&] { return times(times(of, half), plus(one, e)); },
                  [&] { return times(of, plus(times(e, half), half)); },
                  [&] { return (of / number(x, 2)) * plus(one, e); },
                  [&] { return times(of, times(half, plus(one, e))); });
  }
  Value logistic(Value x) {
    const Value one = number(x, 1);
    const Value e = one_of([&] { return exp(-x); }, [&] { return exp(times(x, number(x, -1))); },
                           [&] { return exp(chance(6) ? x : -x); });
    return one_of([&] { return sigmoid(x); }, [&] { return one / plus(one, e); },
                  [&] { return reciprocal(plus(e, one)); });
  }
  Value gated(Value x) {
    return one_of(
        [&] { return times(x, logistic(x)); }, [&] { return x / plus(number(x, 1), exp(-x)); },
        [&] { return times(x, sigmoid(x * number(x, 1.702))); }, [&] { return logistic(x); });
  }

  // -- convolutions, products, losses

  Value convolved(Value x) {
    const int spatial = x.shape().rank() - 2;
    const int64_t channels = x.shape().size(1), groups = channels % 2 == 0 && chance(3) ? 2 : 1;
    const int64_t out = groups * (1 + random_.below(3));
    Shape w{out, channels / groups};
    Windows windows;
    for (int a = 0; a < spatial; ++a) {
      w.push_back(Dim(1 + 2 * random_.below(2)));
      windows.strides.push_back(1);
      windows.dilations.push_back(1);
    }
    for (int side = 0; side < 2; ++side)
      for (int a = 0; a < spatial; ++a) windows.pads.push_back(w.size(2 + a) / 2);
    const auto bias = chance(2) ? std::optional(g_.parameter(name("cb"), {out})) : std::nullopt;
    Value y = conv(x, g_.parameter(name("cw"), w), bias, windows, groups);
    for (int64_t n = 1 + random_.below(4); n > 0; --n) {
      const Value s = per_channel(y);
      y = chance(2) ? times(y, s) : plus(y, s);
      if (chance(12)) values_.push_back(y);
    }
    return y;
  }
  /// A number for each channel, or something near it.
  Value per_channel(Value y) {
    const int rank = y.shape().rank();
    Shape shape{y.shape()[1]};
    for (int a = 2; a < rank; ++a) shape.push_back(Dim(1));
    const auto kind = random_.below(9);
    if (kind < 2) shape.insert(0, Dim(1));
    if (kind == 2) shape = {1, 1};
    if (kind == 3) shape = {};
    if (kind == 4) shape = {y.shape()[-1]};
    if (kind == 5) {
      shape.insert(0, Dim(1));
      shape.insert(0, Dim(1 + random_.below(2)));  // more axes than y has
    }
    if (kind == 6) return number(y, 0.5);
    const Value s = chance(8) ? g_.input(name("cs"), shape, f32) : g_.parameter(name("cp"), shape);
    return chance(3) ? rsqrt(square(s) + number(s, 0.5)) : s;
  }
  /// Products of one left operand by weights: one, or several that may be joined.
  Value multiplied(Value x) {
    const int64_t width = x.shape().size(-1);
    std::optional<Value> y;
    const int64_t columns = 1 + random_.below(5);
    const bool turned = chance(2);
    for (int64_t n = 1 + random_.below(3); n > 0; --n) {
      const Value w =
          g_.parameter(name("m"), turned ? Shape{columns, width} : Shape{width, columns});
      const Value part = matmul(x, w, false, turned);
      y = y ? times(*y, part) : part;
    }
    return chance(2) ? plus(*y, vector(*y, "mb")) : *y;
  }
  Value sum_of_all(Value v) {
    std::vector<int64_t> axes(static_cast<size_t>(v.shape().rank()));
    std::iota(axes.begin(), axes.end(), 0);
    return sum(v, axes);
  }
  Value loss(Value v) {
    if (chance(3) || v.shape().rank() < 2) return sum_of_all(tanh(v) * v);
    const int64_t width = v.shape().size(-1);
    const bool turned = chance(2);
    const Value w =
        g_.parameter(name("head"), turned ? Shape{kClasses, width} : Shape{width, kClasses});
    Value logits = matmul(v, w, false, turned);
    if (chance(8)) g_.output("logits", logits);
    if (chance(8)) logits = plus(logits, vector(logits, "hb"));
    if (chance(2)) logits = reshape(logits, {logits.shape().elements() / kClasses, kClasses});
    const Value targets = g_.input("targets", logits.shape().without_last(1), i32);
    const CrossEntropy y = cross_entropy(logits, targets, 0);
    Value total = sum_of_all(y.losses) * 0.25;
    if (chance(4)) total = total + sum_of_all(y.lse);
    return total;
  }

  Value step(Value v) {
    const int rank = v.shape().rank();
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return norm(v, true);
      case 4:
      case 5:
        return norm(v, false);
      case 6:
      case 7:
        return gelu_by_erf(v);
      case 8:
      case 9:
        return gelu_by_tanh(v);
      case 10:
      case 11:
        return gated(v);
      case 12:
      case 13:
        if (rank == 3 || rank == 4) return convolved(v);
        return rank >= 2 ? multiplied(v) : gated(v);
      case 14:
        return rank >= 2 ? multiplied(v) : norm(v, true);
      default:
        return moved(v);
    }
  }
  Value moved(Value v) {
    std::vector<int64_t> turned(static_cast<size_t>(v.shape().rank()));
    std::iota(turned.begin(), turned.end(), 0);
    std::reverse(turned.begin(), turned.end());
    Shape more = v.shape();
    more.insert(0, Dim(1));
    return one_of([&] { return transpose(v, turned); }, [&] { return reshape(v, more); },
                  [&] { return plus(v, vector(v, "a")); }, [&] { return times(v, vector(v, "a")); },
                  [&] { return v + literal(g_, {1}, {0.25}) * number(v, 2); });
  }
  std::string name(std::string_view what) { return fmt::format("{}{}", what, g_.inputs().size()); }

  Random random_;
  Graph g_;
  Value x_;
  std::vector<Value> values_;
};

}  // namespace brrr::test
