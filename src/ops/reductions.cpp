// sum, max, min and product over axes; mean is a sum and a product.

#include <algorithm>
#include <type_traits>

#include "ops/support.h"

namespace brrr {
namespace {

Shape reduced_shape(const InferContext& c) {
  const Shape& x = c.in[0].shape;
  const auto& axes = c.attr<std::vector<int64_t>>("axes");
  const bool keep = c.attr<bool>("keep");
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] < 0 || axes[i] >= x.rank() || (i > 0 && axes[i] <= axes[i - 1]))
      c.fail("axes must be distinct, ascending and in [0, {})", x.rank());
  Shape y;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (!std::binary_search(axes.begin(), axes.end(), axis))
      y.push_back(x[axis]);
    else if (keep)
      y.push_back(Dim(1));
  }
  return y;
}

// Folds every element x(i) into its place in y.
template <typename T, typename Read, typename Fold>
void fold_into(const EvalContext& c, std::vector<T>& y, T start, Read x, Fold fold) {
  const auto& axes = c.node.attrs.get<std::vector<int64_t>>("axes");
  const Shape& shape = c.in[0]->type.shape;
  y.assign(c.out[0].size(), start);
  ops::for_each_index(shape, [&](int64_t i, const std::vector<int64_t>& index) {
    int64_t flat = 0;
    for (int axis = 0; axis < shape.rank(); ++axis)
      if (!std::binary_search(axes.begin(), axes.end(), axis))
        flat = flat * shape.size(axis) + index[static_cast<size_t>(axis)];
    T& to = y[static_cast<size_t>(flat)];
    to = fold(to, x(static_cast<size_t>(i)));
  });
}

/// Where a fold over integers starts.
enum class Start { zero, one, lowest, greatest };

// In double, or exactly in the integers of the dtype.
template <typename Fold>
void reduce(const EvalContext& c, double start, Start of_integers, Fold fold) {
  const RefTensor& x = *c.in[0];
  const DType dtype = x.type.dtype;
  auto in_integers = [&]<typename T>(T first) {
    std::vector<T> y;
    fold_into(
        c, y, first, [&](size_t i) { return x.integer<T>(i); }, fold);
    for (size_t i = 0; i < y.size(); ++i) c.out[0].set_bits(i, static_cast<uint64_t>(y[i]));
  };
  const uint64_t first = of_integers == Start::lowest     ? lowest_integer(dtype)
                         : of_integers == Start::greatest ? greatest_integer(dtype)
                         : of_integers == Start::one      ? 1
                                                          : 0;
  if (is_signed_integer(dtype))
    in_integers(static_cast<int64_t>(first));
  else if (is_unsigned_integer(dtype))
    in_integers(first);
  else
    fold_into(
        c, c.out[0].data, start, [&](size_t i) { return x.data[i]; }, fold);
}

std::vector<int64_t> normal_axes(std::vector<int64_t> axes, int rank) {
  for (int64_t& axis : axes) axis = ops::normal_axis(axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

// dy with the reduced axes back as ones, so that it broadcasts against x.
Value with_axes(Value dy, const Shape& x, const std::vector<int64_t>& axes) {
  Shape shape = x;
  for (int64_t axis : axes) shape[static_cast<int>(axis)] = Dim(1);
  return dy.shape() == shape ? dy : reshape(dy, shape);
}

// The derivative of max and min is shared, not repeated: that of max(b, b) is that of b.
void extreme_gradient(VjpContext& c) {
  Value x = c.operand(0);
  const auto axes = c.attrs().get<std::vector<int64_t>>("axes");
  Value y = with_axes(c.result(0), x.shape(), axes);
  Value dy = with_axes(c.grad(0), x.shape(), axes);
  Value ties = equal(x, y);
  Value count = sum(cast(ties, x.dtype()), axes, true);
  c.set(0, where(ties, dy / count, scalar(c.graph, 0, x.dtype())));
}

std::vector<Sample> reduction_samples() {
  std::vector<Sample> out;
  auto add = [&](Shape x, std::vector<int64_t> axes, bool keep, DType dtype = DType::f32) {
    const double low = is_float(dtype) ? -1 : is_signed_integer(dtype) ? -9 : 0;
    out.push_back({{ops::tensor(std::move(x), low, is_float(dtype) ? 1 : 9, dtype)},
                   {{"axes", std::move(axes)}, {"keep", keep}}});
  };
  add({3, 37}, {1}, false);
  add({3, 37}, {0}, false);
  add({3, 37}, {0, 1}, false);
  add({2, 3, 4, 5}, {1, 3}, true);
  add({2, 3, 4, 5}, {0, 1, 2}, false);
  add({1000, 17}, {0}, false);
  add({4, 8}, {}, false);
  for (DType t : {DType::i32, DType::i64, DType::u64, DType::u8}) add({3, 7}, {1}, false, t);
  return out;
}

OpDef reduction(const char* name, const char* doc) {
  OpDef d;
  d.name = name;
  d.doc = doc;
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    if (c.in[0].dtype == DType::boolean) c.fail("x must be a number; got {}", c.in[0].str());
    return std::vector<Type>{{c.in[0].dtype, reduced_shape(c)}};
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[0]));
  };
  d.samples = reduction_samples;
  return d;
}

}  // namespace

