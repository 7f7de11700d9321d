// Quantisation, and products of 8-bit integers. Products are exact: u8 becomes i8 by taking off
// 128, and zero points are corrected by sums of rows and columns, so that the kernels for i8 run.

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/onnx/packed_integers.h"
#include "modules/onnx/call.h"
#include "modules/onnx/operators/products.h"

namespace brrr::onnx {
namespace {

constexpr std::string_view kMicrosoft = "com.microsoft";

Value as_scalar(Value x) { return x.shape().rank() == 0 ? x : reshape(x, {}); }

/// Each element of an axis `block` times, as many of them as `size`.
Value repeated(Value x, int axis, int64_t block, int64_t size) {
  Shape with_one, with_block, flat = x.shape();
  for (int a = 0; a < x.shape().rank(); ++a) {
    with_one.push_back(x.shape()[a]);
    with_block.push_back(x.shape()[a]);
    if (a != axis) continue;
    with_one.push_back(Dim(1));
    with_block.push_back(Dim(block));
  }
  const int64_t all = x.shape().size(axis) * block;
  flat[axis] = Dim(all);
  x = reshape(broadcast_to(reshape(x, with_one), with_block), flat);
  return all == size ? x : slice(x, axis, 0, size);
}

/// Fails unless `v` has one element for each block of `size` elements along an axis of `x`.
void check_blocks(Call& c, Value v, const Shape& x, int axis, int64_t block, const char* what) {
  Shape wanted = x;
  if (block > 0) wanted[axis] = Dim((x.size(axis) + block - 1) / block);
  if (block < 0 || v.shape() != wanted)
    c.fail("the {} {} does not fit blocks of {} along axis {} of {}", what, v.shape().str(), block,
           axis, x.str());
}

/// A scale or a zero point as it broadcasts to `x`: of the whole tensor, of an axis, or of blocks.
Value spread(Call& c, Value v, const Shape& x, const char* what) {
  const int64_t block = c.integer("block_size", 0);
  const int rank = v.shape().rank();
  if (rank <= 1 && v.shape().elements() == 1) return as_scalar(v);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 1), x.rank()));
  if (block == 0) {
    if (rank != 1 || v.shape()[0] != x[axis])
      c.fail("the {} {} does not fit axis {} of {}", what, v.shape().str(), axis, x.str());
    Shape shape;
    for (int a = 0; a < x.rank(); ++a) shape.push_back(a == axis ? x[a] : Dim(1));
    return reshape(v, shape);
  }
  check_blocks(c, v, x, axis, block, what);
  return repeated(v, axis, block, x.size(axis));
}

/// The axis that whole blocks of {block_size} divide; nothing: there are no blocks, or the last one
/// has fewer elements.
std::optional<int> blocked_axis(Call& c, Value x, Value scale) {
  const int64_t block = c.integer("block_size", 0);
  if (block <= 0 || (scale.shape().rank() <= 1 && scale.shape().elements() == 1))
    return std::nullopt;
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 1), x.shape().rank()));
  return x.shape().size(axis) % block == 0 ? std::optional(axis) : std::nullopt;
}

/// An axis as blocks: [..., size, ...] -> [..., size / block, block, ...].
Value in_blocks(Value x, int axis, int64_t block) {
  Shape shape;
  for (int a = 0; a < x.shape().rank(); ++a) {
    shape.push_back(a == axis ? Dim(x.shape().size(a) / block) : x.shape()[a]);
    if (a == axis) shape.push_back(Dim(block));
  }
  return reshape(x, shape);
}

/// The zero point of a dequantisation; a known one is a constant, and absent where it is 0.
std::optional<Value> zero_point(Call& c, size_t i) {
  // The zero point of 8-bit floats is 0.
  if (!c.has(i) || is_fp8(c.in(0).dtype())) return std::nullopt;
  const RefTensor* known = c.known_or_null(i);
  if (known == nullptr) return c.in(i);
  for (size_t e = 0; e < known->size(); ++e)
    if (known->number(e) != 0) return constant_in(c.graph(), *known);
  return std::nullopt;
}

