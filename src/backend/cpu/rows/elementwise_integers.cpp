// Rows of two 64-bit integers, which indices are made of. The compiler's loops are fast enough.
// Arithmetic wraps around.

#include <algorithm>
#include <cstdint>
#include <functional>

#include "backend/cpu/rows/elementwise_rows.h"

namespace brrr::cpu {
namespace {

template <typename Y, typename F>
void integer_row(const Row& row, F f) {
  const auto *a = static_cast<const int64_t*>(row.in[0]),
             *b = static_cast<const int64_t*>(row.in[1]);
  auto* y = static_cast<Y*>(row.out);
  if (row.repeated == 0)
    for (int64_t i = 0; i < row.n; ++i) y[i] = static_cast<Y>(f(a[i], b[i]));
  else if (row.repeated == 1)
    for (int64_t i = 0; i < row.n; ++i) y[i] = static_cast<Y>(f(*a, b[i]));
  else
    for (int64_t i = 0; i < row.n; ++i) y[i] = static_cast<Y>(f(a[i], *b));
}

/// F computes on unsigned integers.
template <typename F>
void wrapping(const Row& row) {
  integer_row<int64_t>(row, [](int64_t a, int64_t b) {
    return F()(static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  });
}
template <typename F>
void comparison(const Row& row) {
  integer_row<uint8_t>(row, F());
}
void larger(const Row& row) {
  integer_row<int64_t>(row, [](int64_t a, int64_t b) { return std::max(a, b); });
}
void smaller(const Row& row) {
  integer_row<int64_t>(row, [](int64_t a, int64_t b) { return std::min(a, b); });
}
// No divisor is zero. By -1 the lowest integer would overflow.
void quotient(const Row& row) {
  integer_row<int64_t>(row, [](int64_t a, int64_t b) {
    return b == -1 ? static_cast<int64_t>(-static_cast<uint64_t>(a)) : a / b;
  });
}
void remainder_row(const Row& row) {
  integer_row<int64_t>(row, [](int64_t a, int64_t b) { return b == -1 ? 0 : a % b; });
}

constexpr RowEntry kIntegerRows[] = {
    {Op::add, DType::i64, &wrapping<std::plus<uint64_t>>},
    {Op::sub, DType::i64, &wrapping<std::minus<uint64_t>>},
    {Op::mul, DType::i64, &wrapping<std::multiplies<uint64_t>>},
    {Op::div, DType::i64, &quotient},
    {Op::fmod, DType::i64, &remainder_row},
    {Op::maximum, DType::i64, &larger},
    {Op::minimum, DType::i64, &smaller},
    {Op::equal, DType::i64, &comparison<std::equal_to<int64_t>>},
    {Op::not_equal, DType::i64, &comparison<std::not_equal_to<int64_t>>},
    {Op::less, DType::i64, &comparison<std::less<int64_t>>},
    {Op::less_equal, DType::i64, &comparison<std::less_equal<int64_t>>},
    {Op::greater, DType::i64, &comparison<std::greater<int64_t>>},
    {Op::greater_equal, DType::i64, &comparison<std::greater_equal<int64_t>>},
};

}  // namespace

std::span<const RowEntry> integer_rows() { return kIntegerRows; }

}  // namespace brrr::cpu
