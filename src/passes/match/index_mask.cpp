#include "passes/match/index_mask.h"

#include <algorithm>
#include <cmath>

#include "ir/op_def.h"
#include "ops/ops.h"

namespace brrr {
namespace {

// row * query + column * key + limit, for one element of an integer value over [..., T, S].
struct Affine {
  int64_t row = 0, column = 0;
  IndexLimit limit;
};

bool is_index(DType t) { return t == DType::i32 || t == DType::i64; }

bool one_element(const Shape& s) { return s.is_static() && s.elements() == 1; }

// Whether the value is the same for all queries and keys.
bool same_for_all(const Shape& s) {
  for (int axis = 1; axis <= std::min(2, s.rank()); ++axis)
    if (!(s[-axis] == Dim(1))) return false;
  return true;
}

std::optional<Affine> sum_of(const Affine& a, const Affine& b, int64_t sign) {
  if (a.limit.factor != 0 && b.limit.factor != 0) return std::nullopt;
  Affine out{a.row + sign * b.row, a.column + sign * b.column, a.limit};
  out.limit.constant += sign * b.limit.constant;
  if (b.limit.factor != 0) {
    out.limit.value = b.limit.value;
    out.limit.factor = sign * b.limit.factor;
  }
  return out;
}

// The only axis with more than one element, counted from the end, or 0.
int varying_axis(const Shape& s) {
  int found = 0;
  for (int axis = 1; axis <= s.rank(); ++axis)
    if (!(s[-axis] == Dim(1))) {
      if (found != 0) return 0;
      found = axis;
    }
  return found;
}

// A reshape moves the one axis along which the value varies.
std::optional<Affine> moved(Affine inner, const Shape& from, const Shape& to) {
  const int64_t slope = inner.row + inner.column;
  if (slope == 0) return inner;
  const int before = varying_axis(from), after = varying_axis(to);
  if (before == 0 || after == 0 || after > 2 || (inner.row != 0 && inner.column != 0))
    return std::nullopt;
  inner.row = after == 2 ? slope : 0;
  inner.column = after == 1 ? slope : 0;
  return inner;
}

std::optional<Affine> affine(const Graph& g, ValueId v);

std::optional<Affine> affine_of_op(const Graph& g, ValueId v) {
  const Node& node = g.node(v.node);
  const Op op = node.op->id;
  const Shape& shape = g.type(v).shape;
  if (op == Op::full) {
    const auto value = full_integer(node);
    return value ? std::optional(Affine{0, 0, {*value, 0, {}}}) : std::nullopt;
  }
  if (op == Op::iota) {
    const auto axis = static_cast<int>(node.attrs.get<int64_t>("axis"));
    if (shape[axis] == Dim(1)) return Affine{};
    const int from_end = shape.rank() - axis;
    if (from_end > 2) return std::nullopt;
    return Affine{from_end == 2 ? 1 : 0, from_end == 1 ? 1 : 0, {}};
  }
  if (op == Op::add || op == Op::sub) {
    const auto a = affine(g, node.operands[0]), b = affine(g, node.operands[1]);
    if (!a || !b) return std::nullopt;
    return sum_of(*a, *b, op == Op::add ? 1 : -1);
  }
  if (op == Op::broadcast_to || op == Op::cast) {  // 8 and 16 bits would wrap
    const bool stays = is_index(g.type(v).dtype) && is_index(g.type(node.operands[0]).dtype);
    return stays ? affine(g, node.operands[0]) : std::nullopt;
  }
  if (op == Op::reshape) {
    const auto inner = affine(g, node.operands[0]);
    // One element fits every place that a reshape may give it.
    if (!inner || (inner->limit.factor != 0 && !one_element(g.type(inner->limit.value).shape)))
      return std::nullopt;
    return moved(*inner, g.type(node.operands[0]).shape, shape);
  }
  return std::nullopt;
}

std::optional<Affine> affine(const Graph& g, ValueId v) {
  if (auto known = affine_of_op(g, v)) return known;
  if (!same_for_all(g.type(v).shape)) return std::nullopt;
  return Affine{0, 0, {0, 1, v}};
}

// The comparison as value <= 0 over integers.
std::optional<Affine> at_most_zero(const Graph& g, Condition c) {
  const Node& node = g.node(c.value.node);
  const Op op = node.op->id;
  const bool less = op == Op::less || op == Op::less_equal;
  if (!less && op != Op::greater && op != Op::greater_equal) return std::nullopt;
  if (!is_index(g.type(node.operands[0]).dtype)) return std::nullopt;
  const auto a = affine(g, node.operands[0]), b = affine(g, node.operands[1]);
  if (!a || !b) return std::nullopt;
  auto difference = less ? sum_of(*a, *b, -1) : sum_of(*b, *a, -1);
  if (!difference) return std::nullopt;
  if (op == Op::less || op == Op::greater) ++difference->limit.constant;  // x < 0 is x + 1 <= 0
  if (!c.inverted) return difference;
  auto negated = sum_of(Affine{}, *difference, -1);  // not x <= 0 is -x + 1 <= 0
  ++negated->limit.constant;
  return negated;
}

}  // namespace

namespace {

/// constant_of() that looks at no more than `left` nodes: it is asked of every node of a graph,
/// which may be one long chain.
std::optional<double> constant_within(const Graph& g, ValueId v, int& left) {
  const Node& node = g.node(v.node);
  const Op op = node.op->id;
  if (op == Op::full) return full_value(node);
  if (node.operands.empty() || node.operands.size() > 2 || --left < 0) return std::nullopt;
  if (op == Op::reshape || op == Op::broadcast_to)
    return constant_within(g, node.operands[0], left);
  if (!is_float(g.type(v).dtype)) return std::nullopt;
  const auto a = constant_within(g, node.operands[0], left);
  if (!a) return std::nullopt;
  // As a kernel computes it: the lowest f64 becomes -inf in f32, -1e9 becomes -inf in f16.
  const auto as_stored = [&](double x) { return rounded_to(g.type(v).dtype, x); };
  if (op == Op::cast) return as_stored(*a);
  if (op == Op::sqrt) return as_stored(std::sqrt(*a));
  if (op == Op::rsqrt) return as_stored(1 / std::sqrt(*a));
  if (op == Op::reciprocal) return as_stored(1 / *a);
  if (op == Op::neg) return as_stored(-*a);
  if (node.operands.size() < 2) return std::nullopt;
  const auto b = constant_within(g, node.operands[1], left);
  if (!b) return std::nullopt;
  if (op == Op::mul) return as_stored(*a * *b);
  if (op == Op::div) return as_stored(*a / *b);
  if (op == Op::add) return as_stored(*a + *b);
  if (op == Op::sub) return as_stored(*a - *b);
  if (op == Op::pow) return as_stored(std::pow(*a, *b));
  return std::nullopt;
}

}  // namespace

std::optional<double> constant_of(const Graph& g, ValueId v) {
  int left = kMostConstantNodes;
  return constant_within(g, v, left);
}

bool always_holds(const Graph& g, Condition c) {
  if (const auto constant = constant_of(g, c.value)) return (*constant != 0) != c.inverted;
  const auto d = at_most_zero(g, c);
  return d && d->row <= 0 && d->column <= 0 && d->limit.factor == 0 && d->limit.constant <= 0;
}

std::vector<Condition> conjuncts(const Graph& g, Condition c) {
  for (;;) {
    const Node& node = g.node(c.value.node);
    const Op op = node.op->id;
    if (op == Op::logical_not) {
      c = {node.operands[0], !c.inverted};
    } else if (op == Op::reshape || op == Op::broadcast_to) {
      // The same aligned from the end: leading axes of one element come or go.
      Shape from = g.type(node.operands[0]).shape, to = node.results[0].shape;
      if (op == Op::reshape) {
        while (to.rank() > from.rank() && to[0] == Dim(1)) to.erase(0);
        if (from != to) return {c};
      }
      c.value = node.operands[0];
    } else if (op == (c.inverted ? Op::logical_or : Op::logical_and)) {
      auto all = conjuncts(g, {node.operands[0], c.inverted});
      for (const Condition& other : conjuncts(g, {node.operands[1], c.inverted}))
        all.push_back(other);
      return all;
    } else {
      return {c};
    }
  }
}

std::optional<IndexMask> index_mask(const Graph& g, Condition c, int64_t queries) {
  const auto d = at_most_zero(g, c);
  if (!d) return std::nullopt;
  if (d->column == -1) {  // -key + row * query + limit <= 0, that is key >= row * query + limit
    if (d->row != 1 && (d->row != 0 || queries != 1)) return std::nullopt;
    return IndexMask{IndexMask::Kind::window, d->limit};
  }
  if (d->column != 1) return std::nullopt;
  // key + row * query + limit <= 0, that is key <= -row * query - limit.
  IndexLimit limit{-d->limit.constant, -d->limit.factor, d->limit.value};
  const bool single = limit.factor == 0 || one_element(g.type(limit.value).shape);
  if (d->row == -1 || (d->row == 0 && queries == 1 && single))
    return IndexMask{IndexMask::Kind::causal, limit};
  if (d->row != 0) return std::nullopt;
  ++limit.constant;
  return IndexMask{IndexMask::Kind::lengths, limit};
}

}  // namespace brrr