DType float_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// round(x / scale) + zero in `to`: half to even, and what is out of range becomes the nearest end.
/// `narrow`: the range, where it is less than that of `to`.
Value quantised(Value x, Value scale, std::optional<Value> zero, DType to,
                std::optional<NarrowInteger> narrow = std::nullopt) {
  Value y = x / scale;
  if (is_fp8(to)) return cast(y, to);
  const DType wide = float_of(y.dtype());
  y = round(cast(y, wide));
  if (zero) y = y + cast(*zero, wide);
  if (narrow)
    y = minimum(maximum(y, scalar(*y.graph, narrow->least(), wide)),
                scalar(*y.graph, narrow->most(), wide));
  return cast(y, to);
}

/// (x - zero) scale, in f32.
Value dequantised(Value x, Value scale, std::optional<Value> zero) {
  const DType wide = float_of(scale.dtype());
  Value y = cast(x, wide);
  if (zero) y = y - cast(*zero, wide);
  return y * cast(scale, wide);
}

void quantize_linear(Call& c) {
  Value x = c.in(0), scale = spread(c, c.in(1), c.in(0).shape(), "scale");
  ElementType element = ElementType::u8;
  if (c.integer("output_dtype", 0) != 0) element = c.element_type("output_dtype");
  std::optional<Value> zero = c.optional(2);
  if (zero && !narrow_integer(element)) {
    element = c.item(2).element;
    if (element == ElementType::undefined) element = element_type_of(zero->dtype());
  }
  const DType to = *dtype_of(element);
  if (!is_integer(to) && !is_fp8(to)) c.refuse("quantisation to {}", name_of(to));
  if (is_fp8(to) && c.integer("saturate", 1) == 0)
    c.refuse("a quantisation to 8-bit floats that does not saturate");
  if (zero) zero = spread(c, *zero, x.shape(), "zero point");
  DType precision = is_float(x.dtype()) ? x.dtype() : scale.dtype();
  if (c.integer("precision", 0) != 0) precision = c.dtype("precision");
  const Value y =
      quantised(cast(x, precision), cast(scale, precision), zero, to, narrow_integer(element));
  c.out(0, {y, element});
}

void dequantize_linear(Call& c) {
  const Value x = c.in(0), scale = c.in(1);
  const auto axis = blocked_axis(c, x, scale);
  const int64_t block = c.integer("block_size", 0);
  const auto as_factor = [&](Value v, const char* what) {
    if (!axis || (v.shape().rank() <= 1 && v.shape().elements() == 1))
      return spread(c, v, x.shape(), what);
    check_blocks(c, v, x.shape(), *axis, block, what);
    return in_blocks(v, *axis, 1);
  };
  const Value factor = as_factor(scale, "scale");
  std::optional<Value> zero;
  if (c.has(2)) {
    const Value given = as_factor(c.in(2), "zero point");  // refuses one that does not fit
    if (const auto known = zero_point(c, 2))
      zero = known->id == c.in(2).id ? given : as_factor(*known, "zero point");
  }
  DType to = scale.dtype();
  if (c.integer("output_dtype", 0) != 0) to = c.dtype("output_dtype");
  if (!axis) return c.out(cast(dequantised(x, factor, zero), to));
  const Value y = dequantised(in_blocks(x, *axis, block), factor, zero);
  c.out(cast(reshape(y, x.shape()), to));
}

void dynamic_quantize_linear(Call& c) {
  const DynamicallyQuantised q = quantised_by_range(c.in(0));
  c.out(q.values);
  c.out(1, q.scale);
  c.out(2, q.zero);
}

// -- products
// -------------------------------------------------------------------------------------

Value product_of_shifted(Call& c, const Shifted& a, const Shifted& b) {
  return numpy_product(c, a.value, b.value, [&](Value x, Value y) {
    return integer_product({x, a.zero, {}}, {y, b.zero, {}});
  });
}

void matmul_integer(Call& c) {
  c.out(product_of_shifted(c, shifted(c, 0, 2, true), shifted(c, 1, 3, false)));
}

/// The scale of the rows of the left factor.
Value of_rows(Value scale) {
  if (scale.shape().elements() == 1) return as_scalar(scale);
  return scale.shape().rank() == 1 ? reshape(scale, {scale.shape()[0], Dim(1)}) : scale;
}
/// The scale of the columns of the right factor.
Value of_columns(Value scale) { return scale.shape().elements() == 1 ? as_scalar(scale) : scale; }

