#include "passes/weights/read_integers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "base/human.h"
#include "ir/evaluate.h"
#include "ops/ops.h"
#include "ops/quantized/given_integers.h"
#include "ops/quantized/quantized_rows.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
namespace {

/// Maximum number of elements of a constant that is evaluated to see whether it holds zero points.
constexpr int64_t kMostConstants = 1 << 16;

bool is_byte(DType t) { return t == DType::i8 || t == DType::u8; }

/// The smallest and the largest integer that a value may hold.
struct Range {
  int64_t least = 0, most = 0;
};

/// A weight (integers - zeros) * scales of a product.
struct GivenWeight {
  ValueId integers;
  std::optional<ValueId> zeros;  // floats before the subtraction
  ValueId scales;
  Shape shape;                 // of the integers: that of the weight, or with its terms in two axes
  bool drops_padding = false;  // drops terms after those of the weight
  int32_t bits = 8;            // of the differences
  int32_t group = 0;           // terms that share a scale; 0: all
};

/// Rows (integers - zero) * scale of a product, with one scale and one zero point for all.
struct GivenRows {
  ValueId integers, scale;
  int64_t zero = 0;
};

class IntegerReader {
 public:
  IntegerReader(const Graph& in, const Target& target, const Quantization& quantization)
      : in_(in),
        target_(target),
        quantization_(quantization),
        from_parameters_(in.size()),
        from_constants_(in.size()) {
    for (NodeId id = 0; id < in.size(); ++id) close(id);
  }

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const std::optional<ProductForm> form = product_form(in_.node(id));
      if (!form || form->transpose_a) return false;
      const auto weight = weight_of(in_.node(id), *form);
      if (!weight) return false;
      if (const auto rows = rows_of(in_.node(id).operands[0]);
          rows && suits_integer_rows(id, *form, *weight)) {
        multiply_integers(r, id, *form, *weight, *rows);
        return true;
      }
      if (!suits(id, *form, *weight)) return false;
      multiply(r, id, *form, *weight);
      return true;
    });
    if (products_ == 0) return in_;
    if (notes)
      notes->push_back(fmt::format(
          "{} the integers of the file{}{}",
          products_ == 1 ? "1 product reads" : fmt::format("{} products read", products_),
          quantization_.of_rows ? ", rows in 8 bits" : "",
          integer_products_ > 0 ? fmt::format(", {} with rows of integers", integer_products_)
                                : ""));
    return drop_dead(std::move(out));
  }

 private:
  void close(NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id)) {
      from_parameters_[id] = in_.role(id) == Role::parameter;
      return;
    }
    if (node.op->draws_random || node.op->runs_regions) return;
    const auto all = [&](const std::vector<bool>& of) {
      return std::ranges::all_of(node.operands, [&](ValueId v) { return of[v.node]; });
    };
    from_parameters_[id] = all(from_parameters_);
    from_constants_[id] = all(from_constants_);
  }

  const Node& node(ValueId v) const { return in_.node(v.node); }
  const Shape& shape(ValueId v) const { return in_.type(v).shape; }

  // -- the form of a weight

  std::optional<GivenWeight> weight_of(const Node& product, const ProductForm& form) const {
    ValueId v = product.operands[1];
    if (!from_parameters_[v.node] || from_constants_[v.node] || shape(v).rank() != 2 ||
        !shape(v).is_static() || !is_worth_quantizing(shape(v)))
      return std::nullopt;
    const Shape matrix = shape(v);
    const int axis = form.transpose_b ? 1 : 0;
    GivenWeight w;
    if (is(node(v), Op::cast) && is_float(in_.type(node(v).operands[0]).dtype))
      v = node(v).operands[0];
    if (is(node(v), Op::slice) && node(v).attrs.get<int64_t>("axis") == axis &&
        node(v).attrs.get<int64_t>("start") == 0 && shape(node(v).operands[0]).rank() == 2) {
      w.drops_padding = true;
      v = node(v).operands[0];
    }
    if (is(node(v), Op::reshape) && splits_terms(shape(node(v).operands[0]), shape(v), axis))
      v = node(v).operands[0];
    if (!is(node(v), Op::mul) || (w.drops_padding && shape(v).rank() == 2)) return std::nullopt;
    w.shape = shape(v);
    if (w.shape.rank() == 3) {
      const int64_t group = w.shape.size(axis + 1);
      if (group % 8 != 0 || group > INT32_MAX) return std::nullopt;
      w.group = static_cast<int32_t>(group);
    }
    for (const size_t side : {0, 1}) {
      w.scales = node(v).operands[1 - side];
      if (find_integers(node(v).operands[side], w) && is_one_per_group(w.scales, w, axis) &&
          (!w.zeros || is_one_per_group(*w.zeros, w, axis)) && find_bits(w))
        return w;
    }
    return std::nullopt;
  }

  /// Whether a reshape joins the axes `axis` and `axis + 1`.
  static bool splits_terms(const Shape& from, const Shape& to, int axis) {
    return from.rank() == 3 && from.is_static() && from[axis == 0 ? 2 : 0] == to[axis == 0 ? 1 : 0];
  }

  /// Reads the float factor cast(integers) or cast(integers) - zeros.
  bool find_integers(ValueId v, GivenWeight& w) const {
    w.zeros.reset();
    if (is(node(v), Op::sub)) {
      w.zeros = node(v).operands[1];
      v = node(v).operands[0];
    }
    if (!is(node(v), Op::cast) || shape(v) != w.shape) return false;
    w.integers = node(v).operands[0];
    return is_byte(in_.type(w.integers).dtype);
  }

  /// The axis of `w.shape` whose elements share a scale.
  static int shared_axis(const GivenWeight& w, int axis) {
    return w.shape.rank() == 3 ? axis + 1 : axis;
  }
  /// A shape as one of the rank of `w.shape`, with ones in front.
  static Shape padded(const Shape& s, const GivenWeight& w) {
    Shape full;
    for (int a = s.rank(); a < w.shape.rank(); ++a) full.push_back(Dim(1));
    for (const Dim& d : s.dims()) full.push_back(d);
    return full;
  }
  bool is_one_per_group(ValueId v, const GivenWeight& w, int axis) const {
    const Type& type = in_.type(v);
    return type.shape.rank() <= w.shape.rank() && is_float(type.dtype) &&
           bytes_of(type.dtype) <= 4 && !is_fp8(type.dtype) &&
           padded(type.shape, w).size(shared_axis(w, axis)) == 1;
  }

  // -- the form of the rows

  std::optional<GivenRows> rows_of(ValueId v) const {
    if (is(node(v), Op::cast) && is_float(in_.type(node(v).operands[0]).dtype))
      v = node(v).operands[0];
    if (!is(node(v), Op::mul) || !shape(v).is_static()) return std::nullopt;
    for (const size_t side : {0, 1}) {
      GivenRows rows;
      rows.scale = node(v).operands[1 - side];
      ValueId x = node(v).operands[side];
      if (!shape(rows.scale).is_static() || shape(rows.scale).elements() != 1) continue;
      if (is(node(x), Op::sub)) {
        const std::optional<int64_t> zero = one_zero(node(x).operands[1]);
        if (!zero) continue;
        rows.zero = *zero;
        x = node(x).operands[0];
      }
      if (!is(node(x), Op::cast) || shape(x) != shape(v)) continue;
      rows.integers = node(x).operands[0];
      if (is_byte(in_.type(rows.integers).dtype)) return rows;
    }
    return std::nullopt;
  }

  /// The only element of a constant, if it is an integer of 8 bits.
  std::optional<int64_t> one_zero(ValueId v) const {
    if (!from_constants_[v.node] || !range_of_zeros(v)) return std::nullopt;
    const auto known = constant(v);
    if (!known || known->data.size() != 1) return std::nullopt;
    return static_cast<int64_t>(known->data[0]);
  }

  // -- the range of the integers

  static Range range_of(DType t) { return t == DType::i8 ? Range{-128, 127} : Range{0, 255}; }
  /// The range of integers that nodes move or mask.
  Range range_of(ValueId v) const {
    const Node& n = node(v);
    if (is(n, Op::bit_and))
      for (const ValueId mask : n.operands)
        if (is(node(mask), Op::full))
          if (const auto most = full_integer(node(mask)); most && *most >= 0) return {0, *most};
    if (is(n, Op::reshape, Op::slice, Op::broadcast_to, Op::transpose, Op::gather))
      return range_of(n.operands[0]);
    return range_of(in_.type(v).dtype);
  }

  /// Returns the range of zero points, or nothing if they are not known to be 8-bit integers.
  std::optional<Range> range_of_zeros(ValueId v) const {
    if (from_constants_[v.node]) {
      const auto known = constant(v);
      if (!known) return std::nullopt;
      Range range{INT64_MAX, INT64_MIN};
      for (const double x : known->data) {
        if (x != std::floor(x) || !(std::fabs(x) <= 255)) return std::nullopt;
        range.least = std::min(range.least, static_cast<int64_t>(x));
        range.most = std::max(range.most, static_cast<int64_t>(x));
      }
      if (range.least < -128 || (range.least < 0 && range.most > 127)) return std::nullopt;
      return known->data.empty() ? std::nullopt : std::optional(range);
    }
    const Node& n = node(v);
    if (is(n, Op::cast) && is_byte(in_.type(n.operands[0]).dtype)) return range_of(n.operands[0]);
    if (is(n, Op::reshape, Op::slice, Op::broadcast_to)) return range_of_zeros(n.operands[0]);
    return std::nullopt;
  }

  bool find_bits(GivenWeight& w) const {
    const Range of = range_of(w.integers);
    std::optional<Range> zeros = Range{};
    if (w.zeros) zeros = range_of_zeros(*w.zeros);
    if (!zeros) return false;
    const int64_t least = of.least - zeros->most, most = of.most - zeros->least;
    w.bits = least >= -8 && most <= 7 ? 4 : 8;
    return least >= -128 && most <= 127;
  }

  /// Returns the elements of a constant; nothing if it has more than kMostConstants.
  std::optional<RefTensor> constant(ValueId v) const {
    if (!shape(v).is_static() || shape(v).elements() > kMostConstants) return std::nullopt;
    std::vector<RefTensor> operands;
    for (const ValueId& operand : node(v).operands) {
      auto known = constant(operand);
      if (!known) return std::nullopt;
      operands.push_back(std::move(*known));
    }
    std::vector<const RefTensor*> in;
    for (const RefTensor& t : operands) in.push_back(&t);
    return evaluate_node(in_, v.node, in)[v.port];
  }

  // -- the product

  Storage storage_of(const ProductForm& form, const GivenWeight& w) const {
    return {right_layout(form.transpose_b), {w.bits, form.transpose_b ? 1 : 0, w.group}};
  }

  Attrs attrs_of(const Node& product, const ProductForm& form) const {
    Attrs attrs{{"transpose_a", false}, {"transpose_b", form.transpose_b}};
    // The product stays f32, because rounding comes after the bias is added.
    const DType result = form.has_bias ? DType::f32 : product.results[0].dtype;
    if (result != in_.type(product.operands[0]).dtype) attrs.set("dtype", result);
    if (quantization_.of_rows) attrs.set("left_bits", int64_t{8});
    return attrs;
  }

  bool suits(NodeId id, const ProductForm& form, const GivenWeight& w) const {
    const Node& product = in_.node(id);
    const Type& left = in_.type(product.operands[0]);
    Type right = in_.type(product.operands[1]);
    right.storage = storage_of(form, w);
    if (!left.shape.is_static() ||
        !storage_refusal(right.storage, right.dtype, right.shape).empty())
      return false;
    const int64_t terms = left.shape.size(-1);
    if (quantization_.of_rows && (w.group > 0 ? w.group : terms) > ops::kMostQuantizedTerms)
      return false;
    // Not by the number of rows: a row has the same bits among any others.
    if (quantization_.bits == 0 && left.dtype == DType::bf16 && target_.gains_by_panels(in_, id))
      return false;
    Graph alone;
    const std::vector<ValueId> operands{alone.input("a", left).id, alone.input("b", right).id};
    return target_.runs(alone, alone.add(op(Op::matmul), operands, attrs_of(product, form)));
  }

  /// Whether there is a kernel for exact products, which needs one scale for each column. One that
  /// does not read panels would pack the weight in each run.
  bool suits_integer_rows(NodeId id, const ProductForm& form, const GivenWeight& w) const {
    const Type& left = in_.type(in_.node(id).operands[0]);
    if (w.group > 0 || w.zeros || w.drops_padding || w.shape.rank() != 2 ||
        in_.type(w.integers).dtype != DType::i8 || !left.shape.is_static() ||
        left.shape.size(-1) > ops::kMostQuantizedTerms)
      return false;
    Graph alone;
    const std::vector<ValueId> operands{alone.input("a", Type{DType::i8, left.shape}).id,
                                        alone.input("b", Type{DType::i8, w.shape}).id};
    const NodeId product = alone.add(op(Op::matmul), operands,
                                     {{"transpose_a", false}, {"transpose_b", form.transpose_b}});
    return target_.runs(alone, product) && target_.reads_panels(alone, product);
  }

  /// One element for each group, as `store` takes them: [groups, N] or [N, groups].
  static Value for_each_group(Value v, const GivenWeight& w, int axis) {
    Shape full = w.shape, groups;
    full[shared_axis(w, axis)] = Dim(1);
    v = reshape(v, padded(v.shape(), w));
    if (v.shape() != full) v = broadcast_to(v, full);
    for (int a = 0; a < full.rank(); ++a)
      if (w.shape.rank() == 2 || a != shared_axis(w, axis)) groups.push_back(full[a]);
    return reshape(v, groups);
  }

  /// The zero points as bytes.
  Value zeros_in(Rewriter& r, ValueId v) const {
    if (from_constants_[v.node]) {
      RefTensor known = *constant(v);
      const bool is_signed = std::ranges::any_of(known.data, [](double x) { return x < 0; });
      return constant_in(r.out(), RefTensor(Type{is_signed ? DType::i8 : DType::u8, shape(v)},
                                            std::move(known.data)));
    }
    const Node& n = node(v);
    if (is(n, Op::cast)) return r.map(n.operands[0]);
    const std::vector<Value> operands{zeros_in(r, n.operands[0])};
    return call(*n.op, operands, n.attrs)[0];
  }

  Value stored(Rewriter& r, ValueId weight, const ProductForm& form, const GivenWeight& w) {
    const int axis = form.transpose_b ? 1 : 0;
    const Type& type = in_.type(weight);
    Value integers = r.map(w.integers);
    if (w.shape.rank() == 3) {
      Shape flat = type.shape;
      flat[axis] = Dim(w.shape.size(axis) * w.shape.size(axis + 1));
      integers = reshape(integers, flat);
    }
    if (w.drops_padding) integers = slice(integers, axis, 0, type.shape.size(axis));
    std::optional<Value> zeros;
    if (w.zeros) zeros = for_each_group(zeros_in(r, *w.zeros), w, axis);
    return store_integers(integers, for_each_group(r.map(w.scales), w, axis), zeros,
                          storage_of(form, w), type.dtype);
  }

  void multiply(Rewriter& r, NodeId id, const ProductForm& form, const GivenWeight& w) {
    const Node& product = in_.node(id);
    r.enter_scope_of(id);
    const std::vector<Value> old = r.operands(id);
    const auto [at, is_new] = stored_.try_emplace({product.operands[1], form.transpose_b});
    if (is_new) at->second = stored(r, product.operands[1], form, w);
    ++products_;
    const std::vector<Value> in{old[0], at->second};
    Value y = call(Op::matmul, in, attrs_of(product, form))[0];
    if (form.has_bias) y = cast(y + cast(old[2], DType::f32), product.results[0].dtype);
    r.bind({id, 0}, y);
  }

  /// (a - za) sa * b sb = (a b - za * the sums of b's columns) sa sb, where a is i8: less 128 if it
  /// was u8, as its zero point.
  void multiply_integers(Rewriter& r, NodeId id, const ProductForm& form, const GivenWeight& w,
                         const GivenRows& rows) {
    constexpr int64_t kHalf = 128;
    const Node& product = in_.node(id);
    r.enter_scope_of(id);
    const std::vector<Value> old = r.operands(id);
    Graph& g = r.out();
    Value a = r.map(rows.integers);
    int64_t zero = rows.zero;
    if (a.dtype() == DType::u8) {
      a = cast(cast(a, DType::i32) - scalar(g, kHalf, DType::i32), DType::i8);
      zero -= kHalf;
    }
    const Value b = r.map(w.integers);
    const auto times_b = [&](Value left) { return matmul(left, b, false, form.transpose_b); };
    Value y = times_b(a);
    // The sums are a product, too, so that all that reads b reads panels.
    if (zero != 0)
      y = y - reshape(times_b(full(g, {1, a.shape().size(-1)}, 1, DType::i8)), {y.shape()[-1]}) *
                  scalar(g, zero, DType::i32);
    const Value columns = reshape(for_each_group(r.map(w.scales), w, form.transpose_b ? 1 : 0),
                                  {w.shape[form.transpose_b ? 0 : 1]});
    const Value scale = reshape(r.map(rows.scale), {});
    y = cast(y, DType::f32) * (cast(columns, DType::f32) * cast(scale, DType::f32));
    if (form.has_bias) y = y + cast(old[2], DType::f32);
    ++products_;
    ++integer_products_;
    r.bind({id, 0}, cast(y, product.results[0].dtype));
  }

  const Graph& in_;
  const Target& target_;
  Quantization quantization_;
  std::vector<bool> from_parameters_;  // made of parameters and constants
  std::vector<bool> from_constants_;   // made of constants alone
  std::map<std::pair<ValueId, bool>, Value> stored_;
  size_t products_ = 0, integer_products_ = 0;  // the latter are among the former
};

}  // namespace

Graph read_integers(const Graph& graph, const Target& target, const Quantization& quantization,
                    Notes* notes) {
  return IntegerReader(graph, target, quantization).run(notes);
}

}  // namespace brrr
