#pragma once
// NF4 and FP4: 64 codes of 4 bits with one scale. A block is a float32, the largest magnitude of
// its values, and 32 bytes of two codes each, the first in the high half. A value is the code's
// table entry times the magnitude. The table of NF4 holds quantiles of the normal distribution
// (Dettmers et al. 2023, QLoRA), that of FP4 floats with two bits of exponent. Tables, rounding and
// codes equal those of bitsandbytes with blocks of 64. GGUF files never hold these types.

#include <cstddef>
#include <cstdint>
#include <span>

namespace brrr::blocks {

/// Names of the storages in these blocks (base/storage.h).
inline constexpr const char *kNf4Storage = "blocks_of_NF4", *kFp4Storage = "blocks_of_FP4";

inline constexpr int64_t kFourBitValues = 64, kFourBitBytes = 36;

std::span<const float, 16> nf4_values();
std::span<const float, 16> fp4_values();

void dequantise_nf4(const std::byte* blocks, int64_t count, float* out);
void dequantise_fp4(const std::byte* blocks, int64_t count, float* out);

/// Rounds to the nearest entry of the table. A tie goes to the lower value (NF4) or the lower
/// magnitude (FP4). A block with a value that is not finite becomes NaN.
void quantise_nf4(const float* values, int64_t count, std::byte* out);
void quantise_fp4(const float* values, int64_t count, std::byte* out);

}  // namespace brrr::blocks
