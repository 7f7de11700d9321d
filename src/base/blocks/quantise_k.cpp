// Q4_K, Q5_K and Q6_K: blocks of 256 values in groups, each with a small integer scale (and, in
// Q4_K and Q5_K, an offset) that the block's own f16 scale multiplies. Scales are chosen by
// weighted least squares: for several candidate step sizes the values are rounded, the best scale
// for these codes is solved for, and the candidate with the least error wins. The weight of a value
// x is rms(group) + |x|, because large weights contribute more to a product.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/blocks/quantise.h"
#include "base/blocks/write_half.h"
#include "base/dtype.h"

namespace brrr::blocks {
namespace {

constexpr int kSuperValues = 256;

/// Rounds to nearest within [0, most].
int code_of(float value, int most) {
  return static_cast<int>(std::clamp(value, 0.0f, static_cast<float>(most)) + 0.5f);
}

/// weights: [count]
void weigh(const float* x, int count, float* weights) {
  float squares = 0;
  for (int i = 0; i < count; ++i) squares += x[i] * x[i];
  const float level = std::sqrt(squares / static_cast<float>(count));
  for (int i = 0; i < count; ++i) weights[i] = level > 0 ? level + std::fabs(x[i]) : 1;
}

/// x ~ scale * code - offset with codes in [0, most]; both are at least 0.
struct AffineFit {
  float scale = 0, offset = 0;
};

/// Sums over a group for given codes q, from which the best fit follows.
struct AffineSums {
  float w = 0, wx = 0, wq = 0, wqq = 0, wqx = 0, wxx = 0;

  AffineSums(const float* x, const float* weights, int count, float inverse, float low, int most) {
    for (int i = 0; i < count; ++i) {
      const auto q = static_cast<float>(code_of((x[i] - low) * inverse, most));
      const float v = weights[i];
      w += v;
      wx += v * x[i];
      wq += v * q;
      wqq += v * q * q;
      wqx += v * q * x[i];
      wxx += v * x[i] * x[i];
    }
  }
  /// The fit of least squares whose offset is not negative.
  AffineFit solve() const {
    const float determinant = w * wqq - wq * wq;
    if (determinant > 0) {
      const AffineFit fit{(w * wqx - wq * wx) / determinant, (wq * wqx - wqq * wx) / determinant};
      if (fit.offset >= 0) return fit;
    }
    return {wqq > 0 ? wqx / wqq : 0, 0};
  }
  float error(const AffineFit& f) const {
    return wxx - 2 * f.scale * wqx + 2 * f.offset * wx + f.scale * f.scale * wqq -
           2 * f.scale * f.offset * wq + f.offset * f.offset * w;
  }
};

/// Fits x [count] with codes in [0, most]: scales and offsets of least weighted squared error.
AffineFit fit_affine(const float* x, const float* weights, int count, int most) {
  const auto [lowest, highest] = std::minmax_element(x, x + count);
  const float low = std::min(0.0f, *lowest), range = *highest - low;
  if (!(range > 0)) return {0, -low};
  AffineFit best{range / static_cast<float>(most), -low};
  float least = HUGE_VALF;
  const auto try_step = [&](float inverse, float from) {
    const AffineSums sums(x, weights, count, inverse, from, most);
    const AffineFit fit = sums.solve();
    const float error = sums.error(fit);
    if (!(fit.scale > 0) || !(error < least)) return false;
    least = error;
    best = fit;
    return true;
  };
  constexpr int kCandidates = 10;  // on each side of the step that spans the range
  for (int t = -kCandidates; t <= kCandidates; ++t)
    try_step((static_cast<float>(most) + 0.1f * static_cast<float>(t)) / range, low);
  // Rounding with the solved scale and offset may give other codes; solve again until the error
  // no longer falls.
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round)
    if (!try_step(1 / best.scale, -best.offset)) break;
  return best;
}

/// x ~ scale * code with codes in [-most - 1, most].
float fit_scale(const float* x, const float* weights, int count, int most) {
  float largest = 0;
  for (int i = 0; i < count; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  if (largest == 0) return 0;
  const auto bottom = static_cast<float>(most + 1);
  float best = -largest / bottom, most_explained = 0;
  const auto try_step = [&](float inverse) {
    float wqx = 0, wqq = 0;
    for (int i = 0; i < count; ++i) {
      const auto q = static_cast<float>(code_of(x[i] * inverse + bottom, 2 * most + 1)) - bottom;
      wqx += weights[i] * q * x[i];
      wqq += weights[i] * q * q;
    }
    // The error is the sum of w x^2 less this.
    if (!(wqq > 0) || !(wqx * wqx > most_explained * wqq)) return false;
    most_explained = wqx * wqx / wqq;
    best = wqx / wqq;
    return true;
  };
  constexpr int kCandidates = 9;
  for (int t = -kCandidates; t <= kCandidates; ++t)
    try_step(-(bottom + 0.1f * static_cast<float>(t)) / largest);
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round)
    if (!try_step(1 / best)) break;
  return best;
}

/// A block of 8 groups of 32 values with codes of 0 to `most`.
struct AffineBlock {
  static constexpr int kGroups = 8, kGroupValues = 32, kMostScale = 63;
  uint8_t scales[kGroups], offsets[kGroups], codes[kSuperValues];
  float scale = 0, offset = 0;  // of the block, as f16 holds them

