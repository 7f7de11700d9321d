#pragma once
// The C++ type that stores the elements of a dtype, and the type in which they are computed.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/simd/simd_types.h"
#include "base/dtype.h"
#include "base/errors.h"

namespace brrr::cpu {

/// Calls f with a value of the type that stores `t`: an integer, f32, f64, F16 or Bf16.
template <typename F>
auto with_number_type(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(Bf16{});
    case DType::f16:
      return f(F16{});
    case DType::i8:
      return f(int8_t{});
    case DType::u8:
      return f(uint8_t{});
    case DType::i16:
      return f(int16_t{});
    case DType::u16:
      return f(uint16_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::u32:
      return f(uint32_t{});
    case DType::i64:
      return f(int64_t{});
    case DType::u64:
      return f(uint64_t{});
    default:
      BRRR_CHECK(false, "{} is no number", name_of(t));
  }
}

/// The value of an element, 16-bit floats as f32. Branch-free, so that compilers vectorise loops.
inline float number_of(F16 x) {
  const uint32_t magnitude = (uint32_t{x.bits} & 0x7fff) << 13, sign = (uint32_t{x.bits} & 0x8000)
                                                                       << 16;
  // 2^112 corrects the difference of the exponent biases. The largest exponent of f16, that of
  // infinities and NaN, becomes the largest of f32.
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t number = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : scaled;
  return std::bit_cast<float>(number | sign);
}
inline float number_of(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
template <typename T>
T number_of(T x) {
  return x;
}
template <typename T>
using Number = decltype(number_of(T{}));

/// Stores a number as T, rounded to nearest where T has 16 bits.
template <typename T>
void store_number(T& to, Number<T> x) {
  if constexpr (std::is_same_v<T, F16>)
    to.bits = f16_from_float(x);
  else if constexpr (std::is_same_v<T, Bf16>)
    to.bits = bf16_from_float(x);
  else
    to = static_cast<T>(x);
}

template <typename T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  return false;
}

}  // namespace brrr::cpu
