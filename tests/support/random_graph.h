#pragma once
// Graphs made from a seed: element-wise, reductions, matmul, movement, views and composites in any
// order, with parameters, state and its updates, several outputs. For tests of passes and of the
// engine.

#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr::test {

class RandomGraph {
 public:
  /// `with_loss`: adds a scalar output "loss" that depends on every kind of node.
  explicit RandomGraph(uint32_t seed, int nodes = 30, bool with_loss = false) : random_(seed) {
    const Shape start{2 * (1 + random_.below(2)), 1 + random_.below(4)};
    values_.push_back(g_.input("x", start, f32));
    values_.push_back(g_.parameter("w", start));
    values_.push_back(g_.parameter("b", {start[-1]}));
    const int states = 1 + static_cast<int>(random_.below(3));
    for (int i = 0; i < states; ++i) {
      states_.push_back(g_.input(fmt::format("s{}", i), start, f32, InputKind::state));
      values_.push_back(states_.back());
    }
    for (int i = 0; i < nodes; ++i) grow();
    for (int i = 0; i < 3; ++i) g_.output(fmt::format("y{}", i), pick());
    g_.output("last", values_.back());
    if (random_.coin()) g_.output("x again", values_[0]);
    for (Value state : states_) {
      std::vector<Value> fits;
      for (Value v : values_)
        if (v.type() == state.type()) fits.push_back(v);
      if (random_.below(4) > 0)
        g_.update(state,
                  fits[static_cast<size_t>(random_.below(static_cast<int64_t>(fits.size())))]);
    }
    if (!with_loss) return;
    Value loss;
    for (int i = 0; i < 6; ++i) {
      Value v = i == 0 ? values_.back() : pick();
      std::vector<int64_t> axes;
      for (int axis = 0; axis < v.shape().rank(); ++axis) axes.push_back(axis);
      Value part = sum(v, axes);
      loss = i == 0 ? part : loss + part;
    }
    g_.output("loss", loss);
  }
  const Graph& graph() const { return g_; }

 private:
  Value pick() {  // late values more often, early ones still
    const auto n = static_cast<int64_t>(values_.size());
    const int64_t back = std::min(random_.below(n), random_.below(n));
    return values_[static_cast<size_t>(n - 1 - back)];
  }
  int64_t axis_of(Value v) { return random_.below(v.shape().rank()); }

  // Shapes that cannot be combined leave the graph as it is: an op was refused before it was added.
  void grow() {
    Value a = pick(), b = pick();
    if (a.shape().elements() > 400) return;
    const auto kind = random_.below(26);
    try {
      Value y = build(kind, a, b);
      if (y.graph != nullptr && y.shape().elements() <= 2000) values_.push_back(y);
    } catch (const UserError&) {
    }
  }

  Value build(int64_t kind, Value a, Value b) {
    const int rank = a.shape().rank();
    switch (kind) {
      case 0:
        return a + b;
      case 1:
        return a - b;
      case 2:
        return a * b;
      case 3:
        return a / (square(b) + 1.0);
      case 4:
        return maximum(a, b);
      case 5:
        return tanh(a);
      case 6:
        return a + a;
      case 7:
        return a * (random_.coin() ? 1.0 : 0.5);
      case 8:
        return a + (random_.coin() ? 0.0 : 2.0);
      case 9:
        return -a;
      case 10:
        return gelu(tanh(a), random_.coin() ? Gelu::tanh : Gelu::erf);
      case 11:
        return rank > 0 ? softmax(a) : Value{};
      case 12:
        return where(less(a, b), a, b);
      case 13:
        return rank > 0 ? sum(a, {axis_of(a)}, random_.coin()) : Value{};
      case 14:
        return rank > 0 ? max(a, {axis_of(a)}, true) : Value{};
      case 15: {  // a^T b and its like, through transposes that may be folded
        if (rank != 2 || b.shape().rank() != 2) return {};
        Value left = random_.coin() ? transpose(a, {1, 0}) : a;
        Value right = random_.coin() ? transpose(b, {1, 0}) : b;
        return tanh(matmul(left, right, random_.coin(), random_.coin()));
      }
      case 16:
        return tanh(matmul(a, a, false, true));
      case 17:
        return reshape(a, {a.shape().elements()});
      case 18: {
        const int64_t n = a.shape().elements();
        return n % 2 == 0 ? reshape(reshape(a, {n}), {2, n / 2}) : reshape(a, {n, 1});
      }
      case 19: {
        if (rank == 0) return {};
        const int axis = static_cast<int>(axis_of(a));
        const int64_t n = a.shape().size(axis), start = random_.below(n);
        return slice(a, axis, start, 1 + random_.below(n - start));
      }
      case 20:
        return rank > 0 ? concat(std::vector<Value>{a, b, a}, static_cast<int>(axis_of(a)))
                        : Value{};
      case 21: {
        if (rank == 0) return {};
        const int axis = static_cast<int>(axis_of(a));
        const int64_t n = a.shape().size(axis);
        // Two pads that fill one axis: what differentiating slices makes.
        return pad(a, axis, 0, n) + pad(-a, axis, n, 0);
      }
      case 22: {
        if (rank < 2) return {};
        std::vector<int64_t> p(static_cast<size_t>(rank));
        for (size_t i = 0; i < p.size(); ++i) p[i] = rank - 1 - static_cast<int64_t>(i);
        return transpose(a, p);
      }
      case 23: {
        Shape shape = a.shape();
        shape.insert(0, Dim(2));
        return broadcast_to(a, shape);
      }
      case 24: {
        if (rank == 0) return {};
        Value weight = full(g_, {a.shape()[-1]}, 1.5), bias = full(g_, {a.shape()[-1]}, 0.25);
        return layer_norm(a, weight, bias, 0.1).y;
      }
      default: {
        // The same expression twice, and constants of constants.
        Value c = exp(full(g_, {a.shape().rank() > 0 ? a.shape()[-1] : Dim(1)}, 0.125));
        return tanh(a) * c + tanh(a) * c;
      }
    }
  }

  Random random_;
  Graph g_;
  std::vector<Value> values_, states_;
};

}  // namespace brrr::test