  /// Writes the two f16 numbers to out[0, 4).
  AffineBlock(const float* x, int most, std::byte* out) {
    AffineFit fits[kGroups];
    float weights[kSuperValues];
    float largest_scale = 0, largest_offset = 0;
    for (int g = 0; g < kGroups; ++g) {
      weigh(x + g * kGroupValues, kGroupValues, weights + g * kGroupValues);
      fits[g] = fit_affine(x + g * kGroupValues, weights + g * kGroupValues, kGroupValues, most);
      largest_scale = std::max(largest_scale, fits[g].scale);
      largest_offset = std::max(largest_offset, fits[g].offset);
    }
    scale = write_half(largest_scale / kMostScale, out);
    offset = write_half(largest_offset / kMostScale, out + 2);
    const float inverse_scale = scale > 0 ? 1 / scale : 0;
    const float inverse_offset = offset > 0 ? 1 / offset : 0;
    for (int g = 0; g < kGroups; ++g) {
      const float* const group = x + g * kGroupValues;
      choose(g, group, weights + g * kGroupValues, most,
             code_of(fits[g].scale * inverse_scale, kMostScale),
             code_of(fits[g].offset * inverse_offset, kMostScale));
      const float step = scale * scales[g], low = offset * offsets[g];
      const float inverse = step > 0 ? 1 / step : 0;
      for (int i = 0; i < kGroupValues; ++i)
        codes[g * kGroupValues + i] =
            static_cast<uint8_t>(code_of((group[i] + low) * inverse, most));
    }
  }

 private:
  /// Sets the integers of a group: the rounded ones, or neighbours of less error.
  void choose(int g, const float* x, const float* weights, int most, int near_scale,
              int near_offset) {
    float least = HUGE_VALF;
    for (int s = std::max(near_scale - 1, 0); s <= std::min(near_scale + 1, kMostScale); ++s)
      for (int o = std::max(near_offset - 1, 0); o <= std::min(near_offset + 1, kMostScale); ++o) {
        const float step = scale * static_cast<float>(s), low = offset * static_cast<float>(o);
        const float inverse = step > 0 ? 1 / step : 0;
        float error = 0;
        for (int i = 0; i < kGroupValues; ++i) {
          const float gap =
              x[i] + low - step * static_cast<float>(code_of((x[i] + low) * inverse, most));
          error += weights[i] * gap * gap;
        }
        if (!(error < least)) continue;
        least = error;
        scales[g] = static_cast<uint8_t>(s);
        offsets[g] = static_cast<uint8_t>(o);
      }
  }
};

/// 8 scales and 8 offsets of 6 bits in 12 bytes: the first four of each in the lower bits of bytes
/// 0 to 7, the lower four bits of the others in bytes 8 to 11 and their upper bits in 0 to 7.
void write_scales(const AffineBlock& block, std::byte* out) {
  for (int j = 0; j < 4; ++j) {
    const int s = block.scales[j], m = block.offsets[j];
    const int later_s = block.scales[j + 4], later_m = block.offsets[j + 4];
    out[j] = static_cast<std::byte>(s | (later_s >> 4) << 6);
    out[j + 4] = static_cast<std::byte>(m | (later_m >> 4) << 6);
    out[j + 8] = static_cast<std::byte>((later_s & 15) | (later_m & 15) << 4);
  }
}

/// The lower four bits of 256 codes: of 64 values, the first 32 beside the last 32.
void write_nibbles(const uint8_t* codes, std::byte* out) {
  for (int part = 0; part < 4; ++part)
    for (int i = 0; i < 32; ++i)
      out[part * 32 + i] = static_cast<std::byte>((codes[part * 64 + i] & 15) |
                                                  (codes[part * 64 + 32 + i] & 15) << 4);
}

}  // namespace

