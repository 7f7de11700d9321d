// Operators that compute element by element: arithmetic, comparisons, logic, bits, casts.

#include <cmath>

#include "formats/onnx/packed_integers.h"
#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

/// Before opset 7, an operand was broadcast by the attributes `broadcast` and `axis` alone.
Value legacy_operand(Call& c, size_t i) {
  const Value v = c.in(i);
  if (c.opset() >= 7 || i == 0 || c.integer("broadcast", 0) == 0) return v;
  const Value a = c.in(0);
  const int rank = a.shape().rank(), own = v.shape().rank();
  const int64_t axis =
      c.has_attribute("axis") ? c.axis(c.integer("axis"), rank) : std::max(0, rank - own);
  if (axis + own > rank) c.fail("operand 1 does not fit at axis {}", axis);
  Shape shape = v.shape();
  for (int64_t after = axis + own; after < rank; ++after) shape.push_back(Dim(1));
  return reshape(v, shape);
}

template <Value (*kOp)(Value)>
void unary(Call& c) {
  c.out(kOp(c.in(0)));
}

template <Value (*kOp)(Value, Value)>
void binary(Call& c) {
  c.out(kOp(c.in(0), legacy_operand(c, 1)));
}

// Comparisons of booleans are those of 0 and 1.
template <Value (*kOp)(Value, Value)>
void comparison(Call& c) {
  Value a = c.in(0), b = legacy_operand(c, 1);
  if (a.dtype() == DType::boolean) {
    a = cast(a, DType::u8);
    b = cast(b, DType::u8);
  }
  c.out(kOp(a, b));
}

Value exclusive_or(Value a, Value b) { return not_equal(cast(a, DType::u8), cast(b, DType::u8)); }

template <Value (*kOp)(Value, Value)>
void variadic(Call& c) {
  Value y = c.in(0);
  for (size_t i = 1; i < c.inputs(); ++i) y = kOp(y, c.in(i));
  c.out(y);
}

void mean_of_all(Call& c) {
  Value y = c.in(0);
  for (size_t i = 1; i < c.inputs(); ++i) y = y + c.in(i);
  c.out(y / static_cast<double>(c.inputs()));
}

void identity(Call& c) { c.out(0, c.item(0)); }

void negate(Call& c) {
  const Value x = c.in(0);
  c.out(is_float(x.dtype()) ? neg(x) : c.scalar_like(0, x) - x);
}

Value absolute(Value x) {
  if (is_float(x.dtype())) return abs(x);
  if (is_unsigned_integer(x.dtype())) return x;
  const Value zero = scalar(*x.graph, 0, x.dtype());
  return where(less(x, zero), zero - x, x);
}

void sign(Call& c) {
  const Value x = c.in(0), zero = c.scalar_like(0, x), one = c.scalar_like(1, x);
  const Value positive = where(greater(x, zero), one, zero);
  if (is_unsigned_integer(x.dtype())) return c.out(positive);
  // A NaN stays what it is.
  const Value y = where(less(x, zero), zero - one, positive);
  c.out(is_float(x.dtype()) ? where(equal(x, x), y, x) : y);
}

void rectify(Call& c) {
  const Value x = c.in(0);
  c.out(is_float(x.dtype()) ? relu(x) : maximum(x, c.scalar_like(0, x)));
}

template <Value (*kOp)(Value)>
void rounding(Call& c) {
  const Value x = c.in(0);
  c.out(is_float(x.dtype()) ? kOp(x) : x);
}

/// The exponent may be of another dtype, which must not decide that of the result.
void power(Call& c) {
  const Value a = c.in(0), b = legacy_operand(c, 1);
  const RefTensor* exponent = c.known_or_null(1);
  const bool is_square = exponent != nullptr && exponent->size() == 1 && exponent->number(0) == 2;
  if (is_square && b.shape().rank() <= a.shape().rank()) return c.out(a * a);
  if (a.dtype() == b.dtype()) return c.out(pow(a, b));
  const DType wide = is_float(a.dtype())   ? a.dtype()
                     : is_float(b.dtype()) ? DType::f64
                                           : DType::i64;
  c.out(cast(pow(cast(a, wide), cast(b, wide)), a.dtype()));
}