void qlinear_matmul(Call& c) {
  const Value product = product_of_shifted(c, shifted(c, 0, 2, true), shifted(c, 3, 5, false));
  const Value factor = of_rows(c.in(1)) * of_columns(c.in(4)) / as_scalar(c.in(6));
  const Value zero = as_scalar(c.in(7));
  const Value y = round(cast(product, DType::f32) * cast(factor, DType::f32));
  c.out(cast(y + cast(zero, DType::f32), zero.dtype()));
}

/// Operands: A, a_scale, a_zero_point, B, b_scale, b_zero_point, C (i32), y_scale, y_zero_point.
void qgemm(Call& c) {
  Shifted a = shifted(c, 0, 2, false), b = shifted(c, 3, 5, false);
  if (a.value.shape().rank() != 2 || b.value.shape().rank() != 2)
    c.fail("expected two matrices; got {} and {}", c.in(0).type().str(), c.in(3).type().str());
  if (c.integer("transA", 0) != 0) a.value = transpose(a.value, {1, 0});
  if (c.integer("transB", 0) != 0) b.value = transpose(b.value, {1, 0});
  const double alpha = c.number("alpha", 1.0);
  Value product = integer_product(a, b);
  if (c.has(6)) product = product + c.in(6);
  const Value factor = as_scalar(c.in(1)) * of_columns(c.in(4)) * alpha;
  const Value y = cast(product, DType::f32) * cast(factor, DType::f32);
  if (!c.has(7)) return c.out(y);
  c.out(quantised(y, as_scalar(c.in(7)), as_scalar(c.in(8)), c.in(8).dtype()));
}

Value with_bias(Call& c, Value y, size_t i) { return c.has(i) ? y + c.in(i) : y; }

void matmul_integer_to_float(Call& c) {
  const Value product = product_of_shifted(c, shifted(c, 0, 4, true), shifted(c, 1, 5, false));
  const Value factor = of_rows(c.in(2)) * of_columns(c.in(3));
  c.out(with_bias(c, cast(product, factor.dtype()) * factor, 6));
}

void dynamic_quantize_matmul(Call& c) {
  const DynamicallyQuantised q = quantised_by_range(c.in(0));
  const Value product = product_of_shifted(c, shifted(q.values, q.zero), shifted(c, 1, 3, false));
  c.out(with_bias(c, cast(product, DType::f32) * (q.scale * of_columns(c.in(2))), 4));
}

/// Unpacks unsigned numbers of `bits` bits, the low ones first: [..., n] -> [..., n 8 / bits].
Value unpacked(Value packed, int64_t bits) {
  if (bits == 8) return packed;
  Graph& g = *packed.graph;
  const int64_t per_byte = 8 / bits;
  Shape column = packed.shape(), flat = packed.shape();
  column.push_back(Dim(1));
  flat[-1] = Dim(packed.shape().size(-1) * per_byte);
  std::vector<Number> shifts;
  for (int64_t i = 0; i < per_byte; ++i) shifts.emplace_back(i * bits);
  const Value by = literal(g, {per_byte}, shifts, DType::u8);
  const Value low = scalar(g, (1 << bits) - 1, DType::u8);
  return reshape(bit_and(shift_right(reshape(packed, column), by), low), flat);
}

/// The block of each column of MatMulNBits' weight [N, K], where the file gives an order.
std::optional<Value> blocks_of_columns(Call& c, int64_t k, int64_t blocks, int64_t padded) {
  if (!c.has(4)) return std::nullopt;
  const Value order = c.in(4);
  const int64_t given = order.shape().elements();
  if (!is_integer(order.dtype()) || (given != k && given != padded))
    c.fail("g_idx is {}; expected {} integers", order.type().str(), k);
  if (const RefTensor* known = c.known_or_null(4))
    for (int64_t i = 0; i < k; ++i)
      if (const auto at = known->integer<int64_t>(static_cast<size_t>(i)); at < 0 || at >= blocks)
        c.fail("g_idx names block {} of {}", at, blocks);
  return slice(reshape(order, {given}), 0, 0, k);
}

