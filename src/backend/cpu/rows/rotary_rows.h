#pragma once
// rotary of one row on one thread, in f32 whatever the element type.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

/// The first `half` pairs of each of some heads.
struct RotaryRow {
  const void* x = nullptr;                     // [heads, width]
  void* y = nullptr;                           // the same, may be x
  const float *cos = nullptr, *sin = nullptr;  // [half]
  int64_t heads = 0, width = 0, half = 0;
  bool interleaved = false, inverse = false;
};
/// For f32, bf16 and f16.
using RotaryFunction = void (*)(const RotaryRow& row);
RotaryFunction rotary_row(DType dtype);

}  // namespace brrr::cpu