void modulo(Call& c) {
  const Value a = c.in(0), b = c.in(1), rest = fmod(a, b);
  if (c.integer("fmod", 0) != 0 || is_unsigned_integer(a.dtype())) return c.out(rest);
  // As Python's: the sign is that of the divisor.
  const Value zero = c.scalar_like(0, a);
  const Value wrong =
      logical_and(not_equal(rest, zero), exclusive_or(less(rest, zero), less(b, zero)));
  c.out(where(wrong, rest + b, rest));
}

Value limited(Value x, std::optional<Value> low, std::optional<Value> high) {
  if (low) x = maximum(x, *low);
  if (high) x = minimum(x, *high);
  return x;
}

void clip(Call& c) {
  const Value x = c.in(0);
  if (c.opset() >= 11) return c.out(limited(x, c.optional(1), c.optional(2)));
  std::optional<Value> low, high;
  if (c.has_attribute("min")) low = c.scalar_like(c.number("min"), x);
  if (c.has_attribute("max")) high = c.scalar_like(c.number("max"), x);
  c.out(limited(x, low, high));
}

// -- activations
// ----------------------------------------------------------------------------------

/// x where it is positive, else `other`.
Value positive_or(Value x, Value other) {
  return where(greater(x, scalar(*x.graph, 0, x.dtype())), x, other);
}

void elu(Call& c) {
  const Value x = c.in(0);
  c.out(positive_or(x, expm1(x) * c.number("alpha", 1.0)));
}

void celu(Call& c) {
  const Value x = c.in(0);
  const double alpha = c.number("alpha", 1.0);
  c.out(positive_or(x, expm1(x / alpha) * alpha));
}

void selu(Call& c) {
  const Value x = c.in(0);
  constexpr double kAlpha = 1.67326319217681884765625, kGamma = 1.05070102214813232421875;
  const double alpha = c.number("alpha", kAlpha), gamma = c.number("gamma", kGamma);
  c.out(positive_or(x, expm1(x) * alpha) * gamma);
}

void leaky_relu(Call& c) {
  const Value x = c.in(0);
  const Value scaled = x * c.number("alpha", 0.01);
  c.out(where(less(x, c.scalar_like(0, x)), scaled, x));
}

void parametric_relu(Call& c) {
  const Value x = c.in(0);
  Value slope = c.in(1);
  // Before opset 7, a slope of one axis was that of the channels.
  if (c.opset() < 7 && slope.shape().rank() == 1 && x.shape().rank() > 2) {
    Shape shape{slope.shape()[0]};
    for (int axis = 2; axis < x.shape().rank(); ++axis) shape.push_back(Dim(1));
    slope = reshape(slope, shape);
  }
  c.out(where(less(x, c.scalar_like(0, x)), x * slope, x));
}

void thresholded_relu(Call& c) {
  const Value x = c.in(0);
  c.out(where(greater(x, c.scalar_like(c.number("alpha", 1.0), x)), x, c.scalar_like(0, x)));
}

Value softplus_of(Value x) {
  // ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), which does not overflow.
  return relu(x) + log1p(exp(-abs(x)));
}

void softplus(Call& c) { c.out(softplus_of(c.in(0))); }
void softsign(Call& c) {
  const Value x = c.in(0);
  c.out(x / (1.0 + abs(x)));
}
void mish(Call& c) {
  const Value x = c.in(0);
  c.out(x * tanh(softplus_of(x)));
}

Value hard_sigmoid_of(Value x, double alpha, double beta) {
  const Value zero = scalar(*x.graph, 0, x.dtype()), one = scalar(*x.graph, 1, x.dtype());
  return minimum(maximum(x * alpha + beta, zero), one);
}

void hard_sigmoid(Call& c) {
  c.out(hard_sigmoid_of(c.in(0), c.number("alpha", 0.2), c.number("beta", 0.5)));
}
void hard_swish(Call& c) {
  const Value x = c.in(0);
  c.out(x * hard_sigmoid_of(x, 1.0 / 6, 0.5));
}

