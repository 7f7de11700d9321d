#pragma once
// Element types of tensors, their sizes, and the conversions of the small floats.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace brrr {

enum class DType : uint8_t { f32, f64, bf16, f16, i32, i64, i8, u8, boolean, f8e4m3, f8e5m2 };

inline constexpr DType kAllDTypes[] = {DType::f32,     DType::f64,    DType::bf16,  DType::f16,
                                       DType::i32,     DType::i64,    DType::i8,    DType::u8,
                                       DType::boolean, DType::f8e4m3, DType::f8e5m2};

inline constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16,
                       i32 = DType::i32, i64 = DType::i64, i8 = DType::i8, u8 = DType::u8,
                       boolean = DType::boolean, f8e4m3 = DType::f8e4m3, f8e5m2 = DType::f8e5m2;

constexpr size_t bytes_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
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
constexpr bool is_integer(DType t) {
  return t == DType::i32 || t == DType::i64 || t == DType::i8 || t == DType::u8;
}

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

/// One element read as double (exact for every dtype but i64 beyond 2^53).
double load_as_double(DType t, const void* data, int64_t index);
/// One element written from double, rounded to nearest even (float types) or truncated (integers).
void store_from_double(DType t, void* data, int64_t index, double value);
/// `n` floats written as f32, bf16 or f16, rounded to nearest even.
void store_floats(DType t, const float* from, void* to, int64_t n);
/// What a value becomes when it is stored as `t`.
inline double rounded_to(DType t, double value) {
  uint64_t room = 0;
  store_from_double(t, &room, 0, value);
  return load_as_double(t, &room, 0);
}

}  // namespace brrr
