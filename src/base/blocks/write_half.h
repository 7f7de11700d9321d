#pragma once
// Numbers of f16 in blocks, which may be misaligned.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace brrr::blocks {

/// Writes a number as f16, and returns it as it was rounded.
inline float write_half(float value, std::byte* out) {
  const uint16_t bits = f16_from_float(value);
  std::memcpy(out, &bits, sizeof(bits));
  return float_from_f16(bits);
}

}  // namespace brrr::blocks