Value sum(Value x, std::vector<int64_t> axes, bool keep) {
  return call1(Op::sum, {x},
               {{"axes", normal_axes(std::move(axes), x.shape().rank())}, {"keep", keep}});
}

Value max(Value x, std::vector<int64_t> axes, bool keep) {
  return call1(Op::max, {x},
               {{"axes", normal_axes(std::move(axes), x.shape().rank())}, {"keep", keep}});
}

Value min(Value x, std::vector<int64_t> axes, bool keep) {
  return call1(Op::min, {x},
               {{"axes", normal_axes(std::move(axes), x.shape().rank())}, {"keep", keep}});
}

Value product(Value x, std::vector<int64_t> axes, bool keep) {
  return call1(Op::product, {x},
               {{"axes", normal_axes(std::move(axes), x.shape().rank())}, {"keep", keep}});
}

Value mean(Value x, std::vector<int64_t> axes, bool keep) {
  double count = 1;
  for (int64_t axis : axes) count *= static_cast<double>(x.shape().size(static_cast<int>(axis)));
  return sum(x, std::move(axes), keep) * (1 / count);
}

namespace ops {

std::vector<OpDef> reduction_ops() {
  std::vector<OpDef> list;
  OpDef sum_op =
      reduction("sum",
                "y = sum of x over {axes}; {keep} leaves them as 1. x: [...]; accumulates "
                "in f32 or wider; integers wrap around");
  sum_op.evaluate = [](const EvalContext& c) {
    reduce(c, 0.0, Start::zero, []<typename T>(T y, T x) {
      if constexpr (std::is_same_v<T, double>)
        return y + x;
      else
        return static_cast<T>(static_cast<uint64_t>(y) + static_cast<uint64_t>(x));
    });
  };
  sum_op.vjp = [](VjpContext& c) {
    Value x = c.operand(0);
    Value dy = with_axes(c.grad(0), x.shape(), c.attrs().get<std::vector<int64_t>>("axes"));
    c.set(0, broadcast_to(dy, x.shape()));
  };
  list.push_back(std::move(sum_op));

  OpDef max_op = reduction("max",
                           "y = the largest x over {axes}, over none -inf or the lowest integer; "
                           "{keep} leaves them as 1. "
                           "The gradient is shared evenly by every x that equals y. x: [...]");
  max_op.evaluate = [](const EvalContext& c) {
    reduce(c, -INFINITY, Start::lowest, []<typename T>(T y, T x) {
      if constexpr (std::is_same_v<T, double>)
        if (std::isnan(x) || std::isnan(y)) return static_cast<T>(NAN);
      return std::max(y, x);
    });
  };
  max_op.vjp = extreme_gradient;
  list.push_back(std::move(max_op));

  OpDef min_op = reduction("min",
                           "y = the smallest x over {axes}, over none inf or the greatest integer; "
                           "{keep} leaves them as 1. "
                           "The gradient is shared evenly by every x that equals y. x: [...]");
  min_op.evaluate = [](const EvalContext& c) {
    reduce(c, INFINITY, Start::greatest, []<typename T>(T y, T x) {
      if constexpr (std::is_same_v<T, double>)
        if (std::isnan(x) || std::isnan(y)) return static_cast<T>(NAN);
      return std::min(y, x);
    });
  };
  min_op.vjp = extreme_gradient;
  list.push_back(std::move(min_op));

  OpDef product_op =
      reduction("product",
                "y = product of x over {axes}, over none 1; {keep} leaves them as 1. The gradient "
                "is y / x, so that no x may be 0. x: [...]; accumulates in f32 or wider; integers "
                "wrap around");
  product_op.evaluate = [](const EvalContext& c) {
    reduce(c, 1.0, Start::one, []<typename T>(T y, T x) {
      if constexpr (std::is_same_v<T, double>)
        return y * x;
      else
        return static_cast<T>(static_cast<uint64_t>(y) * static_cast<uint64_t>(x));
    });
  };
  product_op.samples = [] {
    std::vector<Sample> samples = reduction_samples();
    for (Sample& sample : samples)
      if (is_float(sample.in[0].type.dtype)) sample.in[0].low = 0.9, sample.in[0].high = 1.1;
    return samples;
  };
  product_op.vjp = [](VjpContext& c) {
    Value x = c.operand(0);
    const auto axes = c.attrs().get<std::vector<int64_t>>("axes");
    Value y = with_axes(c.result(0), x.shape(), axes);
    Value dy = with_axes(c.grad(0), x.shape(), axes);
    c.set(0, dy * y / x);
  };
  list.push_back(std::move(product_op));
  return list;
}

}  // namespace ops
}  // namespace brrr
