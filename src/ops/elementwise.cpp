// Every element-wise op is a row of a table: name, formula in double and in integers, derivative,
// where samples lie.

#include "ops/support.h"

namespace brrr {
namespace {

constexpr double kTwoOverSqrtPi = 1.1283791670955125739;  // 2 / sqrt(pi)

struct Unary {
  const char* name;
  const char* formula;
  const char* code;  // OpDef::code
  const char* onnx;  // OpDef::onnx
  double (*f)(double);
  Value (*grad)(Value dy, Value x, Value y);  // nullptr: boolean op
  double low, high;                           // samples avoid kinks and poles
  double flops;
};

/// The derivative of what is constant piece by piece.
Value flat(Value dy, Value, Value) { return dy * 0.0; }

const Unary kUnary[] = {
    {"neg", "-x", "-{0}", "Neg", [](double x) { return -x; },
     [](Value dy, Value, Value) { return -dy; }, -2, 2, 1},
    {"exp", "e^x", "op_exp({0})", "Exp", [](double x) { return std::exp(x); },
     [](Value dy, Value, Value y) { return dy * y; }, -3, 3, 1},
    {"log", "ln x", "op_log({0})", "Log", [](double x) { return std::log(x); },
     [](Value dy, Value x, Value) { return dy / x; }, 0.1, 4, 1},
    {"sqrt", "x^(1/2)", "op_sqrt({0})", "Sqrt", [](double x) { return std::sqrt(x); },
     [](Value dy, Value, Value y) { return dy * 0.5 / y; }, 0.1, 4, 1},
    {"rsqrt", "x^(-1/2)", "op_rsqrt({0})", "", [](double x) { return 1 / std::sqrt(x); },
     [](Value dy, Value x, Value y) { return dy * -0.5 * y / x; }, 0.1, 4, 2},
    {"reciprocal", "1/x", "op_div({one}, {0})", "Reciprocal", [](double x) { return 1 / x; },
     [](Value dy, Value, Value y) { return -(dy * y * y); }, 0.2, 3, 1},
    {"square", "x^2", "{0} * {0}", "", [](double x) { return x * x; },
     [](Value dy, Value x, Value) { return dy * 2.0 * x; }, -2, 2, 1},
    {"abs", "|x|", "op_abs({0})", "Abs", [](double x) { return std::fabs(x); },
     [](Value dy, Value x, Value) {
       return where(less(x, scalar(*x.graph, 0, x.dtype())), -dy, dy);
     },
     0.1, 2, 1},
    {"tanh", "tanh x", "op_tanh({0})", "Tanh", [](double x) { return std::tanh(x); },
     [](Value dy, Value, Value y) { return dy * (1.0 - y * y); }, -3, 3, 1},
    {"erf", "erf x", "op_erf({0})", "Erf", [](double x) { return std::erf(x); },
     [](Value dy, Value x, Value) { return dy * (kTwoOverSqrtPi * exp(-(x * x))); }, -2, 2, 1},
    {"sigmoid", "1 / (1 + e^-x)", "op_sigmoid({0})", "Sigmoid",
     [](double x) { return 1 / (1 + std::exp(-x)); },
     [](Value dy, Value, Value y) { return dy * y * (1.0 - y); }, -4, 4, 3},
    {"relu", "max(x, 0); NaN stays NaN", "({0} <= 0 ? 0 : {0})", "Relu",
     [](double x) { return x <= 0 ? 0 : x; },
     [](Value dy, Value x, Value) {
       Value zero = scalar(*x.graph, 0, x.dtype());
       return where(greater(x, zero), dy, zero);
     },
     0.1, 2, 1},
    {"sin", "sin x", "op_sin({0})", "Sin", [](double x) { return std::sin(x); },
     [](Value dy, Value x, Value) { return dy * cos(x); }, -3, 3, 1},
    {"cos", "cos x", "op_cos({0})", "Cos", [](double x) { return std::cos(x); },
     [](Value dy, Value x, Value) { return -(dy * sin(x)); }, -3, 3, 1},
    {"floor", "the greatest integer that is not above x", "", "Floor",
     [](double x) { return std::floor(x); }, flat, 0.1, 0.9, 1},
    {"ceil", "the least integer that is not below x", "", "Ceil",
     [](double x) { return std::ceil(x); }, flat, 0.1, 0.9, 1},
    {"round", "the nearest integer, halves to the even one", "", "Round",
     [](double x) { return std::nearbyint(x); }, flat, -0.4, 0.4, 1},
    {"tan", "tan x", "", "Tan", [](double x) { return std::tan(x); },
     [](Value dy, Value, Value y) { return dy * (1.0 + y * y); }, -1, 1, 2},
    {"asin", "arcsin x", "", "Asin", [](double x) { return std::asin(x); },
     [](Value dy, Value x, Value) { return dy * rsqrt(1.0 - x * x); }, -0.8, 0.8, 2},
    {"acos", "arccos x", "", "Acos", [](double x) { return std::acos(x); },
     [](Value dy, Value x, Value) { return -(dy * rsqrt(1.0 - x * x)); }, -0.8, 0.8, 2},
    {"atan", "arctan x", "", "Atan", [](double x) { return std::atan(x); },
     [](Value dy, Value x, Value) { return dy / (1.0 + x * x); }, -2, 2, 2},
    {"sinh", "sinh x", "", "Sinh", [](double x) { return std::sinh(x); },
     [](Value dy, Value x, Value) { return dy * cosh(x); }, -2, 2, 2},
    {"cosh", "cosh x", "", "Cosh", [](double x) { return std::cosh(x); },
     [](Value dy, Value x, Value) { return dy * sinh(x); }, -2, 2, 2},
    {"asinh", "arsinh x", "", "Asinh", [](double x) { return std::asinh(x); },
     [](Value dy, Value x, Value) { return dy * rsqrt(x * x + 1.0); }, -2, 2, 2},
    {"acosh", "arcosh x", "", "Acosh", [](double x) { return std::acosh(x); },
     [](Value dy, Value x, Value) { return dy * rsqrt(x * x - 1.0); }, 1.2, 3, 2},
    {"atanh", "artanh x", "", "Atanh", [](double x) { return std::atanh(x); },
     [](Value dy, Value x, Value) { return dy / (1.0 - x * x); }, -0.8, 0.8, 2},
    {"log1p", "ln(1 + x), exact near 0", "", "", [](double x) { return std::log1p(x); },
     [](Value dy, Value x, Value) { return dy / (1.0 + x); }, -0.5, 3, 2},
    {"expm1", "e^x - 1, exact near 0", "", "", [](double x) { return std::expm1(x); },
     [](Value dy, Value, Value y) { return dy * (y + 1.0); }, -2, 2, 2},
    {"logical_not", "not x", "!{0}", "Not", [](double x) { return x == 0 ? 1.0 : 0.0; }, nullptr, 0,
     2, 1},
};

enum class Kind { arithmetic, compare, logical, bits };  // bits: of integers alone

/// A formula in integers, those of signed dtypes and those of unsigned ones. The result is wrapped
/// to the dtype afterwards, so it need only be right in its low bits.
struct Integers {
  template <typename F>
  constexpr Integers(F f) : of_signed(f), of_unsigned(f) {}  // NOLINT(google-explicit-constructor)
  constexpr Integers(std::nullptr_t) {}                      // NOLINT(google-explicit-constructor)
  int64_t (*of_signed)(int64_t, int64_t) = nullptr;
  uint64_t (*of_unsigned)(uint64_t, uint64_t) = nullptr;
};

// Unsigned arithmetic: what overflows wraps around.
template <typename T>
T product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <typename T>
T quotient(T a, T b, const char* op) {
  if (b == 0) user_error("[{}] an integer divided by zero: {} / 0", op, a);
  if (b == static_cast<T>(-1) && std::is_signed_v<T>) return product(a, b);  // INT64_MIN / -1
  return a / b;
}
template <typename T>
T remainder_of(T a, T b) {
  if (b == 0) user_error("[fmod] an integer divided by zero: {} mod 0", a);
  if (b == static_cast<T>(-1) && std::is_signed_v<T>) return 0;  // INT64_MIN mod -1
  return a % b;
}
template <typename T>
T power(T a, T b) {
  if (b < 0) {  // 1 / a^-b, truncated
    if (a == 1 || a == static_cast<T>(-1)) return b % 2 == 0 ? T{1} : a;
    return quotient(T{1}, a, "pow") * 0;
  }
  T y = 1;
  for (; b > 0; b /= 2, a = product(a, a))
    if (b % 2 != 0) y = product(y, a);
  return y;
}

struct Binary {
  const char* name;
  const char* formula;
  const char* code;  // OpDef::code
  const char* onnx;  // OpDef::onnx
  Kind kind;
  double (*f)(double, double);
  Integers integers;
  void (*grad)(VjpContext& c, Value dy, Value a, Value b, Value y);
  double low_a, high_a, low_b, high_b;
  const char* of_integers = nullptr;  // what the doc line adds
  bool only_adds = false;             // OpDef::only_adds
};

constexpr char kWraps[] = ". Integers wrap around";

// Sets the gradients of a broadcasting binary op.
void set_ab(VjpContext& c, Value a, Value da, Value b, Value db) {
  if (c.wants(0) && da.graph) c.set(0, sum_to(da, a.shape()));
  if (c.wants(1) && db.graph) c.set(1, sum_to(db, b.shape()));
}
// Building a gradient that nobody wants would leave dead nodes.
template <typename F>
Value if_wanted(VjpContext& c, size_t i, F&& build) {
  return c.wants(i) ? build() : Value{};
}

template <bool kLarger>
void pick_grad(VjpContext& c, Value dy, Value a, Value b, Value) {
  Value takes_a = kLarger ? greater_equal(a, b) : less_equal(a, b);
  Value zero = scalar(c.graph, 0, dy.dtype());
  set_ab(c, a, if_wanted(c, 0, [&] { return where(takes_a, dy, zero); }), b,
         if_wanted(c, 1, [&] { return where(takes_a, zero, dy); }));
}

const Binary kBinary[] = {
    {"add", "a + b", "{0} + {1}", "Add", Kind::arithmetic, [](double a, double b) { return a + b; },
     [](auto a, auto b) {
       return static_cast<decltype(a)>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
     },
     [](VjpContext& c, Value dy, Value a, Value b, Value) { set_ab(c, a, dy, b, dy); }, -1, 1, -1,
     1, kWraps, true},
    {"sub", "a - b", "{0} - {1}", "Sub", Kind::arithmetic, [](double a, double b) { return a - b; },
     [](auto a, auto b) {
       return static_cast<decltype(a)>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
     },
     [](VjpContext& c, Value dy, Value a, Value b, Value) {
       set_ab(c, a, dy, b, if_wanted(c, 1, [&] { return -dy; }));
     },
     -1, 1, -1, 1, kWraps},
    {"mul", "a * b", "{0} * {1}", "Mul", Kind::arithmetic, [](double a, double b) { return a * b; },
     [](auto a, auto b) { return product(a, b); },
     [](VjpContext& c, Value dy, Value a, Value b, Value) {
       set_ab(c, a, if_wanted(c, 0, [&] { return dy * b; }), b,
              if_wanted(c, 1, [&] { return dy * a; }));
     },
     -1, 1, -1, 1, kWraps},
    {"div", "a / b", "op_div({0}, {1})", "Div", Kind::arithmetic,
     [](double a, double b) { return a / b; }, [](auto a, auto b) { return quotient(a, b, "div"); },
     [](VjpContext& c, Value dy, Value a, Value b, Value y) {
       set_ab(c, a, if_wanted(c, 0, [&] { return dy / b; }), b,
              if_wanted(c, 1, [&] { return -(dy * y / b); }));
     },
     -1, 1, 0.3, 2,
     ". The quotient of integers is truncated, as in C; the lowest integer divided by -1 wraps "
     "around, and a division by zero is an error (0 on a GPU)"},
    {"maximum", "the larger of a and b; NaN if either is; the gradient of a tie goes to a",
     "op_maximum({0}, {1})", "Max", Kind::arithmetic,
     [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : (a >= b ? a : b); },
     [](auto a, auto b) { return a >= b ? a : b; }, pick_grad<true>, 0, 1, 1.1, 2},
    {"minimum", "the smaller of a and b; NaN if either is; the gradient of a tie goes to a",
     "op_minimum({0}, {1})", "Min", Kind::arithmetic,
     [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : (a <= b ? a : b); },
     [](auto a, auto b) { return a <= b ? a : b; }, pick_grad<false>, 0, 1, 1.1, 2},
    {"pow", "a^b", "op_pow({0}, {1})", "Pow", Kind::arithmetic,
     [](double a, double b) { return std::pow(a, b); }, [](auto a, auto b) { return power(a, b); },
     [](VjpContext& c, Value dy, Value a, Value b, Value y) {
       set_ab(c, a, if_wanted(c, 0, [&] { return dy * b * pow(a, b - 1.0); }), b,
              if_wanted(c, 1, [&] { return dy * y * log(a); }));
     },
     0.3, 2, -1, 2,
     ". Integers wrap around; a negative power of one is truncated, of zero an error"},
    {"fmod", "a - b trunc(a / b), which has the sign of a", "", "", Kind::arithmetic,
     [](double a, double b) { return std::fmod(a, b); },
     [](auto a, auto b) { return remainder_of(a, b); },
     [](VjpContext& c, Value dy, Value a, Value b, Value) {
       set_ab(c, a, dy, b, if_wanted(c, 1, [&] {
                const Value q = a / b;
                return -(dy * where(less(q, scalar(c.graph, 0, q.dtype())), ceil(q), floor(q)));
              }));
     },
     2.2, 2.8, 1, 1.05, ". Of integers, a zero divisor is an error"},
    {"bit_and", "the bits that both have", "", "", Kind::bits, nullptr,
     [](auto a, auto b) { return a & b; }, nullptr, 0, 99, 0, 99},
    {"bit_or", "the bits that either has", "", "", Kind::bits, nullptr,
     [](auto a, auto b) { return a | b; }, nullptr, 0, 99, 0, 99},
    {"bit_xor", "the bits that one of them has", "", "", Kind::bits, nullptr,
     [](auto a, auto b) { return a ^ b; }, nullptr, 0, 99, 0, 99},
    {"shift_left", "a 2^b, what leaves the dtype is lost; 0 for b of 64 or more", "", "",
     Kind::bits, nullptr,
     [](auto a, auto b) {
       const auto n = static_cast<uint64_t>(b);
       return static_cast<decltype(a)>(n > 63 ? 0 : static_cast<uint64_t>(a) << n);
     },
     nullptr, 0, 99, 0, 8},
    {"shift_right", "a / 2^b, rounded down; b of 64 or more is as 63", "", "", Kind::bits, nullptr,
     [](auto a, auto b) {
       const auto n = static_cast<uint64_t>(b);
       return static_cast<decltype(a)>(
           std::is_unsigned_v<decltype(a)> && n > 63 ? 0 : a >> std::min<uint64_t>(n, 63));
     },
     nullptr, 0, 99, 0, 8},
    {"equal", "a == b", "{0} == {1}", "Equal", Kind::compare,
     [](double a, double b) { return a == b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a == b; }, nullptr, 0, 3, 0, 3},
    {"not_equal", "a != b", "{0} != {1}", "", Kind::compare,
     [](double a, double b) { return a != b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a != b; }, nullptr, 0, 3, 0, 3},
    {"less", "a < b", "{0} < {1}", "Less", Kind::compare,
     [](double a, double b) { return a < b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a < b; }, nullptr, 0, 3, 0, 3},
    {"less_equal", "a <= b", "{0} <= {1}", "LessOrEqual", Kind::compare,
     [](double a, double b) { return a <= b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a <= b; }, nullptr, 0, 3, 0, 3},
    {"greater", "a > b", "{0} > {1}", "Greater", Kind::compare,
     [](double a, double b) { return a > b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a > b; }, nullptr, 0, 3, 0, 3},
    {"greater_equal", "a >= b", "{0} >= {1}", "GreaterOrEqual", Kind::compare,
     [](double a, double b) { return a >= b ? 1.0 : 0.0; },
     [](auto a, auto b) -> decltype(a) { return a >= b; }, nullptr, 0, 3, 0, 3},
    {"logical_and", "a and b", "{0} && {1}", "And", Kind::logical,
     [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }, nullptr, nullptr, 0, 2, 0, 2},
    {"logical_or", "a or b", "{0} || {1}", "Or", Kind::logical,
     [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }, nullptr, nullptr, 0, 2, 0, 2},
};

OpDef unary_op(const Unary& row) {
  OpDef d;
  d.name = row.name;
  d.code = row.code;
  d.onnx = row.onnx;
  d.doc = fmt::format("y = {}. x, y: [...]", row.formula);
  const bool logical = row.grad == nullptr;
  d.infer = [logical](const InferContext& c) {
    ops::expect_operands(c, 1);
    if (logical && c.in[0].dtype != DType::boolean) c.fail("x must be bool; got {}", c.in[0].str());
    if (!logical) ops::expect_float(c, 0, "x");
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [f = row.f](const EvalContext& c) {
    for (size_t i = 0; i < c.out[0].data.size(); ++i) c.out[0].data[i] = f(c.in[0]->data[i]);
  };
  if (logical)
    d.no_gradient = "its result is boolean";
  else
    d.vjp = [grad = row.grad](VjpContext& c) {
      c.set(0, grad(c.grad(0), c.operand(0), c.result(0)));
    };
  d.cost = [flops = row.flops](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, flops * ops::elements(n.results[0]));
  };
  d.samples = [row, logical] {
    const DType t = logical ? DType::boolean : DType::f32;
    return std::vector<Sample>{{{ops::tensor({3, 37}, row.low, row.high, t)}, {}},
                               {{ops::tensor({}, row.low, row.high, t)}, {}},
                               {{ops::tensor({2, 3, 4, 5}, row.low, row.high, t)}, {}}};
  };
  d.in_place = {{0, 0}};
  return d;
}

template <typename T>
void evaluate_binary(const EvalContext& c, T (*f)(T, T)) {
  auto at = [&](size_t k, const std::vector<int64_t>& index) {
    const auto i = static_cast<size_t>(ops::broadcast_index(c.in[k]->type.shape, index));
    if constexpr (std::is_same_v<T, double>)
      return c.in[k]->data[i];
    else
      return c.in[k]->integer<T>(i);
  };
  ops::for_each_index(c.out[0].type.shape, [&](int64_t i, const std::vector<int64_t>& index) {
    const T y = f(at(0, index), at(1, index));
    if constexpr (std::is_same_v<T, double>)
      c.out[0].data[static_cast<size_t>(i)] = y;
    else
      c.out[0].set_bits(static_cast<size_t>(i), static_cast<uint64_t>(y));
  });
}

OpDef binary_op(const Binary& row) {
  OpDef d;
  d.name = row.name;
  d.code = row.code;
  d.onnx = row.onnx;
  d.only_adds = row.only_adds;
  d.doc =
      fmt::format("y = {}, broadcast as in NumPy. a: [...], b: [...], y: [...]{}{}", row.formula,
                  row.kind == Kind::bits         ? " integers"
                  : row.kind == Kind::arithmetic ? ""
                                                 : " bool",
                  row.of_integers == nullptr ? "" : row.of_integers);
  d.infer = [kind = row.kind](const InferContext& c) {
    ops::expect_operands(c, 2);
    ops::expect_same_dtype(c, 0, 1);
    if (kind == Kind::logical && c.in[0].dtype != DType::boolean)
      c.fail("a and b must be bool; got {}", c.in[0].str());
    if (kind != Kind::logical && c.in[0].dtype == DType::boolean)
      c.fail("a and b must be numbers; got {}", c.in[0].str());
    if (kind == Kind::bits && !is_integer(c.in[0].dtype))
      c.fail("a and b must be integers; got {}", c.in[0].str());
    const bool is_number = kind == Kind::arithmetic || kind == Kind::bits;
    const DType out = is_number ? c.in[0].dtype : DType::boolean;
    return std::vector<Type>{{out, ops::broadcast(c, c.in[0].shape, c.in[1].shape)}};
  };
  d.evaluate = [f = row.f, integers = row.integers](const EvalContext& c) {
    const DType dtype = c.in[0]->type.dtype;
    if (is_signed_integer(dtype))
      evaluate_binary<int64_t>(c, integers.of_signed);
    else if (is_unsigned_integer(dtype))
      evaluate_binary<uint64_t>(c, integers.of_unsigned);
    else
      evaluate_binary<double>(c, f);
  };
  if (row.grad == nullptr)
    d.no_gradient = row.kind == Kind::bits ? "it is of integers" : "its result is boolean";
  else
    d.vjp = [grad = row.grad](VjpContext& c) {
      grad(c, c.grad(0), c.operand(0), c.operand(1), c.result(0));
    };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(n.results[0]));
  };
  d.samples = [row] {
    const DType t = row.kind == Kind::logical                             ? DType::boolean
                    : row.kind == Kind::compare || row.kind == Kind::bits ? DType::i32
                                                                          : DType::f32;
    auto make = [&](Shape a, Shape b) {
      return Sample{{ops::tensor(std::move(a), row.low_a, row.high_a, t),
                     ops::tensor(std::move(b), row.low_b, row.high_b, t)},
                    {}};
    };
    std::vector<Sample> samples{make({3, 37}, {3, 37}),  make({3, 37}, {}),
                                make({}, {5}),           make({4, 3, 7}, {7}),
                                make({4, 1, 7}, {3, 1}), make({2, 3, 4, 5}, {2, 3, 1, 1}),
                                make({1, 5}, {6, 5})};
    if (row.integers.of_signed == nullptr) return samples;
    for (DType integer : {DType::i64, DType::u64, DType::i32, DType::u8})
      samples.push_back(
          {{ops::tensor({3, 5}, 0, 5, integer), ops::tensor({5}, 1, 5, integer)}, {}});
    return samples;
  };
  if (row.kind != Kind::compare) d.in_place = {{0, 0}, {0, 1}};
  return d;
}

