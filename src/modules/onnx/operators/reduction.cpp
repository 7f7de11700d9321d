// Reductions, softmax, sorting, products of matrices, normalisation of rows.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "modules/onnx/call.h"
#include "modules/onnx/operators/products.h"

namespace brrr::onnx {
namespace {

/// Sums in f32 or wider.
DType wide(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

std::vector<int64_t> all_axes(const Value& x) {
  std::vector<int64_t> axes(static_cast<size_t>(x.shape().rank()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

using Reduce = Value (*)(Value x, std::vector<int64_t> axes, bool keep);

/// `before` on every element, the reduction, `after` on the result.
template <typename Before, typename After>
void reduce(Call& c, Reduce reduction, Before before, After after) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  std::optional<std::vector<int64_t>> axes = c.integers_of("axes", 1);
  if (axes && axes->empty() && c.has_attribute("axes")) axes.reset();
  if (!axes || axes->empty()) {
    if (c.integer("noop_with_empty_axes", 0) != 0) return c.out(after(before(x)));
    axes = all_axes(x);
  }
  axes = c.axes(*axes, rank);
  const DType dtype = x.dtype();
  const bool keep = c.integer("keepdims", 1) != 0;
  c.out(cast(after(reduction(before(cast(x, wide(dtype))), *axes, keep)), dtype));
}

Value same(Value x) { return x; }
Value positive(Value x) {
  if (is_float(x.dtype())) return abs(x);
  const Value zero = scalar(*x.graph, 0, x.dtype());
  return is_unsigned_integer(x.dtype()) ? x : where(less(x, zero), zero - x, x);
}
Value squared(Value x) { return x * x; }
Value root(Value x) {
  return is_float(x.dtype()) ? sqrt(x) : cast(sqrt(cast(x, DType::f64)), x.dtype());
}
Value logarithm(Value x) {
  return is_float(x.dtype()) ? log(x) : cast(log(cast(x, DType::f64)), x.dtype());
}

Value mean_over(Value x, std::vector<int64_t> axes, bool keep) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= x.shape().size(static_cast<int>(axis));
  const Value total = sum(x, std::move(axes), keep);
  if (is_float(x.dtype())) return total * (1.0 / static_cast<double>(count));
  return total / scalar(*x.graph, count, x.dtype());
}

/// Booleans as 0 and 1.
template <Reduce kOp>
Value of_numbers(Value x, std::vector<int64_t> axes, bool keep) {
  if (x.dtype() != DType::boolean) return kOp(x, std::move(axes), keep);
  return cast(kOp(cast(x, DType::u8), std::move(axes), keep), DType::boolean);
}

/// The largest along the axes, and 0 where it is infinite: a difference would be no number there.
Value finite_top(Value x, const std::vector<int64_t>& axes) {
  const Value top = max(x, axes, true), zero = scalar(*x.graph, 0, x.dtype());
  return where(equal(abs(top), scalar(*x.graph, INFINITY, x.dtype())), zero, top);
}

/// ln sum e^x, from the largest on.
Value log_sum_exp(Value x, std::vector<int64_t> axes, bool keep) {
  if (!is_float(x.dtype())) x = cast(x, DType::f64);
  const Value finite = finite_top(x, axes);
  const Value y = log(sum(exp(x - finite), axes, true)) + finite;
  return keep ? y : reshape(y, sum(x, axes, false).shape());
}

template <Reduce kOp, Value (*kBefore)(Value) = same, Value (*kAfter)(Value) = same>
void reduction_op(Call& c) {
  reduce(c, kOp, kBefore, kAfter);
}

// -- softmax
// --------------------------------------------------------------------------------------

/// f over the last axis, of x with another axis moved there.
template <typename F>
Value over_axis(Value x, int axis, F f) {
  const int rank = x.shape().rank();
  if (axis == rank - 1) return f(x);
  std::vector<int64_t> swap(static_cast<size_t>(rank));
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[static_cast<size_t>(axis)], swap.back());
  return transpose(f(transpose(x, swap)), swap);
}

/// (x - max) - ln sum e^(x - max): the logarithm of the sum is lost in max + ln sum where x is
/// large.
Value log_softmax(Value x) {
  const DType dtype = x.dtype();
  x = cast(x, wide(dtype));
  const std::vector<int64_t> last{x.shape().rank() - 1};
  const Value centred = x - max(x, last, true);
  return cast(centred - log(sum(exp(centred), last, true)), dtype);
}

Value hardmax_of(Value x) {
  const int last = x.shape().rank() - 1;
  Value where_largest = argmax(x, last);
  Shape column = x.shape();
  column[last] = Dim(1);
  const Value ids = iota(*x.graph, x.shape(), last, DType::i64);
  return cast(equal(ids, reshape(where_largest, column)), x.dtype());
}

template <Value (*kOp)(Value)>
void softmax_like(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  const auto axis =
      static_cast<int>(c.axis(c.integer("axis", c.opset() >= 13 ? -1 : 1), std::max(rank, 1)));
  if (rank == 0) return c.out(reshape(kOp(reshape(x, {1})), {}));
  if (c.opset() >= 13 || axis == rank - 1) return c.out(over_axis(x, axis, kOp));
  // Before opset 13: over all axes from `axis` on.
  int64_t rows = 1;
  for (int a = 0; a < axis; ++a) rows *= x.shape().size(a);
  c.out(reshape(kOp(reshape(x, {rows, rows == 0 ? 0 : x.shape().elements() / rows})), x.shape()));
}

// -- order
// ----------------------------------------------------------------------------------------

template <bool kSmallest>
void arg_extreme(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), rank));
  const Value y = argmax(x, axis, kSmallest, c.integer("select_last_index", 0) != 0);
  if (c.integer("keepdims", 1) == 0) return c.out(y);
  Shape shape = x.shape();
  shape[axis] = Dim(1);
  c.out(reshape(y, shape));
}

