// cast between any two dtypes. f32 to and from the 16-bit floats, and i32 and bool to f32, are
// vector code; the other pairs a loop each.

#include <cmath>
#include <cstring>
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

/// Floats beyond the range of To become its nearest end, NaN becomes 0.
template <typename To>
To to_integer(double x) {
  constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
  constexpr double high =
      static_cast<double>(std::numeric_limits<To>::max());  // 64 bits: rounds up
  if (std::isnan(x)) return 0;
  if (x <= low) return std::numeric_limits<To>::min();
  if (x >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(x);
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

template <typename From, typename To>
void loop(const Row& row) {
  const auto* x = static_cast<const From*>(row.in[0]);
  auto* y = static_cast<To*>(row.out);
  for (int64_t i = 0; i < row.n; ++i) {
    if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) {
      y[i] = static_cast<To>(x[i]);
    } else {
      double value;
      if constexpr (std::is_same_v<From, Bf16>)
        value = float_from_bf16(x[i].bits);
      else if constexpr (std::is_same_v<From, F16>)
        value = float_from_f16(x[i].bits);
      else if constexpr (std::is_same_v<From, Bool>)
        value = x[i].bits != 0;
      else if constexpr (std::is_same_v<From, E4m3>)
        value = float_from_f8e4m3(x[i].bits);
      else if constexpr (std::is_same_v<From, E5m2>)
        value = float_from_f8e5m2(x[i].bits);
      else if constexpr (std::is_integral_v<From> && !std::is_same_v<To, double>)
        value = odd_double(x[i]);
      else
        value = static_cast<double>(x[i]);
      if constexpr (std::is_same_v<To, Bf16>)
        store_from_double(DType::bf16, y, i, value);
      else if constexpr (std::is_same_v<To, F16>)
        store_from_double(DType::f16, y, i, value);
      else if constexpr (std::is_same_v<To, E4m3>)
        store_from_double(DType::f8e4m3, y, i, value);
      else if constexpr (std::is_same_v<To, E5m2>)
        store_from_double(DType::f8e5m2, y, i, value);
      else if constexpr (std::is_same_v<To, Bool>)
        y[i].bits = value != 0;
      else if constexpr (std::is_integral_v<To>)
        y[i] = to_integer<To>(value);
      else
        y[i] = static_cast<To>(value);
    }
  }
}

RowFunction cast_row(DType from, DType to) {
  if (const RowFunction run = vector_cast(from, to); run != nullptr) return run;
  return with_type(from, [&](auto f) {
    return with_type(to, [&](auto t) -> RowFunction { return &loop<decltype(f), decltype(t)>; });
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
