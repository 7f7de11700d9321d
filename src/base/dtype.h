#pragma once
// Element types of tensors, their sizes, and the conversions of the small floats.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace brrr {

enum class DType : uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i32,
  i64,
  i8,
  u8,
  boolean,
  f8e4m3,
  f8e5m2,
  i16,
  u16,
  u32,
  u64
};

inline constexpr DType kAllDTypes[] = {DType::f32,     DType::f64,    DType::bf16,   DType::f16,
                                       DType::i32,     DType::i64,    DType::i8,     DType::u8,
                                       DType::boolean, DType::f8e4m3, DType::f8e5m2, DType::i16,
                                       DType::u16,     DType::u32,    DType::u64};

inline constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16,
                       i32 = DType::i32, i64 = DType::i64, i8 = DType::i8, u8 = DType::u8,
                       boolean = DType::boolean, f8e4m3 = DType::f8e4m3, f8e5m2 = DType::f8e5m2;

constexpr size_t bytes_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::u16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType t) { return t == DType::f8e4m3 || t == DType::f8e5m2; }
constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::f64 || t == DType::bf16 || t == DType::f16 || is_fp8(t);
}
/// The float types that kernels compute with; f64 and fp8 are stored and converted.
constexpr bool is_compute_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}
constexpr bool is_signed_integer(DType t) {
  return t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64;
}
constexpr bool is_unsigned_integer(DType t) {
  return t == DType::u8 || t == DType::u16 || t == DType::u32 || t == DType::u64;
}
constexpr bool is_integer(DType t) { return is_signed_integer(t) || is_unsigned_integer(t); }

/// "f32", "bf16", "i32", "bool", ...
std::string_view name_of(DType t);
std::optional<DType> dtype_from_name(std::string_view name);

/// Round to nearest even; NaN stays NaN.
inline uint16_t bf16_from_float(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float float_from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
/// IEEE binary16, round to nearest even, subnormals kept, overflow to infinity.
uint16_t f16_from_float(float x);
float float_from_f16(uint16_t x);

/// The formats of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), round to nearest
/// even, subnormals kept; what is too large (infinity, too) becomes the largest number, as the
/// conversions of GPUs do; NaN stays NaN. e4m3 has no infinity and one NaN.
inline constexpr float kLargestE4m3 = 448, kLargestE5m2 = 57344;
uint8_t f8e4m3_from_float(float x);
float float_from_f8e4m3(uint8_t x);
uint8_t f8e5m2_from_float(float x);
float float_from_f8e5m2(uint8_t x);

// An integer travels as 64 bits: extended by its sign or by zeros, as its dtype says. So sums and
// products wrap around at any width, and int64_t and uint64_t are casts away.

/// What is left of `bits` in the width of `t`, extended to 64 bits again.
constexpr uint64_t wrapped_to(DType t, uint64_t bits) {
  const int spare = 64 - 8 * static_cast<int>(bytes_of(t));
  bits <<= spare;
  if (is_signed_integer(t)) return static_cast<uint64_t>(static_cast<int64_t>(bits) >> spare);
  return bits >> spare;
}
/// The least and the greatest integer of `t`.
constexpr uint64_t lowest_integer(DType t) {
  if (!is_signed_integer(t)) return 0;
  return wrapped_to(t, uint64_t{1} << (8 * static_cast<int>(bytes_of(t)) - 1));
}
constexpr uint64_t greatest_integer(DType t) {
  return is_signed_integer(t) ? ~lowest_integer(t) : wrapped_to(t, ~uint64_t{0});
}
/// The nearest double; exact for every dtype but i64 and u64.
constexpr double double_from_integer(DType t, uint64_t bits) {
  return is_signed_integer(t) ? static_cast<double>(static_cast<int64_t>(bits))
                              : static_cast<double>(bits);
}
/// The integer part; what lies beyond the range of `t` becomes its nearest end, NaN becomes 0.
uint64_t integer_from_double(DType t, double value);
/// One element of an integer or boolean tensor.
uint64_t load_integer(DType t, const void* data, int64_t index);
/// Wraps around; a boolean becomes `bits != 0`.
void store_integer(DType t, void* data, int64_t index, uint64_t bits);

/// One element, of data at any address, as a double (exact but for i64 and u64 beyond 2^53).
double load_as_double(DType t, const void* data, int64_t index);
/// One element written from double: rounded to nearest even (floats) or as integer_from_double
/// says (integers).
void store_from_double(DType t, void* data, int64_t index, double value);
/// `n` floats written as f32, bf16 or f16, rounded to nearest even.
void store_floats(DType t, const float* from, void* to, int64_t n);
/// Writes `n` elements, which may lie at any address, as elements of another dtype, each as
/// store_from_double() does it; shared among the threads.
void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t n);
/// What a value becomes when it is stored as `t`.
inline double rounded_to(DType t, double value) {
  uint64_t room = 0;
  store_from_double(t, &room, 0, value);
  return load_as_double(t, &room, 0);
}

}  // namespace brrr
