#pragma once
// The C++ type that stores the elements of a dtype.

#include <cstdint>

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

}  // namespace brrr::cpu
