#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr {
namespace {

/// Element i of data that need not be aligned.
template <typename T>
T element_at(const void* data, int64_t i) {
  T element;
  std::memcpy(&element, static_cast<const std::byte*>(data) + i * int64_t{sizeof(T)}, sizeof(T));
  return element;
}

}  // namespace

std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
    case DType::boolean:
      return "bool";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::f8e5m2:
      return "f8e5m2";
    case DType::i16:
      return "i16";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::u64:
      return "u64";
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType t : kAllDTypes)
    if (name_of(t) == name) return t;
  return std::nullopt;
}

uint16_t f16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal or zero: adding 0.5 aligns and rounds the mantissa
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(aligned) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

float float_from_f16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t exponent = (x >> 10) & 0x1fu;
  const uint32_t mantissa = x & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

namespace {

/// 8 bits with `kMantissa` bits of mantissa and the exponent's bias; 0x7f is NaN.
template <int kMantissa, int kBias, uint32_t kLargest>
uint8_t f8_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  constexpr int kShift = 23 - kMantissa;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude < static_cast<uint32_t>(128 - kBias) << 23) {  // subnormal or zero
    // Adding this number aligns and rounds the mantissa.
    constexpr uint32_t kAligner = static_cast<uint32_t>(128 - kBias + kShift) << 23;
    const float aligned = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAligner);
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(aligned) - kAligner));
  }
  const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1u);
  const uint32_t small = (rounded >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
  return static_cast<uint8_t>(sign | std::min(small, kLargest));
}

}  // namespace

uint8_t f8e4m3_from_float(float x) { return f8_from_float<3, 7, 0x7e>(x); }
uint8_t f8e5m2_from_float(float x) { return f8_from_float<2, 15, 0x7b>(x); }

float float_from_f8e4m3(uint8_t x) {
  const uint32_t exponent = (x >> 3) & 0xfu, mantissa = x & 7u;
  float y = 0;
  if ((x & 0x7fu) == 0x7fu)
    y = std::bit_cast<float>(0x7fc00000u);
  else if (exponent == 0)
    y = static_cast<float>(mantissa) * 0x1p-9f;
  else
    y = std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (x & 0x80u) != 0 ? -y : y;
}
// The upper half of a binary16.
float float_from_f8e5m2(uint8_t x) { return float_from_f16(static_cast<uint16_t>(x << 8)); }

uint64_t integer_from_double(DType t, double value) {
  if (std::isnan(value)) return 0;
  // The greatest integers of 64 bits round up to a double that is already beyond them.
  if (value <= double_from_integer(t, lowest_integer(t))) return lowest_integer(t);
  if (value >= double_from_integer(t, greatest_integer(t))) return greatest_integer(t);
  return is_signed_integer(t) ? static_cast<uint64_t>(static_cast<int64_t>(value))
                              : static_cast<uint64_t>(value);
}