OpDef where_op() {
  OpDef d;
  d.name = "where";
  d.code = "({0} ? {1} : {2})";
  d.onnx = "Where";
  d.makes_masks = true;
  d.doc =
      "y = condition ? a : b, broadcast as in NumPy. condition: [...] bool; a, b: [...]; y: [...]";
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 3);
    if (c.in[0].dtype != DType::boolean) c.fail("condition must be bool; got {}", c.in[0].str());
    ops::expect_same_dtype(c, 1, 2);
    const Shape ab = ops::broadcast(c, c.in[1].shape, c.in[2].shape);
    return std::vector<Type>{{c.in[1].dtype, ops::broadcast(c, c.in[0].shape, ab)}};
  };
  d.evaluate = [](const EvalContext& c) {
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      ops::for_each_index(c.out[0].type.shape, [&](int64_t i, const std::vector<int64_t>& index) {
        auto at = [&](size_t k) {
          return static_cast<size_t>(ops::broadcast_index(c.in[k]->type.shape, index));
        };
        y[static_cast<size_t>(i)] =
            c.in[0]->data[at(0)] != 0 ? c.in[1]->of<T>()[at(1)] : c.in[2]->of<T>()[at(2)];
      });
    });
  };
  d.vjp = [](VjpContext& c) {
    Value zero = scalar(c.graph, 0, c.grad(0).dtype());
    if (c.wants(1)) c.set(1, sum_to(where(c.operand(0), c.grad(0), zero), c.operand(1).shape()));
    if (c.wants(2)) c.set(2, sum_to(where(c.operand(0), zero, c.grad(0)), c.operand(2).shape()));
  };
  d.cost = [](const Node& n, std::span<const Type> in) { return ops::streaming_cost(n, in, 0); };
  d.samples = [] {
    auto make = [](Shape m, Shape a, Shape b, DType dtype = DType::f32) {
      return Sample{
          {ops::tensor(std::move(m), 0, 2, DType::boolean), ops::tensor(std::move(a), -9, 9, dtype),
           ops::tensor(std::move(b), -9, 9, dtype)},
          {}};
    };
    return std::vector<Sample>{make({3, 37}, {3, 37}, {3, 37}), make({5, 5}, {2, 3, 5, 5}, {}),
                               make({4, 1}, {}, {4, 6}),        make({7}, {2, 7}, {2, 1}),
                               make({7}, {7}, {}, DType::i64),  make({7}, {}, {7}, DType::u64)};
  };
  d.in_place = {{0, 1}, {0, 2}};
  return d;
}