/// The weight [N, K] of MatMulNBits: blocks of columns, each with a scale and a zero point.
Value blocked_weight(Call& c, int64_t n, int64_t k, DType dtype) {
  const int64_t bits = c.integer("bits", 4), block = c.integer("block_size");
  if (bits != 2 && bits != 4 && bits != 8) c.refuse("{} bits", bits);
  if (block < 1) c.fail("block_size is {}", block);
  const int64_t blocks = (k + block - 1) / block;
  const Value packed = c.in(1);
  if (packed.dtype() != DType::u8 || packed.shape().elements() * 8 != n * blocks * block * bits)
    c.fail("B is {} and does not hold {} rows of {} blocks of {} numbers of {} bits",
           packed.type().str(), n, blocks, block, bits);
  const Value numbers =
      reshape(unpacked(reshape(packed, {n, blocks, block * bits / 8}), bits), {n, blocks, block});
  Value zero = c.scalar(int64_t{1} << (bits - 1), dtype);
  if (c.has(3)) {
    Value given = c.in(3);
    if (given.dtype() == DType::u8) {  // packed, too: each row begins with a byte
      const int64_t bytes = (blocks * bits + 7) / 8;
      given = slice(unpacked(reshape(given, {n, bytes}), bits), 1, 0, blocks);
    }
    zero = reshape(cast(given, dtype), {n, blocks, 1});
  }
  const Value scale = reshape(cast(c.in(2), dtype), {n, blocks, 1});
  const auto columns = [&](Value v) {
    v = reshape(v, {n, blocks * block});
    return blocks * block == k ? v : slice(v, 1, 0, k);
  };
  if (const auto order = blocks_of_columns(c, k, blocks, blocks * block)) {
    const auto ordered = [&](Value v) { return gather(reshape(v, {n, blocks}), *order, 1); };
    if (c.has(3)) zero = ordered(zero);
    return (cast(columns(numbers), dtype) - zero) * ordered(scale);
  }
  return columns((cast(numbers, dtype) - zero) * scale);
}

void matmul_n_bits(Call& c) {
  const Value x = c.in(0);
  const int64_t n = c.integer("N"), k = c.integer("K");
  if (n < 1 || k < 1) c.fail("N = {}, K = {}", n, k);
  c.out(with_bias(c, matmul(x, blocked_weight(c, n, k, x.dtype()), false, true), 5));
}

// -- element by element
// ---------------------------------------------------------------------------

/// f of operands that are quantised, to a result that is: (value, scale, zero point) each.
template <size_t kOperands, typename F>
void quantised_map(Call& c, F f) {
  std::array<std::optional<Value>, kOperands> x;
  for (size_t i = 0; i < kOperands; ++i) {
    std::optional<Value> zero;
    if (c.has(3 * i + 2)) zero = as_scalar(c.in(3 * i + 2));
    x[i] = dequantised(c.in(3 * i), as_scalar(c.in(3 * i + 1)), zero);
  }
  std::optional<Value> zero;
  if (c.has(3 * kOperands + 1)) zero = as_scalar(c.in(3 * kOperands + 1));
  c.out(quantised(f(x), as_scalar(c.in(3 * kOperands)), zero, c.in(0).dtype()));
}

template <Value (*kOp)(Value, Value)>
void quantised_binary(Call& c) {
  quantised_map<2>(c, [](const auto& x) { return kOp(*x[0], *x[1]); });
}

void quantised_sigmoid(Call& c) {
  quantised_map<1>(c, [](const auto& x) { return sigmoid(*x[0]); });
}

void quantised_leaky_relu(Call& c) {
  const double alpha = c.number("alpha", 0.01);
  quantised_map<1>(c, [&](const auto& x) {
    return where(less(*x[0], scalar(*x[0]->graph, 0, x[0]->dtype())), *x[0] * alpha, *x[0]);
  });
}

/// Operands: scale and zero point of the result, then (value, scale, zero point) of each part.
void quantised_concat(Call& c) {
  const Value scale = as_scalar(c.in(0)), zero = as_scalar(c.in(1));
  std::vector<Value> parts;
  for (size_t i = 2; i + 2 < c.inputs(); i += 3) {
    const Value x = dequantised(c.in(i), as_scalar(c.in(i + 1)), as_scalar(c.in(i + 2)));
    parts.push_back(quantised(x, scale, zero, zero.dtype()));
  }
  if (parts.empty()) c.fail("there is nothing to join");
  c.out(concat(parts, static_cast<int>(c.axis(c.integer("axis"), parts.at(0).shape().rank()))));
}

