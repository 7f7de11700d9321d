#pragma once
// Blocks of 64 values of 4 bits that are no integers: a float32, the largest magnitude, and 64
// codes, two in a byte with the first in the high half. A value is the code's entry of a table
// times the magnitude. NF4 (Dettmers et al. 2023, QLoRA) has quantiles of the normal distribution,
// FP4 floats with two bits of exponent; tables, rounding and bytes are those of bitsandbytes with
// its usual blocks. GGUF files have neither type.

#include <cstddef>
#include <cstdint>
#include <span>

namespace brrr::blocks {

inline constexpr int64_t kFourBitValues = 64, kFourBitBytes = 36;

std::span<const float, 16> nf4_values();
std::span<const float, 16> fp4_values();

void dequantise_nf4(const std::byte* blocks, int64_t count, float* out);
void dequantise_fp4(const std::byte* blocks, int64_t count, float* out);

/// Writes the codes of the nearest values. Halfway between two is the lower one of NF4 and the
/// lower magnitude of FP4. Where a value is not finite, all of its block is NaN.
void quantise_nf4(const float* values, int64_t count, std::byte* out);
void quantise_fp4(const float* values, int64_t count, std::byte* out);

}  // namespace brrr::blocks
