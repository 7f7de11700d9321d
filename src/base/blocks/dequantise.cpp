#include "base/blocks/dequantise.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/dtype.h"

namespace brrr::blocks {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kSmall = 32;   // values of a block of the older types
constexpr int kLarge = 256;  // values of a block of the K types

float half_at(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return float_from_f16(bits);
}

/// Calls `block(in, out)` for every block of `kBytes` bytes and `kValues` values.
template <int kBytes, int kValues, typename Block>
void each_block(const std::byte* blocks, int64_t count, float* out, const Block& block) {
  const auto* in = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < count; ++b, in += kBytes, out += kValues) block(in, out);
}

// The values of IQ4_NL and IQ4_XS, and twice those of e2m1.
constexpr std::array<int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<int8_t, 16> kDoubledE2m1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};

/// 16 bytes hold 32 values: the low nibbles the first half, the high nibbles the second.
void unpack_nibbles(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = in[i] & 15;
  for (int i = 0; i < 16; ++i) out[16 + i] = in[i] >> 4;
}

void scale_table(const uint8_t* in, float scale, const std::array<int8_t, 16>& table, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(table[in[i] & 15]);
    out[16 + i] = scale * static_cast<float>(table[in[i] >> 4]);
  }
}

/// 32 values of 5 bits: nibbles as above, and their fifth bits in one word.
void unpack_five_bits(const uint8_t* high, const uint8_t* low, uint8_t* out) {
  uint32_t bits = 0;
  std::memcpy(&bits, high, sizeof(bits));
  unpack_nibbles(low, out);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

/// The 6-bit scales and minima of the eight groups of a Q4_K or Q5_K block, in 12 bytes.
void unpack_scales(const uint8_t* in, uint8_t* scales, uint8_t* minima) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = in[i] & 63;
    minima[i] = in[4 + i] & 63;
    scales[4 + i] = static_cast<uint8_t>((in[8 + i] & 15) | (in[i] >> 2 & 48));
    minima[4 + i] = static_cast<uint8_t>((in[8 + i] >> 4) | (in[4 + i] >> 2 & 48));
  }
}

}  // namespace

void dequantise_f32(const std::byte* blocks, int64_t count, float* out) {
  if (count > 0) std::memcpy(out, blocks, static_cast<size_t>(count) * sizeof(float));
}

void dequantise_f16(const std::byte* blocks, int64_t count, float* out) {
  each_block<2, 1>(blocks, count, out, [](const uint8_t* in, float* to) { *to = half_at(in); });
}

void dequantise_bf16(const std::byte* blocks, int64_t count, float* out) {
  each_block<2, 1>(blocks, count, out, [](const uint8_t* in, float* to) {
    *to = float_from_bf16(static_cast<uint16_t>(in[0] | in[1] << 8));
  });
}

// The comment on each function below lists the fields of a block in the order of its bytes and,
// after the colon, the value that they give. q are the integers, d, m and dmin are factors, s are
// scales.

// f16 d, 16 bytes q: d (q - 8)
void dequantise_q4_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<18, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in);
    uint8_t q[kSmall];
    unpack_nibbles(in + 2, q);
    for (int i = 0; i < kSmall; ++i) to[i] = d * static_cast<float>(q[i] - 8);
  });
}

// f16 d, f16 m, 16 bytes q: d q + m
void dequantise_q4_1(const std::byte* blocks, int64_t count, float* out) {
  each_block<20, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in), m = half_at(in + 2);
    uint8_t q[kSmall];
    unpack_nibbles(in + 4, q);
    for (int i = 0; i < kSmall; ++i) to[i] = d * static_cast<float>(q[i]) + m;
  });
}

// f16 d, 4 bytes of fifth bits, 16 bytes q: d (q - 16)
void dequantise_q5_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<22, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in);
    uint8_t q[kSmall];
    unpack_five_bits(in + 2, in + 6, q);
    for (int i = 0; i < kSmall; ++i) to[i] = d * static_cast<float>(q[i] - 16);
  });
}

// f16 d, f16 m, 4 bytes of fifth bits, 16 bytes q: d q + m
void dequantise_q5_1(const std::byte* blocks, int64_t count, float* out) {
  each_block<24, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in), m = half_at(in + 2);
    uint8_t q[kSmall];
    unpack_five_bits(in + 4, in + 8, q);
    for (int i = 0; i < kSmall; ++i) to[i] = d * static_cast<float>(q[i]) + m;
  });
}

// f16 d, 32 i8 q: d q
void dequantise_q8_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<34, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in);
    for (int i = 0; i < kSmall; ++i) to[i] = d * static_cast<float>(static_cast<int8_t>(in[2 + i]));
  });
}

// f16 d, 16 bytes q: d table[q]
void dequantise_iq4_nl(const std::byte* blocks, int64_t count, float* out) {
  each_block<18, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    scale_table(in + 2, half_at(in), kNonLinear, to);
  });
}

// e8m0 e, 16 bytes q: 2^(e - 127) e2m1[q]. The table is doubled, the scale halved.
void dequantise_mxfp4(const std::byte* blocks, int64_t count, float* out) {
  each_block<17, kSmall>(blocks, count, out, [](const uint8_t* in, float* to) {
    const uint32_t e = in[0];
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    scale_table(in + 1, std::bit_cast<float>(bits), kDoubledE2m1, to);
  });
}

