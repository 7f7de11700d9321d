// Finds layer norm, RMS norm, GELU, SiLU and the logistic function where they are written out of
// simpler ops, as files of other programs have them. Products are compared as what they multiply,
// so that it does not matter in which order an exporter writes them.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "ops/ops.h"
#include "passes/match/index_mask.h"
#include "passes/passes.h"

namespace brrr {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

/// Constants of files are rounded to f32, and some exporters write few digits.
bool is_about(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

/// A value as a constant times factors, some of which divide.
struct Product {
  double constant = 1;
  std::vector<ValueId> factors, divisors;
};

struct Norm {
  ValueId x;
  bool centred = false;
  double eps = 0, constant = 1;
  std::optional<ValueId> weight, bias;  // C elements along the last axis
};

struct Activation {
  enum class Kind { gelu_erf, gelu_tanh, silu, sigmoid } kind;
  ValueId x;
};

class FormulaMatcher {
 public:
  explicit FormulaMatcher(const Graph& g) : g_(g), uses_(count_uses(g)) {}

  std::optional<Norm> norm(NodeId id) const {
    const Node& node = g_.node(id);
    if (!is(node, Op::mul, Op::div, Op::add, Op::sub) || !is_static_float(node))
      return std::nullopt;
    const ValueId y{id, 0};
    if (is(node, Op::add))
      for (const size_t i : {0, 1}) {
        const ValueId product = node.operands[i], bias = node.operands[1 - i];
        // A bias of more axes than the product gives the sum more axes, too: no norm's result.
        if (uses(product) != 1 || g_.type(product) != node.results[0] || !is_row_vector(bias, y))
          continue;
        auto found = normalised(product);
        if (!found || !found->centred) continue;
        found->bias = bias;
        return found;
      }
    if (is(node, Op::mul, Op::div)) return normalised(y);
    return std::nullopt;
  }

  std::optional<Activation> activation(NodeId id) const {
    using Kind = Activation::Kind;
    const Node& node = g_.node(id);
    if (!is(node, Op::mul, Op::div, Op::reciprocal) || !is_static_float(node)) return std::nullopt;
    const Product p = product({id, 0});
    if (p.factors.size() == 2 && p.divisors.empty())
      for (const size_t i : {0, 1}) {
        const ValueId x = p.factors[i], other = p.factors[1 - i];
        if (g_.type(x) != node.results[0]) continue;
        if (made_by(other, Op::sigmoid) && operand(other) == x && p.constant == 1)
          return Activation{Kind::silu, x};
        if (const auto half = shifted(other, Op::erf))
          if (is_about(half->constant * p.constant, 0.5) && is_scaled(half->inner, kSqrtHalf, x))
            return Activation{Kind::gelu_erf, x};
        if (const auto half = shifted(other, Op::tanh))
          if (is_about(half->constant * p.constant, 0.5) && is_cubic(half->inner, x))
            return Activation{Kind::gelu_tanh, x};
      }
    if (p.divisors.size() != 1 || p.constant != 1 || p.factors.size() > 1) return std::nullopt;
    const auto x = behind_exp_of_minus(p.divisors[0]);
    if (!x || g_.type(*x) != node.results[0]) return std::nullopt;
    if (p.factors.empty()) return Activation{Kind::sigmoid, *x};
    if (p.factors[0] == *x) return Activation{Kind::silu, *x};
    return std::nullopt;
  }

 private:
  const Node& node(ValueId v) const { return g_.node(v.node); }
  bool made_by(ValueId v, Op op) const { return is(node(v), op); }
  ValueId operand(ValueId v) const { return node(v).operands[0]; }
  uint32_t uses(ValueId v) const { return uses_[v.node][v.port]; }

  static bool is_static_float(const Node& node) {
    return is_float(node.results[0].dtype) && node.results[0].shape.is_static();
  }

  /// What a value multiplies. It goes on through products that nothing else reads.
  Product product(ValueId v) const {
    Product p;
    multiply(v, false, true, p);
    return p;
  }
  void multiply(ValueId v, bool divides, bool may_open, Product& p) const {
    if (const auto constant = constant_of(g_, v)) {
      p.constant = divides ? p.constant / *constant : p.constant * *constant;
      return;
    }
    const Node& n = node(v);
    const Op op = n.op->id;
    constexpr size_t kMost = 6;
    const bool opens = may_open && p.factors.size() + p.divisors.size() < kMost;
    const auto go_on = [&](ValueId inner, bool inverse) {
      multiply(inner, divides != inverse, uses(inner) == 1, p);
    };
    if (opens && (op == Op::mul || op == Op::div)) {
      go_on(n.operands[0], false);
      go_on(n.operands[1], op == Op::div);
    } else if (opens && op == Op::neg) {
      p.constant = -p.constant;
      go_on(n.operands[0], false);
    } else if (opens && op == Op::reciprocal) {
      go_on(n.operands[0], true);
    } else if (const int power = opens ? power_of(n) : 0; power != 0) {
      for (int i = 0; i < power; ++i) (divides ? p.divisors : p.factors).push_back(n.operands[0]);
    } else {
      (divides ? p.divisors : p.factors).push_back(v);
    }
  }
  /// 2 or 3 where the node is that power of its operand, else 0.
  int power_of(const Node& n) const {
    if (is(n, Op::square)) return 2;
    if (!is(n, Op::pow)) return 0;
    const auto exponent = constant_of(g_, n.operands[1]);
    return exponent == 2.0 ? 2 : exponent == 3.0 ? 3 : 0;
  }
  bool is_scaled(ValueId v, double constant, ValueId x) const {
    const Product p = product(v);
    return is_about(p.constant, constant) && p.divisors.empty() &&
           p.factors == std::vector<ValueId>{x};
  }
  bool is_power(ValueId v, double constant, ValueId x, size_t exponent) const {
    const Product p = product(v);
    return is_about(p.constant, constant) && p.divisors.empty() &&
           p.factors == std::vector<ValueId>(exponent, x);
  }

  /// constant (1 + op(inner)), also with the constant on both terms.
  struct Shifted {
    double constant;
    ValueId inner;
  };
  std::optional<Shifted> shifted(ValueId v, Op op) const {
    if (!made_by(v, Op::add)) return std::nullopt;
    for (const size_t i : {0, 1}) {
      const auto constant = constant_of(g_, node(v).operands[i]);
      if (!constant) continue;
      const Product p = product(node(v).operands[1 - i]);
      if (p.factors.size() == 1 && p.divisors.empty() && made_by(p.factors[0], op) &&
          is_about(p.constant, *constant))
        return Shifted{*constant, operand(p.factors[0])};
    }
    return std::nullopt;
  }
  /// sqrt(2/pi) (x + 0.044715 x^3), also with x taken out of the sum.
  bool is_cubic(ValueId v, ValueId x) const {
    const Product p = product(v);
    if (!is_about(p.constant, kSqrtTwoOverPi) || !p.divisors.empty()) return false;
    if (p.factors.size() == 1 && made_by(p.factors[0], Op::add))
      for (const size_t i : {0, 1}) {
        const auto& terms = node(p.factors[0]).operands;
        if (terms[i] == x && is_power(terms[1 - i], kCubic, x, 3)) return true;
      }
    if (p.factors.size() != 2) return false;
    for (const size_t i : {0, 1})
      if (p.factors[i] == x && made_by(p.factors[1 - i], Op::add))
        for (const size_t j : {0, 1}) {
          const auto& terms = node(p.factors[1 - i]).operands;
          if (constant_of(g_, terms[j]) == 1.0 && is_power(terms[1 - j], kCubic, x, 2)) return true;
        }
    return false;
  }
  /// x of 1 + e^-x.
  std::optional<ValueId> behind_exp_of_minus(ValueId v) const {
    if (!made_by(v, Op::add)) return std::nullopt;
    for (const size_t i : {0, 1}) {
      const ValueId e = node(v).operands[1 - i];
      if (constant_of(g_, node(v).operands[i]) != 1.0 || !made_by(e, Op::exp)) continue;
      const Product p = product(operand(e));
      if (p.constant == -1 && p.factors.size() == 1 && p.divisors.empty()) return p.factors[0];
    }
    return std::nullopt;
  }

  // -- norms

  /// Whether v has one number for each place of the last axis of `rows`.
  bool is_row_vector(ValueId v, ValueId rows) const {
    const Type &vector = g_.type(v), &type = g_.type(rows);
    if (vector.dtype != type.dtype || type.shape.rank() == 0) return false;
    const Shape& shape = vector.shape;
    return shape.rank() > 0 && shape.rank() <= type.shape.rank() && shape[-1] == type.shape[-1] &&
           shape.elements() == type.shape.size(-1);
  }

  /// The rows whose mean over the last axis v is: [..., 1].
  std::optional<ValueId> rows_of_mean(ValueId v) const {
    const Shape wanted = g_.type(v).shape;
    const Product p = product(behind_reshapes(g_, v));
    if (p.factors.size() != 1 || !p.divisors.empty()) return std::nullopt;
    const ValueId total = behind_reshapes(g_, p.factors[0]);
    if (!made_by(total, Op::sum)) return std::nullopt;
    const ValueId rows = operand(total);
    Shape column = g_.type(rows).shape;
    if (column.rank() == 0 || column.size(-1) == 0 ||
        node(total).attrs.get<std::vector<int64_t>>("axes") !=
            std::vector<int64_t>{column.rank() - 1} ||
        !is_about(p.constant, 1.0 / static_cast<double>(column.size(-1))))
      return std::nullopt;
    column[-1] = Dim(1);
    return wanted == column ? std::optional(rows) : std::nullopt;
  }

  struct Deviation {
    ValueId rows;  // whose root of the mean square it is
    double eps;
  };
  /// v = sqrt(mean of rows^2 + eps), or where `inverse` 1 over it.
  std::optional<Deviation> deviation(ValueId v, bool inverse) const {
    const Node& n = node(v);
    const Op op = n.op->id;
    if (op == Op::reciprocal) return deviation(n.operands[0], !inverse);
    if (op == Op::div && constant_of(g_, n.operands[0]) == 1.0)
      return deviation(n.operands[1], !inverse);
    const bool is_root =
        op == (inverse ? Op::rsqrt : Op::sqrt) ||
        (op == Op::pow && constant_of(g_, n.operands[1]) == (inverse ? -0.5 : 0.5));
    if (!is_root || !made_by(n.operands[0], Op::add)) return std::nullopt;
    const auto& terms = node(n.operands[0]).operands;
    for (const size_t i : {0, 1}) {
      const auto eps = constant_of(g_, terms[i]);
      const auto squares = rows_of_mean(terms[1 - i]);
      if (!eps || !(*eps >= 0) || !squares) continue;
      const Product p = product(*squares);
      if (p.constant == 1 && p.divisors.empty() && p.factors.size() == 2 &&
          p.factors[0] == p.factors[1])
        return Deviation{p.factors[0], *eps};
    }
    return std::nullopt;
  }

  /// rows / sqrt(mean of rows^2 + eps), times a constant and a vector.
  std::optional<Norm> normalised(ValueId v) const {
    const Product p = product(v);
    if (p.factors.size() + p.divisors.size() > 3) return std::nullopt;
    for (const bool divides : {false, true}) {
      const auto& deviations = divides ? p.divisors : p.factors;
      for (size_t i = 0; i < deviations.size(); ++i) {
        const auto found = deviation(deviations[i], !divides);
        if (!found || p.divisors.size() != (divides ? 1 : 0)) continue;
        std::vector<ValueId> rest = p.factors;
        if (!divides) rest.erase(rest.begin() + static_cast<int64_t>(i));
        const auto rows = std::ranges::find(rest, found->rows);
        if (rows == rest.end() || g_.type(*rows) != g_.type(v)) continue;
        rest.erase(rows);
        Norm norm{found->rows, false, found->eps, p.constant, {}, {}};
        if (!rest.empty()) {
          if (!is_row_vector(rest[0], v)) continue;
          norm.weight = rest[0];
        }
        if (made_by(norm.x, Op::sub))
          if (const ValueId x = operand(norm.x); rows_of_mean(node(norm.x).operands[1]) == x) {
            norm.x = x;
            norm.centred = true;
          }
        return norm;
      }
    }
    return std::nullopt;
  }

  const Graph& g_;
  std::vector<std::vector<uint32_t>> uses_;
};

Value built(Rewriter& r, const Norm& norm) {
  Graph& g = r.out();
  const Value x = r.map(norm.x);
  const Shape row{x.shape()[-1]};
  Value weight =
      norm.weight ? reshape(r.map(*norm.weight), row) : full(g, row, norm.constant, x.dtype());
  if (norm.weight && norm.constant != 1) weight = weight * norm.constant;
  if (!norm.centred) return rms_norm(x, weight, norm.eps).y;
  const Value bias = norm.bias ? reshape(r.map(*norm.bias), row) : full(g, row, 0.0, x.dtype());
  return layer_norm(x, weight, bias, norm.eps).y;
}

Value built(Rewriter& r, const Activation& activation) {
  const Value x = r.map(activation.x);
  switch (activation.kind) {
    case Activation::Kind::gelu_erf:
      return gelu(x, Gelu::erf);
    case Activation::Kind::gelu_tanh:
      return gelu(x, Gelu::tanh);
    case Activation::Kind::silu:
      return silu(x);
    case Activation::Kind::sigmoid:
      return sigmoid(x);
  }
  return x;
}

}  // namespace

Graph match_formulas(const Graph& in, Notes* notes) {
  const FormulaMatcher matcher(in);
  bool changed = false;
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    if (in.is_input(id)) return false;
    const auto norm = matcher.norm(id);
    const auto activation = norm ? std::nullopt : matcher.activation(id);
    if (!norm && !activation) return false;
    r.enter_scope_of(id);
    r.bind({id, 0}, norm ? built(r, *norm) : built(r, *activation));
    return changed = true;
  });
  if (!changed) return in;
  // What was found inside something larger that was found is dead now.
  out = drop_dead(std::move(out));
  if (notes == nullptr) return out;
  std::map<Op, int64_t> counts;
  for (const bool is_new : {false, true}) {
    const Graph& g = is_new ? out : in;
    for (NodeId id = 0; id < g.size(); ++id)
      if (!g.is_input(id)) counts[g.node(id).op->id] += is_new ? 1 : -1;
  }
  for (const Op op : {Op::layer_norm, Op::rms_norm, Op::gelu, Op::silu, Op::sigmoid})
    if (counts[op] > 0) notes->push_back(fmt::format("found {} {}", counts[op], name_of(op)));
  return out;
}

}  // namespace brrr