void top_k(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  const auto axis = static_cast<int>(c.axis(c.integer("axis", -1), rank));
  const int64_t k = c.opset() >= 10 ? c.known_integer(1) : c.integer("k");
  if (k < 0 || k > x.shape().size(axis)) c.fail("k = {} of {}", k, x.type().str());
  const Sorted sorted = sort(x, axis, c.integer("largest", 1) != 0, k);
  c.out(sorted.values);
  c.out(1, sorted.indices);
}

template <Value (*kOp)(Value, int, bool, bool)>
void running(Call& c) {
  const Value x = c.in(0);
  const auto axis = static_cast<int>(c.axis(c.known_integer(1), x.shape().rank()));
  c.out(cast(kOp(cast(x, wide(x.dtype())), axis, c.integer("exclusive", 0) != 0,
                 c.integer("reverse", 0) != 0),
             x.dtype()));
}

// -- products
// -------------------------------------------------------------------------------------

void matrix_product(Call& c) {
  c.out(numpy_product(c, c.in(0), c.in(1), [](Value a, Value b) { return matmul(a, b); }));
}

void gemm(Call& c) {
  const Value a = c.in(0), b = c.in(1);
  const double alpha = c.number("alpha", 1.0), beta = c.number("beta", 1.0);
  Value y = matmul(a, b, c.integer("transA", 0) != 0, c.integer("transB", 0) != 0);
  const auto scaled = [&](Value x, double factor) {
    if (factor == 1) return x;
    if (is_float(x.dtype())) return x * factor;
    return cast(cast(x, DType::f64) * factor, x.dtype());
  };
  y = scaled(y, alpha);
  if (c.has(2) && beta != 0) {
    const Shape product = y.shape();
    y = y + scaled(c.in(2), beta);
    if (y.shape() != product)
      c.fail("C {} must broadcast to the product, {}", c.in(2).type().str(), product.str());
  }
  c.out(y);
}

// -- norms of rows
// --------------------------------------------------------------------------------