void gelu_of(Call& c) {
  const std::string how = c.text("approximate", "none");
  if (how != "none" && how != "tanh") c.refuse("approximate = {}", how);
  c.out(gelu(c.in(0), how == "tanh" ? Gelu::tanh : Gelu::erf));
}

void swish(Call& c) {
  const Value x = c.in(0);
  const double alpha = c.number("alpha", 1.0);
  c.out(alpha == 1 ? silu(x) : x * sigmoid(x * alpha));
}

void shrink(Call& c) {
  const Value x = c.in(0);
  const double bias = c.number("bias", 0.0), lambda = c.number("lambd", 0.5);
  const Value zero = c.scalar_like(0, x), b = c.scalar_like(bias, x), l = c.scalar_like(lambda, x);
  c.out(where(less(x, zero - l), x + b, where(greater(x, l), x - b, zero)));
}

void dropout_of_inference(Call& c) {
  const Value x = c.in(0);
  const bool trains = c.opset() >= 12 && c.has(2) && c.known_number(2) != 0;
  const double ratio = c.opset() < 12 ? 0 : c.has(1) ? c.known_number(1) : 0.5;
  if (trains && ratio != 0) c.refuse("dropout in training, whose random numbers are not specified");
  c.out(x);
  c.out(1, full(c.graph(), x.shape(), 1, DType::boolean));
}

// -- tests of numbers
// -----------------------------------------------------------------------------

void is_nan(Call& c) {
  const Value x = c.in(0);
  c.out(not_equal(x, x));
}

void is_inf(Call& c) {
  const Value x = c.in(0);
  const bool negative = c.integer("detect_negative", 1) != 0,
             positive = c.integer("detect_positive", 1) != 0;
  const Value up = equal(x, c.scalar_like(INFINITY, x)),
              down = equal(x, c.scalar_like(-INFINITY, x));
  if (negative && positive) return c.out(logical_or(up, down));
  if (negative || positive) return c.out(positive ? up : down);
  c.out(full(c.graph(), x.shape(), 0, DType::boolean));
}

void select(Call& c) { c.out(where(c.in(0), c.in(1), c.in(2))); }

void bit_not(Call& c) {
  const Value x = c.in(0);
  c.out(bit_xor(x, c.scalar_like(0, x) - c.scalar_like(1, x)));
}

void bit_shift(Call& c) {
  const std::string way = c.text("direction");
  if (way != "LEFT" && way != "RIGHT") c.fail("direction must be LEFT or RIGHT; got {}", way);
  c.out(way == "LEFT" ? shift_left(c.in(0), c.in(1)) : shift_right(c.in(0), c.in(1)));
}

// -- casts
// ----------------------------------------------------------------------------------------

Item converted(Call& c, const Item& item, ElementType to) {
  const Value x = item.value;
  const DType dtype = *dtype_of(to);
  if (item.element == to) return item;
  if (is_fp8(dtype) && c.integer("saturate", 1) == 0)
    c.refuse("a cast to 8-bit floats that does not saturate");
  // A float beyond an integer's range has no defined result in ONNX; here it becomes the nearest
  // end. With 2 and 4 bits the low ones stay, of a float those of its whole part.
  const auto narrow = narrow_integer(to);
  if (!narrow) return {x.dtype() == dtype ? x : cast(x, dtype), to};
  const Value wide = cast(x, DType::i32);
  Value y = bit_and(wide, c.scalar((1 << narrow->bits) - 1, DType::i32));
  if (narrow->is_signed) {
    const Value sign = c.scalar(-narrow->least(), DType::i32);
    y = bit_xor(y, sign) - sign;
  }
  return {cast(y, dtype), to};
}

void cast_to(Call& c) {
  c.in(0);  // it is a tensor
  // Old files name the dtype.
  const AttributeProto* to = c.find("to");
  if (to != nullptr && to->kind == AttributeProto::Kind::string) {
    for (int32_t number = 1; number < 24; ++number) {
      const auto type = static_cast<ElementType>(number);
      if (onnx::name_of(type) == to->string && dtype_of(type))
        return c.out(0, converted(c, c.item(0), type));
    }
    c.refuse("to = {}", to->string);
  }
  c.out(0, converted(c, c.item(0), c.element_type("to")));
}

