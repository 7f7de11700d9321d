#pragma once
// The 8-bit numbers of block-wise dynamic quantisation (Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization", section 2; the tables are bitsandbytes' create_dynamic_map): seven
// decades from 1e-7 to 1, each cut into equal cells, twice as many from one decade to the next,
// with the cells' centres as numbers; besides 0 and 1. A tensor is stored as codes, and for each
// block of elements the largest magnitude, which is 1.

#include <array>
#include <cstdint>

namespace brrr::ops {

inline constexpr int64_t kCodeBlock = 256;  // elements that share a scale
/// Scales below it count as it, so that a block of zeros divides nothing by zero.
inline constexpr float kLeastScale = 1e-38f;

using CodeBook = std::array<float, 256>;  // ascending

/// Of numbers in [-1, 1] (first moments), or in [0, 1] (second moments).
const CodeBook& dynamic_codes(bool is_signed);

/// The code of the number nearest to x; halfway the lower one.
uint8_t nearest_code(const CodeBook& codes, double x);

/// Blocks of a tensor of n elements.
constexpr int64_t code_blocks(int64_t n) { return (n + kCodeBlock - 1) / kCodeBlock; }

}  // namespace brrr::ops