/// What LayerNormalization and RMSNormalization normalise: the axes from `axis` on are one row.
struct NormalisedRows {
  explicit NormalisedRows(Call& c)
      : x(c.in(0)),
        axis(static_cast<int>(c.axis(c.integer("axis", -1), x.shape().rank()))),
        eps(c.number("epsilon", 1e-5)),
        inner(c.dtype("stash_type", DType::f32)) {
    if (x.dtype() == DType::f64) inner = DType::f64;
    Shape all;
    for (int a = 0; a < x.shape().rank(); ++a) {
      const Dim dim = x.shape()[a];
      column.push_back(a < axis ? dim : Dim(1));
      (a < axis ? all : own).push_back(dim);
    }
    width = own.elements();
    all.push_back(width);
    rows = reshape(cast(x, inner), all);
  }
  /// A weight or a shift as a vector [C].
  Value vector(Value v) const { return reshape(broadcast_to(cast(v, inner), own), {width}); }

  Value x;
  int axis;
  double eps;
  DType inner;        // of the computation
  Shape own, column;  // of the axes from `axis` on; of x with ones in their place
  int64_t width = 0;  // C
  Value rows;         // [..., C]
};

void layer_normalization(Call& c) {
  const NormalisedRows n(c);
  const auto vector = [&](size_t i, double fallback) {
    return c.has(i) ? n.vector(c.in(i)) : full(c.graph(), {n.width}, fallback, n.inner);
  };
  const LayerNorm norm = layer_norm(n.rows, vector(1, 1), vector(2, 0), n.eps);
  c.out(cast(reshape(norm.y, n.x.shape()), n.x.dtype()));
  c.out(1, reshape(norm.mean, n.column));
  c.out(2, reshape(norm.rstd, n.column));
}

void rms_normalization(Call& c) {
  const NormalisedRows n(c);
  const Value weight = c.in(1), y = rms_norm(n.rows, n.vector(weight), n.eps).y;
  c.out(cast(reshape(y, n.x.shape()), weight.dtype()));
}

void lp_normalization(Call& c) {
  const Value x = c.in(0);
  const int64_t axis = c.axis(c.integer("axis", -1), x.shape().rank());
  const int64_t p = c.integer("p", 2);
  if (p != 1 && p != 2) c.refuse("p = {}", p);
  const Value norm = p == 1 ? sum(abs(x), {axis}, true) : sqrt(sum(x * x, {axis}, true));
  const Value zero = c.scalar_like(0, x);
  c.out(where(equal(norm, zero), zero, x / norm));
}

void mean_variance_normalization(Call& c) {
  const Value x = c.in(0);
  std::vector<int64_t> axes = c.integer_list("axes").value_or(std::vector<int64_t>{0, 2, 3});
  axes = c.axes(axes, x.shape().rank());
  const Value centred = x - mean(x, axes, true);
  c.out(centred / (sqrt(mean(centred * centred, axes, true)) + 1e-9));
}

const OperatorRow kReductionRows[] = {
    {"", "ReduceSum", reduction_op<sum>},
    {"", "ReduceMean", reduction_op<mean_over>},
    {"", "ReduceMax", reduction_op<of_numbers<brrr::max>>},
    {"", "ReduceMin", reduction_op<of_numbers<brrr::min>>},
    {"", "ReduceProd", reduction_op<product>},
    {"", "ReduceL1", reduction_op<sum, positive>},
    {"", "ReduceL2", reduction_op<sum, squared, root>},
    {"", "ReduceSumSquare", reduction_op<sum, squared>},
    {"", "ReduceLogSum", reduction_op<sum, same, logarithm>},
    {"", "ReduceLogSumExp", reduction_op<log_sum_exp>},
    {"", "Softmax", softmax_like<softmax>},
    {"", "LogSoftmax", softmax_like<log_softmax>},
    {"", "Hardmax", softmax_like<hardmax_of>},
    {"", "ArgMax", arg_extreme<false>},
    {"", "ArgMin", arg_extreme<true>},
    {"", "TopK", top_k},
    {"", "CumSum", running<running_sum>},
    {"", "CumProd", running<running_product>},
    {"", "MatMul", matrix_product},
    {"", "Gemm", gemm},
    {"", "LayerNormalization", layer_normalization},
    {"", "RMSNormalization", rms_normalization},
    {"", "LpNormalization", lp_normalization},
    {"", "MeanVarianceNormalization", mean_variance_normalization},
};

}  // namespace

std::span<const OperatorRow> reduction_operators() { return kReductionRows; }

}  // namespace brrr::onnx
