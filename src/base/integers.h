#pragma once
// Division of sizes.

#include <cstdint>

namespace brrr {

/// x / by, rounded up. x >= 0, by > 0.
constexpr int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }
/// The least multiple of `to` that is not below x. x >= 0, to > 0.
constexpr int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

}  // namespace brrr