// A block is an f16 scale, an f16 offset, 12 bytes of group scales and offsets, and 128 bytes of
// codes.
void quantise_q4_k(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 144;
  for (int64_t block = 0; block < count; ++block, values += kSuperValues, out += kBytes) {
    const AffineBlock made(values, 15, out);
    write_scales(made, out + 4);
    write_nibbles(made.codes, out + 16);
  }
}

// As Q4_K, with the fifth bits before the codes: bit g of byte i is that of value i of group g.
void quantise_q5_k(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 176;
  for (int64_t block = 0; block < count; ++block, values += kSuperValues, out += kBytes) {
    const AffineBlock made(values, 31, out);
    write_scales(made, out + 4);
    for (int i = 0; i < 32; ++i) {
      int bits = 0;
      for (int g = 0; g < AffineBlock::kGroups; ++g)
        bits |= (made.codes[g * AffineBlock::kGroupValues + i] >> 4) << g;
      out[16 + i] = static_cast<std::byte>(bits);
    }
    write_nibbles(made.codes, out + 48);
  }
}

// 16 groups of 16 values. 128 bytes of lower four bits, 64 of upper two, 16 signed scales, f16
// scale.
void quantise_q6_k(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 210;
  constexpr int kGroups = 16, kGroupValues = 16, kMostCode = 31, kMostScale = 127;
  for (int64_t block = 0; block < count; ++block, values += kSuperValues, out += kBytes) {
    float fits[kGroups], weights[kSuperValues], largest = 0;
    for (int g = 0; g < kGroups; ++g) {
      weigh(values + g * kGroupValues, kGroupValues, weights + g * kGroupValues);
      fits[g] =
          fit_scale(values + g * kGroupValues, weights + g * kGroupValues, kGroupValues, kMostCode);
      if (std::fabs(fits[g]) > std::fabs(largest)) largest = fits[g];
    }
    const float scale = write_half(-largest / static_cast<float>(kMostScale + 1), out + 208);
    const float inverse_scale = scale == 0 ? 0 : 1 / scale;
    uint8_t codes[kSuperValues];
    for (int g = 0; g < kGroups; ++g) {
      const float rounded = std::round(fits[g] * inverse_scale);
      const int near = static_cast<int>(
          std::clamp(rounded, -static_cast<float>(kMostScale + 1), static_cast<float>(kMostScale)));
      float least = HUGE_VALF;
      for (int s = std::max(near - 1, -kMostScale - 1); s <= std::min(near + 1, kMostScale); ++s) {
        const float step = scale * static_cast<float>(s);
        const float inverse = step == 0 ? 0 : 1 / step;
        uint8_t tried[kGroupValues];
        float error = 0;
        for (int i = 0; i < kGroupValues; ++i) {
          const float x = values[g * kGroupValues + i];
          tried[i] = static_cast<uint8_t>(code_of(x * inverse + 32, 63));
          const float gap = x - step * static_cast<float>(tried[i] - 32);
          error += weights[g * kGroupValues + i] * gap * gap;
        }
        if (!(error < least)) continue;
        least = error;
        out[192 + g] = static_cast<std::byte>(static_cast<int8_t>(s));
        std::memcpy(codes + g * kGroupValues, tried, sizeof(tried));
      }
    }
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 32; ++i) {
        const uint8_t* const q = codes + half * 128 + i;  // q[0], q[32], q[64], q[96]
        out[half * 64 + i] = static_cast<std::byte>((q[0] & 15) | (q[64] & 15) << 4);
        out[half * 64 + 32 + i] = static_cast<std::byte>((q[32] & 15) | (q[96] & 15) << 4);
        out[128 + half * 32 + i] = static_cast<std::byte>(q[0] >> 4 | (q[32] >> 4) << 2 |
                                                          (q[64] >> 4) << 4 | (q[96] >> 4) << 6);
      }
  }
}

}  // namespace brrr::blocks
