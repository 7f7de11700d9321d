// Rows of integers of every width and of f64, written once over the type: what files of other
// programs compute beside their floats (indices, masks, times). The compiler makes vectors of the
// loops, which are as fast as memory; a division and a function of the C library take a few ns.
// Integers wrap around, as in the formulas of ops/elementwise.cpp.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backend/cpu/rows/elementwise_rows.h"
#include "base/host_tensor.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kPiece = 512;  // size of the buffer for a repeated operand, in elements; fits L1

/// Computes y[i] = f(a[i], b[i]). A repeated operand is first copied into a short buffer, so that
/// one loop serves all cases and the compiler instantiates it once.
template <typename T, typename Y, auto kFunction>
void row_of(const Row& row) {
  const auto *a = static_cast<const T*>(row.in[0]), *b = static_cast<const T*>(row.in[1]);
  auto* y = static_cast<Y*>(row.out);
  const int64_t count = row.n;  // a local, because stores of bytes might alias the row
  const uint32_t repeated = row.repeated;
  if (repeated == 0) {
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<Y>(kFunction(a[i], b[i]));
    return;
  }
  std::array<T, kPiece> same;
  std::fill_n(same.begin(), std::min(kPiece, count), repeated & 1 ? *a : *b);
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t n = std::min(kPiece, count - begin);
    const T* const left = repeated & 1 ? same.data() : a + begin;
    const T* const right = repeated & 2 ? same.data() : b + begin;
    for (int64_t i = 0; i < n; ++i) y[begin + i] = static_cast<Y>(kFunction(left[i], right[i]));
  }
}

template <typename T>
constexpr T wrapped(uint64_t x) {
  return static_cast<T>(x);
}
/// Extends x to 64 bits, by its sign if T is signed.
template <typename T>
constexpr auto widened(T x) {
  return static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(x);
}