namespace {

// f(a zero of the C++ type of an integer or boolean dtype).
template <typename F>
auto with_integer_type(DType t, F&& f) {
  switch (t) {
    case DType::i8:
      return f(int8_t{});
    case DType::i16:
      return f(int16_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::i64:
      return f(int64_t{});
    case DType::u8:
    case DType::boolean:
      return f(uint8_t{});
    case DType::u16:
      return f(uint16_t{});
    case DType::u32:
      return f(uint32_t{});
    case DType::u64:
      return f(uint64_t{});
    default:
      BRRR_CHECK(false, "{} is not an integer", name_of(t));
  }
}

}  // namespace

uint64_t load_integer(DType t, const void* data, int64_t i) {
  return with_integer_type(t, [&]<typename T>(T) {
    const auto value = element_at<T>(data, i);
    return t == DType::boolean ? uint64_t{value != 0} : static_cast<uint64_t>(value);
  });
}

void store_integer(DType t, void* data, int64_t i, uint64_t bits) {
  with_integer_type(t, [&]<typename T>(T) {
    static_cast<T*>(data)[i] = static_cast<T>(t == DType::boolean ? bits != 0 : bits);
  });
}

double load_as_double(DType t, const void* data, int64_t i) {
  switch (t) {
    case DType::f32:
      return element_at<float>(data, i);
    case DType::f64:
      return element_at<double>(data, i);
    case DType::bf16:
      return float_from_bf16(element_at<uint16_t>(data, i));
    case DType::f16:
      return float_from_f16(element_at<uint16_t>(data, i));
    case DType::f8e4m3:
      return float_from_f8e4m3(element_at<uint8_t>(data, i));
    case DType::f8e5m2:
      return float_from_f8e5m2(element_at<uint8_t>(data, i));
    default:
      return double_from_integer(t, load_integer(t, data, i));
  }
}

namespace {
// double -> float -> 16 or 8 bits would round twice; rounding the first step to odd keeps the
// second exact.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (bits & 1u) return nearest;
  const bool nearest_is_larger = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  bits = nearest_is_larger ? bits - 1 : bits + 1;
  return std::bit_cast<float>(bits);
}
}  // namespace

void store_from_double(DType t, void* data, int64_t i, double value) {
  switch (t) {
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case DType::f64:
      static_cast<double*>(data)[i] = value;
      return;
    case DType::bf16:
      static_cast<uint16_t*>(data)[i] = bf16_from_float(round_to_odd(value));
      return;
    case DType::f16:
      static_cast<uint16_t*>(data)[i] = f16_from_float(round_to_odd(value));
      return;
    case DType::boolean:
      static_cast<uint8_t*>(data)[i] = value != 0;
      return;
    case DType::f8e4m3:
      static_cast<uint8_t*>(data)[i] = f8e4m3_from_float(round_to_odd(value));
      return;
    case DType::f8e5m2:
      static_cast<uint8_t*>(data)[i] = f8e5m2_from_float(round_to_odd(value));
      return;
    default:
      store_integer(t, data, i, integer_from_double(t, value));
  }
}

void store_floats(DType t, const float* from, void* to, int64_t n) {
  auto* bits = static_cast<uint16_t*>(to);
  if (t == DType::f32)
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  else if (t == DType::bf16)
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) bits[i] = bf16_from_float(from[i]);
  else if (t == DType::f16)
    for (int64_t i = 0; i < n; ++i) bits[i] = f16_from_float(from[i]);
  else
    BRRR_CHECK(false, "floats stored as {}", name_of(t));
}

namespace {

/// `n` elements of f32, bf16 or f16, which may lie at any address, as floats; exact.
void load_floats(DType t, const std::byte* from, float* to, int64_t n) {
  if (t == DType::f32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (t == DType::bf16) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = float_from_bf16(element_at<uint16_t>(from, i));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = float_from_f16(element_at<uint16_t>(from, i));
  }
}

}  // namespace

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t n) {
  constexpr int64_t kGrain = 1 << 16, kBlock = 1 << 10;
  const auto from_width = static_cast<int64_t>(bytes_of(from_dtype)),
             to_width = static_cast<int64_t>(bytes_of(to_dtype));
  const auto* const read = static_cast<const std::byte*>(from);
  auto* const write = static_cast<std::byte*>(to);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    if (from_dtype == to_dtype) {
      std::memcpy(write + begin * to_width, read + begin * from_width,
                  static_cast<size_t>((end - begin) * to_width));
      return;
    }
    if (!is_compute_float(from_dtype) || !is_compute_float(to_dtype)) {
      for (int64_t i = begin; i < end; ++i)
        store_from_double(to_dtype, to, i, load_as_double(from_dtype, from, i));
      return;
    }
    std::array<float, kBlock> block;
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      load_floats(from_dtype, read + at * from_width, block.data(), count);
      store_floats(to_dtype, block.data(), write + at * to_width, count);
    }
  });
}

}  // namespace brrr
