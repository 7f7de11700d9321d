// cast between any two dtypes. f32 to and from the 16-bit floats, and i32 and bool to f32, are
// vector code. The other pairs are loops that the compiler vectorises; floats of 8 and 16 bits are
// rounded from an intermediate f32.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/rows/row_space.h"
#include "backend/cpu/simd/simd_types.h"

namespace brrr::cpu {
namespace {

struct Bool {
  uint8_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

/// with_number_type() for every dtype.
template <typename F>
auto with_type(DType t, F&& f) {
  if (t == DType::boolean) return f(Bool{});
  if (t == DType::f8e4m3) return f(E4m3{});
  if (t == DType::f8e5m2) return f(E5m2{});
  return with_number_type(t, f);
}
template <typename T>
constexpr bool kIsNarrowFloat = std::is_same_v<T, F16> || std::is_same_v<T, Bf16> ||
                                std::is_same_v<T, E4m3> || std::is_same_v<T, E5m2>;

/// Floats beyond the range of To become its nearest end, NaN becomes 0.
template <typename To>
To to_integer(double x) {
  constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
  constexpr double high =
      static_cast<double>(std::numeric_limits<To>::max());  // 64 bits: rounds up
  if constexpr (sizeof(To) < sizeof(int64_t)) {
    const double number = x == x ? x : 0;
    const double above = number > low ? number : low;
    const double inside = above < high ? above : high;
    // Vector instructions convert to i32, whose range holds all of To but u32.
    if constexpr (std::is_same_v<To, uint32_t>)
      return static_cast<To>(static_cast<int64_t>(inside));
    return static_cast<To>(static_cast<int32_t>(inside));
  } else {
    if (x != x) return 0;
    if (x <= low) return std::numeric_limits<To>::min();
    if (x >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  }
}

/// A double that rounds to 24 bits or fewer as the integer does: its last bit stands for all below.
template <typename From>
double odd_double(From x) {
  if constexpr (sizeof(From) == 8) {
    constexpr From kBelow = 0x7ff;
    const double nearest = static_cast<double>(x);
    if (std::fabs(nearest) >= 0x1p53 && (x & kBelow) != 0)
      return static_cast<double>((x & ~kBelow) | (kBelow + 1));
  }
  return static_cast<double>(x);
}

/// Rounds x to f32 by round-to-odd: towards zero, with the last bit set if x is not exact. Rounding
/// the result again to 16 bits or fewer gives what rounding x once gives.
float odd_float(double x) {
  const auto nearest = static_cast<float>(x);
  auto bits = std::bit_cast<uint32_t>(nearest);
  const auto back = static_cast<double>(nearest);
  bits -= std::fabs(back) > std::fabs(x) ? 1 : 0;
  bits |= back != x ? 1 : 0;
  return std::bit_cast<float>(bits);
}

template <typename From>
double double_of(From x) {
  if constexpr (std::is_same_v<From, Bool>)
    return x.bits != 0 ? 1 : 0;
  else if constexpr (std::is_same_v<From, E4m3>)
    return static_cast<double>(float_from_f8e4m3(x.bits));
  else if constexpr (std::is_same_v<From, E5m2>)
    return static_cast<double>(float_from_f8e5m2(x.bits));
  else
    return static_cast<double>(number_of(x));
}

template <typename From, typename To>
void loop(const Row& row) {
  const auto* x = static_cast<const From*>(row.in[0]);
  auto* y = static_cast<To*>(row.out);
  const int64_t n = row.n;  // a local, because stores of bytes might alias the row
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<From> && std::is_integral_v<To>)
      y[i] = static_cast<To>(x[i]);
    else if constexpr (std::is_integral_v<From> && std::is_same_v<To, Bool>)
      y[i].bits = x[i] != 0;
    else if constexpr (std::is_same_v<To, Bool>)
      y[i].bits = double_of(x[i]) != 0;
    else if constexpr (std::is_same_v<From, Bool> && std::is_integral_v<To>)
      y[i] = x[i].bits != 0;
    else if constexpr (std::is_integral_v<To>)
      y[i] = to_integer<To>(double_of(x[i]));
    else if constexpr (std::is_integral_v<From> && !std::is_same_v<To, double>)
      y[i] = static_cast<To>(odd_double(x[i]));
    else
      y[i] = static_cast<To>(double_of(x[i]));
  }
}

/// Converts numbers to f32 by round-to-odd, for a second rounding to fewer bits.
template <typename From>
void to_odd_float(const Row& row) {
  const auto* x = static_cast<const From*>(row.in[0]);
  auto* y = static_cast<float*>(row.out);
  const int64_t n = row.n;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<From>)
      y[i] = odd_float(odd_double(x[i]));
    else
      y[i] = odd_float(double_of(x[i]));
  }
}

template <typename To>
void float_to_f8(const Row& row) {
  const auto* x = static_cast<const float*>(row.in[0]);
  for (int64_t i = 0; i < row.n; ++i)
    store_from_double(std::is_same_v<To, E4m3> ? DType::f8e4m3 : DType::f8e5m2, row.out, i,
                      static_cast<double>(x[i]));
}

/// The conversion from f32 to a float of 8 or 16 bits.
template <typename To>
RowFunction narrowing() {
  if constexpr (std::is_same_v<To, F16>)
    return vector_cast(DType::f32, DType::f16);
  else if constexpr (std::is_same_v<To, Bf16>)
    return vector_cast(DType::f32, DType::bf16);
  else
    return &float_to_f8<To>;
}

/// Converts to a float of 8 or 16 bits through pieces of f32 that stay in L1.
template <typename From, typename To>
void through_float(const Row& row) {
  constexpr int64_t kPiece = 512;
  std::array<float, kPiece> piece;
  const RowFunction narrow = narrowing<To>();
  for (int64_t begin = 0; begin < row.n; begin += kPiece) {
    Row part;
    part.in[0] = static_cast<const From*>(row.in[0]) + begin;
    part.out = piece.data();
    part.n = std::min(kPiece, row.n - begin);
    to_odd_float<From>(part);
    part.in[0] = piece.data();
    part.out = static_cast<To*>(row.out) + begin;
    narrow(part);
  }
}

RowFunction cast_row(DType from, DType to) {
  if (const RowFunction run = vector_cast(from, to); run != nullptr) return run;
  return with_type(from, [&]<typename From>(From) {
    return with_type(to, [&]<typename To>(To) -> RowFunction {
      if constexpr (std::is_same_v<From, float> && kIsNarrowFloat<To>)
        return narrowing<To>();
      else if constexpr (kIsNarrowFloat<To>)
        return &through_float<From, To>;
      else
        return &loop<From, To>;
    });
  });
}

}  // namespace

std::vector<KernelEntry> cast_kernels() {
  return {{Op::cast, "rows", [](const NodeView&) { return std::string(); },
           [](const NodeView& node) {
             const DType from = node.in[0].dtype, to = node.out()[0].dtype;
             return make_kernel(
                 [run = cast_row(from, to), n = node.in[0].shape.elements(),
                  from_bytes = static_cast<int64_t>(bytes_of(from)),
                  to_bytes = static_cast<int64_t>(bytes_of(to))](const KernelArgs& args) {
                   parallel_elements(n, kElementGrain, [&](int64_t begin, int64_t end) {
                     Row row;
                     row.in[0] = static_cast<const std::byte*>(args.in[0]) + begin * from_bytes;
                     row.out = static_cast<std::byte*>(args.out[0]) + begin * to_bytes;
                     row.n = end - begin;
                     run(row);
                   });
                 });
           }}};
}

}  // namespace brrr::cpu