template <typename T>
struct Functions {
  static T add(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a + b;
    else
      return wrapped<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  static T sub(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a - b;
    else
      return wrapped<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
  static T mul(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a * b;
    else
      return wrapped<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
  // No divisor of integers is zero (may_divide_by_zero). By -1 the lowest integer would overflow.
  static T div(T a, T b) {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
      if (b == -1) return sub(0, a);
    return static_cast<T>(a / b);
  }
  static T fmod(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(a, b);
    } else {
      if constexpr (std::is_signed_v<T>)
        if (b == -1) return 0;
      return static_cast<T>(a % b);
    }
  }
  static T pow(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::pow(a, b);
    } else {
      if constexpr (std::is_signed_v<T>)
        if (b < 0) return a == 1 ? T{1} : a == -1 ? static_cast<T>(b % 2 == 0 ? 1 : -1) : T{0};
      T y = 1;
      for (; b > 0; b = static_cast<T>(b / 2), a = mul(a, a))
        if (b % 2 != 0) y = mul(y, a);
      return y;
    }
  }
  static T maximum(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    return a >= b ? a : b;
  }
  static T minimum(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    return a <= b ? a : b;
  }
  static bool equal(T a, T b) { return a == b; }
  static bool not_equal(T a, T b) { return a != b; }
  static bool less(T a, T b) { return a < b; }
  static bool less_equal(T a, T b) { return a <= b; }
  static bool greater(T a, T b) { return a > b; }
  static bool greater_equal(T a, T b) { return a >= b; }
};

template <typename T>
struct Bits {
  static T both(T a, T b) { return static_cast<T>(a & b); }
  static T either(T a, T b) { return static_cast<T>(a | b); }
  static T one(T a, T b) { return static_cast<T>(a ^ b); }
  static T left(T a, T b) {
    const auto count = static_cast<uint64_t>(b);
    return wrapped<T>(count > 63 ? 0 : static_cast<uint64_t>(widened(a)) << count);
  }
  static T right(T a, T b) {
    const auto count = static_cast<uint64_t>(b);
    if (std::is_unsigned_v<T> && count > 63) return T{0};
    return static_cast<T>(widened(a) >> std::min<uint64_t>(count, 63));
  }
};

template <typename T>
constexpr std::array<RowEntry, 14> numbers_of() {
  using F = Functions<T>;
  constexpr DType t = dtype_for<T>();
  return {{{Op::add, t, &row_of<T, T, &F::add>},
           {Op::sub, t, &row_of<T, T, &F::sub>},
           {Op::mul, t, &row_of<T, T, &F::mul>},
           {Op::div, t, &row_of<T, T, &F::div>},
           {Op::fmod, t, &row_of<T, T, &F::fmod>},
           {Op::pow, t, &row_of<T, T, &F::pow>},
           {Op::maximum, t, &row_of<T, T, &F::maximum>},
           {Op::minimum, t, &row_of<T, T, &F::minimum>},
           {Op::equal, t, &row_of<T, uint8_t, &F::equal>},
           {Op::not_equal, t, &row_of<T, uint8_t, &F::not_equal>},
           {Op::less, t, &row_of<T, uint8_t, &F::less>},
           {Op::less_equal, t, &row_of<T, uint8_t, &F::less_equal>},
           {Op::greater, t, &row_of<T, uint8_t, &F::greater>},
           {Op::greater_equal, t, &row_of<T, uint8_t, &F::greater_equal>}}};
}

template <typename T>
constexpr std::array<RowEntry, 5> bits_of() {
  using B = Bits<T>;
  constexpr DType t = dtype_for<T>();
  return {{{Op::bit_and, t, &row_of<T, T, &B::both>},
           {Op::bit_or, t, &row_of<T, T, &B::either>},
           {Op::bit_xor, t, &row_of<T, T, &B::one>},
           {Op::shift_left, t, &row_of<T, T, &B::left>},
           {Op::shift_right, t, &row_of<T, T, &B::right>}}};
}

template <double (*kFunction)(double)>
void unary_f64(const Row& row) {
  const auto* x = static_cast<const double*>(row.in[0]);
  auto* y = static_cast<double*>(row.out);
  const int64_t n = row.n;
  for (int64_t i = 0; i < n; ++i) y[i] = kFunction(x[i]);
}

double negative(double x) { return -x; }
double inverse_root(double x) { return 1 / std::sqrt(x); }
double inverse(double x) { return 1 / x; }
double squared(double x) { return x * x; }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double positive_part(double x) { return x <= 0 ? 0 : x; }

constexpr std::array<RowEntry, 28> kUnaryF64{{{Op::neg, DType::f64, &unary_f64<&negative>},
                                              {Op::exp, DType::f64, &unary_f64<&std::exp>},
                                              {Op::log, DType::f64, &unary_f64<&std::log>},
                                              {Op::sqrt, DType::f64, &unary_f64<&std::sqrt>},
                                              {Op::rsqrt, DType::f64, &unary_f64<&inverse_root>},
                                              {Op::reciprocal, DType::f64, &unary_f64<&inverse>},
                                              {Op::square, DType::f64, &unary_f64<&squared>},
                                              {Op::abs, DType::f64, &unary_f64<&std::fabs>},
                                              {Op::tanh, DType::f64, &unary_f64<&std::tanh>},
                                              {Op::erf, DType::f64, &unary_f64<&std::erf>},
                                              {Op::sigmoid, DType::f64, &unary_f64<&logistic>},
                                              {Op::relu, DType::f64, &unary_f64<&positive_part>},
                                              {Op::sin, DType::f64, &unary_f64<&std::sin>},
                                              {Op::cos, DType::f64, &unary_f64<&std::cos>},
                                              {Op::floor, DType::f64, &unary_f64<&std::floor>},
                                              {Op::ceil, DType::f64, &unary_f64<&std::ceil>},
                                              {Op::round, DType::f64, &unary_f64<&std::nearbyint>},
                                              {Op::tan, DType::f64, &unary_f64<&std::tan>},
                                              {Op::asin, DType::f64, &unary_f64<&std::asin>},
                                              {Op::acos, DType::f64, &unary_f64<&std::acos>},
                                              {Op::atan, DType::f64, &unary_f64<&std::atan>},
                                              {Op::sinh, DType::f64, &unary_f64<&std::sinh>},
                                              {Op::cosh, DType::f64, &unary_f64<&std::cosh>},
                                              {Op::asinh, DType::f64, &unary_f64<&std::asinh>},
                                              {Op::acosh, DType::f64, &unary_f64<&std::acosh>},
                                              {Op::atanh, DType::f64, &unary_f64<&std::atanh>},
                                              {Op::log1p, DType::f64, &unary_f64<&std::log1p>},
                                              {Op::expm1, DType::f64, &unary_f64<&std::expm1>}}};

template <size_t... kSizes>
constexpr auto joined(const std::array<RowEntry, kSizes>&... tables) {
  std::array<RowEntry, (kSizes + ...)> all{};
  size_t at = 0;
  ((std::ranges::copy(tables, all.begin() + static_cast<std::ptrdiff_t>(at)), at += kSizes), ...);
  return all;
}

constexpr auto kRows =
    joined(kUnaryF64, numbers_of<double>(), numbers_of<int8_t>(), numbers_of<uint8_t>(),
           numbers_of<int16_t>(), numbers_of<uint16_t>(), numbers_of<int32_t>(),
           numbers_of<uint32_t>(), numbers_of<int64_t>(), numbers_of<uint64_t>(), bits_of<int8_t>(),
           bits_of<uint8_t>(), bits_of<int16_t>(), bits_of<uint16_t>(), bits_of<int32_t>(),
           bits_of<uint32_t>(), bits_of<int64_t>(), bits_of<uint64_t>());

}  // namespace

std::span<const RowEntry> scalar_rows() { return kRows; }

}  // namespace brrr::cpu