void bit_cast(Call& c) {
  if (narrow_integer(c.item(0).element)) c.refuse("the bits of {}", name_of(c.item(0).element));
  c.out(bitcast(c.in(0), c.dtype("to")));
}

void cast_like(Call& c) {
  c.in(0);  // it is a tensor
  const Value like = c.in(1);
  const ElementType element = c.item(1).element;
  const bool is_said = element != ElementType::undefined;
  c.out(0, converted(c, c.item(0), is_said ? element : element_type_of(like.dtype())));
}

const OperatorRow kArithmeticRows[] = {
    {"", "Add", binary<add>},
    {"", "Sub", binary<sub>},
    {"", "Mul", binary<mul>},
    {"", "Div", binary<div>},
    {"", "Pow", power},
    {"", "Mod", modulo},
    {"", "Neg", negate},
    {"", "Abs", [](Call& c) { c.out(absolute(c.in(0))); }},
    {"", "Sign", sign},
    {"", "Reciprocal", unary<reciprocal>},
    {"", "Exp", unary<exp>},
    {"", "Log", unary<log>},
    {"", "Sqrt", unary<sqrt>},
    {"", "Sin", unary<sin>},
    {"", "Cos", unary<cos>},
    {"", "Tan", unary<tan>},
    {"", "Asin", unary<asin>},
    {"", "Acos", unary<acos>},
    {"", "Atan", unary<atan>},
    {"", "Sinh", unary<sinh>},
    {"", "Cosh", unary<cosh>},
    {"", "Asinh", unary<asinh>},
    {"", "Acosh", unary<acosh>},
    {"", "Atanh", unary<atanh>},
    {"", "Erf", unary<erf>},
    {"", "Ceil", rounding<ceil>},
    {"", "Floor", rounding<floor>},
    {"", "Round", rounding<round>},
    {"", "Min", variadic<minimum>},
    {"", "Max", variadic<maximum>},
    {"", "Sum", variadic<add>},
    {"", "Mean", mean_of_all},
    {"", "Clip", clip},
    {"", "Relu", rectify},
    {"", "Tanh", unary<tanh>},
    {"", "Sigmoid", unary<sigmoid>},
    {"", "Elu", elu},
    {"", "Celu", celu},
    {"", "Selu", selu},
    {"", "LeakyRelu", leaky_relu},
    {"", "PRelu", parametric_relu},
    {"", "ThresholdedRelu", thresholded_relu},
    {"", "Softplus", softplus},
    {"", "Softsign", softsign},
    {"", "Mish", mish},
    {"", "HardSigmoid", hard_sigmoid},
    {"", "HardSwish", hard_swish},
    {"", "Gelu", gelu_of},
    {"", "Swish", swish},
    {"", "Shrink", shrink},
    {"", "Identity", identity},
    {"", "Dropout", dropout_of_inference},
    {"", "Equal", comparison<equal>},
    {"", "Less", comparison<less>},
    {"", "Greater", comparison<greater>},
    {"", "LessOrEqual", comparison<less_equal>},
    {"", "GreaterOrEqual", comparison<greater_equal>},
    {"", "And", binary<logical_and>},
    {"", "Or", binary<logical_or>},
    {"", "Xor", binary<exclusive_or>},
    {"", "Not", unary<logical_not>},
    {"", "IsNaN", is_nan},
    {"", "IsInf", is_inf},
    {"", "Where", select},
    {"", "BitwiseAnd", binary<bit_and>},
    {"", "BitwiseOr", binary<bit_or>},
    {"", "BitwiseXor", binary<bit_xor>},
    {"", "BitwiseNot", bit_not},
    {"", "BitShift", bit_shift},
    {"", "Cast", cast_to},
    {"", "CastLike", cast_like},
    {"", "BitCast", bit_cast},
};

}  // namespace

std::span<const OperatorRow> arithmetic_operators() { return kArithmeticRows; }

}  // namespace brrr::onnx