// 16 bytes s, 64 bytes q, f16 d, f16 dmin; 16 values share s: d (s & 15) q - dmin (s >> 4).
// 32 bytes hold 128 values, two bits of each byte at a time.
void dequantise_q2_k(const std::byte* blocks, int64_t count, float* out) {
  each_block<84, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    const uint8_t* const q = in + 16;
    const float d = half_at(in + 80), dmin = half_at(in + 82);
    for (int group = 0; group < 16; ++group, to += 16) {
      const uint8_t* const from = q + group / 8 * 32 + group % 2 * 16;
      const int shift = group / 2 % 4 * 2;
      const float scale = d * static_cast<float>(in[group] & 15);
      const float minimum = dmin * static_cast<float>(in[group] >> 4);
      for (int i = 0; i < 16; ++i)
        to[i] = scale * static_cast<float>(from[i] >> shift & 3) - minimum;
    }
  });
}

// 32 bytes of third bits, 64 bytes q, 12 bytes of 6-bit scales s, f16 d: d (s - 32) (q - 4), or
// d (s - 32) q where the third bit is set. 16 values share s.
void dequantise_q3_k(const std::byte* blocks, int64_t count, float* out) {
  each_block<110, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    const uint8_t *const q = in + 32, *const s = in + 96;
    const float d = half_at(in + 108);
    for (int group = 0; group < 16; ++group, to += 16) {
      const uint8_t* const from = q + group / 8 * 32 + group % 2 * 16;
      const uint8_t* const high = in + group % 2 * 16;
      const int shift = group / 2 % 4 * 2, bit = group / 2;
      const int low = s[group % 8] >> group / 8 * 4 & 15;
      const int scale = (low | (s[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
      const float factor = d * static_cast<float>(scale);
      for (int i = 0; i < 16; ++i) {
        const int value = (from[i] >> shift & 3) - ((~high[i] >> bit & 1) << 2);
        to[i] = factor * static_cast<float>(value);
      }
    }
  });
}

// f16 d, f16 dmin, 12 bytes of scales s and minima m, 128 bytes q; 32 values share s and m:
// d s q - dmin m. 32 bytes hold 64 values, low nibbles first.
void dequantise_q4_k(const std::byte* blocks, int64_t count, float* out) {
  each_block<144, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    uint8_t scales[8], minima[8];
    unpack_scales(in + 4, scales, minima);
    const float d = half_at(in), dmin = half_at(in + 2);
    for (int group = 0; group < 8; ++group, to += 32) {
      const uint8_t* const from = in + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float scale = d * static_cast<float>(scales[group]);
      const float minimum = dmin * static_cast<float>(minima[group]);
      for (int i = 0; i < 32; ++i)
        to[i] = scale * static_cast<float>(from[i] >> shift & 15) - minimum;
    }
  });
}

// Like Q4_K, but 32 bytes before the nibbles hold the fifth bit of each value: bit g of a byte
// belongs to group g.
void dequantise_q5_k(const std::byte* blocks, int64_t count, float* out) {
  each_block<176, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    uint8_t scales[8], minima[8];
    unpack_scales(in + 4, scales, minima);
    const uint8_t* const high = in + 16;
    const float d = half_at(in), dmin = half_at(in + 2);
    for (int group = 0; group < 8; ++group, to += 32) {
      const uint8_t* const from = in + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float scale = d * static_cast<float>(scales[group]);
      const float minimum = dmin * static_cast<float>(minima[group]);
      for (int i = 0; i < 32; ++i) {
        const int q = (from[i] >> shift & 15) | (high[i] >> group & 1) << 4;
        to[i] = scale * static_cast<float>(q) - minimum;
      }
    }
  });
}

// Layout: 128 bytes with the low 4 bits of q, 64 bytes with its high 2 bits, 16 scales s (i8), and
// d (f16). The value is d s (q - 32); 16 values share s. 64 bytes hold the low bits of 128 values,
// low nibbles first.
void dequantise_q6_k(const std::byte* blocks, int64_t count, float* out) {
  each_block<210, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in + 208);
    for (int group = 0; group < 16; ++group, to += 16) {
      const int half = group / 8, quarter = group / 2 % 4, odd = group % 2 * 16;
      const uint8_t* const low = in + half * 64 + quarter % 2 * 32 + odd;
      const uint8_t* const high = in + 128 + half * 32 + odd;
      const int shift = quarter / 2 * 4, high_shift = quarter * 2;
      const float scale = d * static_cast<float>(static_cast<int8_t>(in[192 + group]));
      for (int i = 0; i < 16; ++i) {
        const int q = (low[i] >> shift & 15) | (high[i] >> high_shift & 3) << 4;
        to[i] = scale * static_cast<float>(q - 32);
      }
    }
  });
}

// f16 d, u16 of two higher bits of the scales, 4 bytes of their nibbles, 128 bytes q; 32 values
// share a scale s: d (s - 32) table[q].
void dequantise_iq4_xs(const std::byte* blocks, int64_t count, float* out) {
  each_block<136, kLarge>(blocks, count, out, [](const uint8_t* in, float* to) {
    const float d = half_at(in);
    const int high = in[2] | in[3] << 8;
    for (int group = 0; group < 8; ++group, to += 32) {
      const int low = in[4 + group / 2] >> group % 2 * 4 & 15;
      const int scale = (low | (high >> 2 * group & 3) << 4) - 32;
      scale_table(in + 8 + group * 16, d * static_cast<float>(scale), kNonLinear, to);
    }
  });
}

}  // namespace brrr::blocks
