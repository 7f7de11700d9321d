#pragma once
// Graphs made from a seed: element-wise, reductions, matmul, movement, views and composites in any
// order, with parameters, state and its updates, several outputs, and if asked for branches and
// loops. For tests of passes and of the engine.

#include "ops/control.h"
#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr::test {

class RandomGraph {
 public:
  /// `with_loss`: adds a scalar output "loss" that depends on every kind of node. `nesting`: how
  /// deep branches and loops stand in each other, 0: there are none. What decides about them is an
  /// integer, the input "n" or computed from it, so that rounding changes no decision.
  explicit RandomGraph(uint32_t seed, int nodes = 30, bool with_loss = false, int nesting = 0)
      : random_(seed), nesting_(nesting) {
    const Shape start{2 * (1 + random_.below(2)), 1 + random_.below(4)};
    values_.push_back(g_.input("x", start, f32));
    values_.push_back(g_.parameter("w", start));
    values_.push_back(g_.parameter("b", {start[-1]}));
    const int states = 1 + static_cast<int>(random_.below(3));
    for (int i = 0; i < states; ++i) {
      states_.push_back(g_.input(fmt::format("s{}", i), start, f32, InputKind::state));
      values_.push_back(states_.back());
    }
    if (nesting > 0) counts_.push_back(g_.input("n", {}, i32));
    for (int i = 0; i < nodes; ++i) grow();
    if (nesting > 0) g_.output("count", counts_.back());
    for (int i = 0; i < 3; ++i) g_.output(fmt::format("y{}", i), pick());
    g_.output("last", values_.back());
    if (random_.coin()) g_.output("x again", values_[0]);
    for (Value state : states_) {
      const std::vector<Value> fits = values_like(state.type());
      if (random_.below(4) > 0) g_.update(state, any_of(fits));
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
  struct Inside {
    std::vector<Type> inputs;
    int nesting = 0;
  };
  /// The graph of a region: values are its inputs and what is made of them; nothing leaves it yet.
  RandomGraph(uint32_t seed, const Inside& inside) : random_(seed), nesting_(inside.nesting) {
    for (const Type& t : inside.inputs) {
      const Value v = g_.input(fmt::format("a{}", inputs_.size()), t);
      inputs_.push_back(v);
      (t.dtype == f32 ? values_ : counts_).push_back(v);
    }
    for (int64_t i = 1 + random_.below(5); i > 0; --i) grow();
  }
  RandomGraph inside(const std::vector<Value>& inputs) {
    Inside in{{}, nesting_ - 1};
    for (const Value& v : inputs) in.inputs.push_back(v.type());
    return {static_cast<uint32_t>(random_.below(int64_t{1} << 32)), in};
  }

  Value any_of(const std::vector<Value>& from) {
    return from[static_cast<size_t>(random_.below(static_cast<int64_t>(from.size())))];
  }
  std::vector<Value> values_like(const Type& type) const {
    std::vector<Value> fits;
    for (Value v : values_)
      if (v.type() == type) fits.push_back(v);
    return fits;
  }
  Value below(Value count, int64_t most) {
    return less(count, scalar(g_, static_cast<double>(random_.below(most + 1)), i32));
  }

  void add_branch() {
    std::vector<Value> captured{pick(), pick(), any_of(counts_)};
    RandomGraph regions[] = {inside(captured), inside(captured)};
    for (RandomGraph& r : regions) {
      for (const size_t i : {0u, 1u})
        r.g_.output(std::to_string(i), r.any_of(r.values_like(captured[i].type())));
      r.g_.output("2", r.any_of(r.counts_));
    }
    const std::vector<Value> out =
        branch(below(any_of(counts_), 5), Region(regions[0].g_), Region(regions[1].g_), captured);
    values_.insert(values_.end(), out.begin(), out.begin() + 2);
    counts_.push_back(out[2]);
  }

  void add_loop() {
    std::vector<Value> carried{pick(), any_of(counts_)}, captured{pick(), any_of(counts_)};
    if (random_.coin()) carried.push_back(carried[0]);  // two of a type: they may change places
    std::vector<Value> inputs{scalar(g_, 0, i32)};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    inputs.insert(inputs.end(), captured.begin(), captured.end());
    RandomGraph r = inside(inputs);
    LoopEnd end{random_.below(6), random_.coin()};
    // The first iteration may be the last; one that must end does so before its bound.
    Value more = random_.coin() ? r.below(r.any_of(r.counts_), 8) : r.below(r.inputs_[0], 9);
    if (end.fails_at_bound) {
      end.bound += 2;
      const Value last = scalar(r.g_, static_cast<double>(end.bound - 2), i32);
      more = logical_and(more, less(r.inputs_[0], last));
    }
    r.g_.output("0", more);
    for (size_t k = 0; k < carried.size(); ++k) {
      const Value before = r.inputs_[1 + k];
      Value next = before;
      if (before.dtype() == i32)
        next = before + scalar(r.g_, static_cast<double>(random_.below(3)), i32);
      else if (random_.below(4) > 0)  // stays in bounds however often it is made
        next = tanh(r.any_of(r.values_like(before.type()))) * 0.5 + before * 0.25;
      else
        next = r.any_of(r.values_like(before.type()));
      r.g_.output(std::to_string(1 + k), next);
    }
    for (int64_t stacked = random_.below(3); stacked > 0; --stacked)
      r.g_.output(std::to_string(r.g_.outputs().size()), r.pick());
    const Value first =
        random_.coin() ? below(any_of(counts_), 5) : less_equal(counts_[0], counts_[0]);
    const LoopResults out = loop(first, Region(r.g_), carried, captured, end);
    for (const Value& v : out.carried) (v.dtype() == i32 ? counts_ : values_).push_back(v);
    for (const Value& v : out.stacked)
      if (v.shape().elements() <= 2000 && v.shape().rank() <= 4) values_.push_back(v);
    counts_.push_back(out.iterations);
  }

  Value pick() {  // late values more often, early ones still
    const auto n = static_cast<int64_t>(values_.size());
    const int64_t back = std::min(random_.below(n), random_.below(n));
    return values_[static_cast<size_t>(n - 1 - back)];
  }
  int64_t axis_of(Value v) { return random_.below(v.shape().rank()); }

  // Shapes that cannot be combined leave the graph as it is: an op was refused before it was added.
  void grow() {
    if (nesting_ > 0 && random_.below(8) == 0) return random_.coin() ? add_branch() : add_loop();
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
  int nesting_ = 0;
  Graph g_;
  std::vector<Value> values_, states_;
  std::vector<Value> counts_;  // i32[], if there are branches and loops
  std::vector<Value> inputs_;  // of a region
};

}  // namespace brrr::test