const OperatorRow kQuantisedRows[] = {
    {"", "QuantizeLinear", quantize_linear},
    {"", "DequantizeLinear", dequantize_linear},
    {"", "DynamicQuantizeLinear", dynamic_quantize_linear},
    {"", "MatMulInteger", matmul_integer},
    {"", "QLinearMatMul", qlinear_matmul},
    {kMicrosoft, "QuantizeLinear", quantize_linear},
    {kMicrosoft, "DequantizeLinear", dequantize_linear},
    {kMicrosoft, "MatMulIntegerToFloat", matmul_integer_to_float},
    {kMicrosoft, "DynamicQuantizeMatMul", dynamic_quantize_matmul},
    {kMicrosoft, "MatMulNBits", matmul_n_bits},
    {kMicrosoft, "QGemm", qgemm},
    {kMicrosoft, "QLinearAdd", quantised_binary<add>},
    {kMicrosoft, "QLinearMul", quantised_binary<mul>},
    {kMicrosoft, "QLinearSigmoid", quantised_sigmoid},
    {kMicrosoft, "QLinearLeakyRelu", quantised_leaky_relu},
    {kMicrosoft, "QLinearConcat", quantised_concat},
};

}  // namespace

std::span<const OperatorRow> quantised_operators() { return kQuantisedRows; }

// -- what other files use
// -------------------------------------------------------------------------

Shifted shifted(Value x, std::optional<Value> zero) {
  Graph& g = *x.graph;
  if (zero) zero = cast(*zero, DType::i32);
  if (x.dtype() == DType::i8) return {x, zero, {}};
  const Value half = scalar(g, 128, DType::i32);
  zero = zero ? *zero - half : scalar(g, -128, DType::i32);
  return {cast(cast(x, DType::i32) - half, DType::i8), zero, {}};
}

Shifted shifted(Call& c, Value x, std::optional<Value> zero) {
  Shifted s = shifted(x, zero);
  const RefTensor* known = s.zero ? c.lowering().known_or_null(*s.zero) : nullptr;
  bool all_zero = known != nullptr;
  for (size_t i = 0; all_zero && i < known->size(); ++i) all_zero = known->bits(i) == 0;
  if (all_zero) s.zero.reset();
  return s;
}

Shifted shifted(Call& c, size_t value, size_t zero, bool as_column) {
  const Value x = c.in(value);
  if (x.dtype() != DType::i8 && x.dtype() != DType::u8)
    c.fail("operand {} must be i8 or u8; got {}", value, x.type().str());
  if (!c.has(zero)) return shifted(x, std::nullopt);
  Value z = c.in(zero);
  if (z.dtype() != x.dtype())
    c.fail("the zero point is {}, the values are {}", name_of(z.dtype()), name_of(x.dtype()));
  if (z.shape().elements() == 1) z = as_scalar(z);
  if (z.shape().rank() == 1 && as_column) z = reshape(z, {z.shape()[0], Dim(1)});
  return shifted(c, x, z);
}

Value column_sums(Value b) {
  return matmul(full(*b.graph, {1, b.shape().size(-2)}, 1, DType::i8), b);
}

Value integer_product(const Shifted& a, const Shifted& b) {
  Graph& g = *a.value.graph;
  const int64_t k = a.value.shape().size(-1);
  Value y = matmul(a.value, b.value);
  // (a - za) (b - zb) = a b - za 1 b - a 1 zb + K za zb, where 1 b are the sums of the columns.
  if (a.zero) {
    Value sums = b.sums ? *b.sums : column_sums(b.value);
    if (b.zero) sums = sums - *b.zero * scalar(g, k, DType::i32);
    y = y - *a.zero * sums;
  }
  if (b.zero) y = y - matmul(a.value, full(g, {k, 1}, 1, DType::i8)) * *b.zero;
  return y;
}

DynamicallyQuantised quantised_by_range(Value x) {
  Graph& g = *x.graph;
  std::vector<int64_t> axes;
  for (int a = 0; a < x.shape().rank(); ++a) axes.push_back(a);
  const Value nothing = scalar(g, 0.0, x.dtype());
  const Value high = maximum(max(x, axes), nothing), low = minimum(-max(-x, axes), nothing);
  const Value range = high - low, one = scalar(g, 1.0, x.dtype());
  const Value scale = where(equal(range, nothing), one, range) / 255.0;
  const Value zero = round(minimum(maximum(-low / scale, nothing), scalar(g, 255.0, x.dtype())));
  return {cast(round(x / scale) + zero, DType::u8), scale, cast(zero, DType::u8)};
}

}  // namespace brrr::onnx
