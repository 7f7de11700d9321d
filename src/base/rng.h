#pragma once
// Counter-based random numbers: Philox4x32 (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011) with 7 rounds, the fewest that the paper found to pass BigCrush. A number is a
// pure function of (key, counter): no state to save, any order, any number of threads, same bits.

#include <array>
#include <cstdint>

namespace brrr {

struct RngKey {
  uint32_t seed = 0;
  uint32_t step = 0;
};

inline constexpr int kPhiloxRounds = 7;
inline constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;

/// Four 32-bit words for block `block` of stream `stream`.
inline std::array<uint32_t, 4> philox(RngKey key, uint32_t stream, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = stream,
           c3 = 0, k0 = key.seed, k1 = key.step;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return {c0, c1, c2, c3};
}

/// Element `i` of the 16-bit stream that dropout reads: eight elements per block, low half first.
inline uint32_t philox_u16(RngKey key, uint32_t stream, uint64_t i) {
  const auto words = philox(key, stream, i / 8);
  return (words[(i % 8) / 2] >> (16 * (i % 2))) & 0xffffu;
}

/// A uniform number in [0, 1) with 24 bits from one word.
inline float uniform_from_bits(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Host-side sequential generator over one stream (shuffles, sampling). Copyable; its whole state
/// is (key, stream, position).
class RngStream {
 public:
  RngStream(RngKey key, uint32_t stream, uint64_t position = 0)
      : key_(key), stream_(stream), position_(position) {}
  uint32_t next_u32() {
    const uint64_t i = position_++;
    return philox(key_, stream_, i / 4)[i % 4];
  }
  float next_uniform() { return uniform_from_bits(next_u32()); }
  /// Uniform in [0, n), n > 0, by multiplication with rejection (Lemire 2019): no modulo bias.
  uint64_t next_below(uint64_t n) {
    for (;;) {
      const uint64_t high = next_u32();
      const uint64_t word = (high << 32) | next_u32();
      const Wide product = static_cast<Wide>(word) * n;
      const auto low = static_cast<uint64_t>(product);
      if (low >= n || low >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
    }
  }
  uint64_t position() const { return position_; }

 private:
  __extension__ using Wide = unsigned __int128;
  RngKey key_;
  uint32_t stream_;
  uint64_t position_;
};

}  // namespace brrr