OpDef cast_op() {
  OpDef d;
  d.name = "cast";
  d.derives_weights = true;
  d.doc =
      "y = x as {dtype}. To a float: rounds to nearest even. A float to an integer: truncates, "
      "what "
      "is out of range becomes the nearest end, NaN becomes 0. An integer to an integer: keeps the "
      "low bits, so it wraps around. To bool: x != 0. x, y: [...]";
  d.op_class = OpClass::movement;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    return std::vector<Type>{{c.attr<DType>("dtype"), c.in[0].shape}};
  };
  d.evaluate = [](const EvalContext& c) {
    const RefTensor& x = *c.in[0];
    RefTensor& y = c.out[0];
    const DType from = x.type.dtype, to = y.type.dtype;
    for (size_t i = 0; i < y.size(); ++i)
      if (is_float(from) || is_float(to))
        y.set_number(i, to == DType::boolean ? x.number(i) != 0 : x.number(i));
      else
        y.set_bits(i, x.bits(i));
  };
  d.vjp = [](VjpContext& c) {
    if (is_float(c.operand(0).dtype())) c.set(0, cast(c.grad(0), c.operand(0).dtype()));
  };
  d.cost = [](const Node& n, std::span<const Type> in) { return ops::streaming_cost(n, in, 0); };
  d.samples = [] {
    return std::vector<Sample>{
        {{ops::tensor({3, 37}, -9, 9)}, {{"dtype", DType::i32}}},
        {{ops::tensor({3, 37}, -9, 9, DType::i32)}, {{"dtype", DType::f32}}},
        {{ops::tensor({3, 37}, 0, 2, DType::boolean)}, {{"dtype", DType::f32}}},
        {{ops::tensor({65}, -9, 9)}, {{"dtype", DType::f64}}},
        {{ops::tensor({65}, -300, 300)}, {{"dtype", DType::u8}}},
        {{ops::tensor({65}, -9e9, 9e9, DType::i64)}, {{"dtype", DType::i32}}},
        {{ops::tensor({65}, -9e9, 9e9, DType::i64)}, {{"dtype", DType::u64}}},
        {{ops::tensor({65}, 0, 9e9, DType::u64)}, {{"dtype", DType::f32}}}};
  };
  return d;
}

}  // namespace

#define BRRR_UNARY(name) \
  Value name(Value x) { return call1(Op::name, {x}); }
#define BRRR_BINARY(name) \
  Value name(Value a, Value b) { return call1(Op::name, {a, b}); }
BRRR_UNARY_OPS(BRRR_UNARY)
BRRR_BINARY_OPS(BRRR_BINARY)
#undef BRRR_UNARY
#undef BRRR_BINARY

Value where(Value condition, Value a, Value b) { return call1(Op::where, {condition, a, b}); }

Value cast(Value x, DType dtype) {
  return x.dtype() == dtype ? x : call1(Op::cast, {x}, {{"dtype", dtype}});
}

namespace ops {

std::vector<OpDef> elementwise_ops() {
  std::vector<OpDef> list;
  for (const Unary& row : kUnary) list.push_back(unary_op(row));
  for (const Binary& row : kBinary) list.push_back(binary_op(row));
  list.push_back(where_op());
  list.push_back(cast_op());
  return list;
}

}  // namespace ops
}  // namespace brrr
