#include "backend/cpu/updates/optimizer_8bit_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"
#include "backend/cpu/updates/code_curve.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/updates/optimizer_8bit_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

using VI = hn::Vec<DI>;
constexpr int64_t kBlock = ops::kCodeBlock;

// Several vectors go through every step side by side: the operations on one wait for each other,
// and a processor's schedulers do not hold enough of them to reach the next vector's.
constexpr int kVectors = 4;
constexpr int64_t kAtOnce = kVectors * kLanes;
static_assert(kBlock % kAtOnce == 0);
using Vectors = VF[kVectors];
using Integers = VI[kVectors];

template <typename Body>
HWY_INLINE void each(const Body& body) {
#pragma GCC unroll 4
  for (int k = 0; k < kVectors; ++k) body(k);
}

// Of numbers that are not negative: as integers, for which there are more units.
HWY_INLINE VF smaller(VF a, VF b) {
  return hn::BitCast(DF(), hn::Min(hn::BitCast(DI(), a), hn::BitCast(DI(), b)));
}
HWY_INLINE VF larger(VF a, VF b) {
  return hn::BitCast(DF(), hn::Max(hn::BitCast(DI(), a), hn::BitCast(DI(), b)));
}

/// Eight numbers in registers, from a table that stands in memory twice.
class Table {
 public:
#if HWY_TARGET == HWY_SCALAR
  Table(const float (&numbers)[16], float times) {
    for (size_t i = 0; i < 8; ++i) numbers_[i] = times * numbers[i];
  }
  VF operator[](VI index) const { return hn::Set(DF(), numbers_[hn::GetLane(index) & 7]); }

 private:
  float numbers_[8];
#else
  Table(const float (&numbers)[16], float times)
      : low_(hn::Mul(hn::Load(DF(), numbers), splat(times))),
        high_(hn::Mul(hn::Load(DF(), numbers + kHigh), splat(times))) {}
  /// That of index & 7.
  VF operator[](VI index) const {
    const DF d;
#if HWY_IS_DEBUG_BUILD  // where Highway insists on it
    index = hn::And(index, hn::Set(DI(), 7));
#endif
    if constexpr (kLanes >= 8) return hn::TableLookupLanes(low_, hn::IndicesFromVec(d, index));
    const auto lanes = hn::IndicesFromVec(d, hn::And(index, hn::Set(DI(), 3)));
    const auto is_low = hn::Eq(hn::And(index, hn::Set(DI(), 4)), hn::Zero(DI()));
    return hn::IfThenElse(hn::RebindMask(d, is_low), hn::TableLookupLanes(low_, lanes),
                          hn::TableLookupLanes(high_, lanes));
  }

 private:
  static constexpr int64_t kHigh = kLanes >= 8 ? 0 : 4;
  VF low_, high_;
#endif
};

/// Integers from -1 to 255 to bytes, -1 to 0.
HWY_INLINE void store_bytes(const Integers& x, uint8_t* to) {
#if HWY_TARGET == HWY_AVX3
  const __m512i low = _mm512_packs_epi32(x[0].raw, x[1].raw);
  const __m512i high = _mm512_packs_epi32(x[2].raw, x[3].raw);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
#elif HWY_TARGET == HWY_AVX2
  const __m256i low = _mm256_packs_epi32(x[0].raw, x[1].raw);
  const __m256i high = _mm256_packs_epi32(x[2].raw, x[3].raw);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
#else
  for (int k = 0; k < kVectors; ++k) hn::StoreU(hn::DemoteTo(D8(), x[k]), D8(), to + k * kLanes);
#endif
}

/// Numbers to codes.
class Encoder {
 public:
  explicit Encoder(const CodeCurve& c)
      : above_(c.above, 1), slope_(c.slope, 1), offset_(c.offset, 1), last_(c.last, 1) {}

  /// The codes of x[i] times `times`, kAtOnce of them.
  HWY_INLINE void put_signed(const float* x, VF times, uint8_t* codes) const {
    Vectors in, c;
    each([&](int k) BRRR_INLINE_BODY {
      in[k] = hn::Mul(load(x + k * kLanes), times);
      c[k] = hn::Abs(in[k]);
    });
    turn_into_codes(c);
    each([&](int k) BRRR_INLINE_BODY { c[k] = hn::CopySignToAbs(c[k], in[k]); });
    put_codes(c, 127, codes);
  }
  HWY_INLINE void put_unsigned(const float* x, VF times, uint8_t* codes) const {
    Vectors c;
    each([&](int k) BRRR_INLINE_BODY { c[k] = hn::Mul(load(x + k * kLanes), times); });
    turn_into_codes(c);
    put_codes(c, 0, codes);
  }

 private:
  /// How many codes numbers in [0, 1] are above zero; to be rounded.
  HWY_INLINE void turn_into_codes(Vectors& x) const {
    // The bits of a float are a straight line through its logarithm, by at most 0.026 too low in
    // units of a decade, and decades begin up to 0.279 above their powers of ten: so the line gives
    // the decade, or the one above it. 2^23 more, and its last bits are the whole number. What is
    // below all decades belongs to the first.
    constexpr float kDecades = 0.30103f / kWhole;
    constexpr float kBias = 8 - 0.28f - 0.5f - 127 * 0.30103f;
    const VI first = hn::BitCast(DI(), splat(kWhole)), one = hn::Set(DI(), 1);
    Vectors line;
    Integers decade;
    each([&](int k) BRRR_INLINE_BODY { line[k] = hn::ConvertTo(DF(), hn::BitCast(DI(), x[k])); });
    each([&](int k)
             BRRR_INLINE_BODY { line[k] = hn::MulAdd(line[k], splat(kDecades), splat(kBias)); });
    each([&](int k) BRRR_INLINE_BODY { line[k] = hn::Add(line[k], splat(kWhole)); });
    each([&](int k) BRRR_INLINE_BODY { decade[k] = hn::Max(hn::BitCast(DI(), line[k]), first); });
    each([&](int k) BRRR_INLINE_BODY {
      const auto below = hn::RebindMask(DI(), hn::Le(x[k], above_[decade[k]]));
      decade[k] = hn::IfThenElse(below, hn::Sub(decade[k], one), decade[k]);
    });
    each([&](int k)
             BRRR_INLINE_BODY { x[k] = hn::MulAdd(x[k], slope_[decade[k]], offset_[decade[k]]); });
    each([&](int k) BRRR_INLINE_BODY { x[k] = smaller(x[k], last_[decade[k]]); });
  }
  /// Codes from `zero` as numbers to their bytes, rounded: the last bits of what is 2^23 more. -1
  /// has no code; it gets the least.
  static HWY_INLINE void put_codes(Vectors& codes, float zero, uint8_t* to) {
    each([&](int k) BRRR_INLINE_BODY { codes[k] = hn::Add(codes[k], splat(kWhole + zero)); });
    Integers whole;
    each([&](int k) BRRR_INLINE_BODY {
      whole[k] = hn::Sub(hn::BitCast(DI(), codes[k]), hn::BitCast(DI(), splat(kWhole)));
    });
    store_bytes(whole, to);
  }

  static constexpr float kWhole = 8388608;
  Table above_, slope_, offset_, last_;
};

/// Codes to numbers times `times`.
class Decoder {
 public:
  Decoder(const CodeCurve& c, float times) : one_(splat(c.one)), scale_(c.scale, times) {}

  HWY_INLINE void of_signed(const uint8_t* codes, Vectors& x) const {
    Vectors code;
    load_codes(codes, code);
    each([&](int k) BRRR_INLINE_BODY { code[k] = hn::Sub(code[k], splat(127.0f)); });
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::Add(hn::Abs(code[k]), splat(0.5f)); });
    Vectors scale;
    split(x, scale);
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::Mul(x[k], scale[k]); });
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::CopySignToAbs(x[k], code[k]); });
  }
  HWY_INLINE void of_unsigned(const uint8_t* codes, Vectors& x) const {
    load_codes(codes, x);
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::Add(x[k], splat(1.5f)); });
    Vectors scale;
    split(x, scale);
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::Mul(x[k], scale[k]); });
  }

 private:
  /// From codes and some halves to two factors of the number. A half's mantissa is the middle of a
  /// cell.
  HWY_INLINE void split(Vectors& x, Vectors& scale) const {
    const VF mantissa_bits = hn::BitCast(DF(), hn::Set(DI(), 0x7fffff));
    each([&](int k) BRRR_INLINE_BODY { x[k] = smaller(x[k], one_); });
    each([&](int k)
             BRRR_INLINE_BODY { scale[k] = scale_[hn::ShiftRight<23>(hn::BitCast(DI(), x[k]))]; });
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::OrAnd(splat(1.0f), x[k], mantissa_bits); });
    each([&](int k) BRRR_INLINE_BODY { x[k] = hn::Sub(x[k], splat(8.0f / 9)); });
  }
  static HWY_INLINE void load_codes(const uint8_t* codes, Vectors& x) {
    each([&](int k) BRRR_INLINE_BODY {
      const VI code = hn::PromoteTo(DI(), hn::LoadU(D8(), codes + k * kLanes));
      x[k] = hn::ConvertTo(DF(), code);
    });
  }

  VF one_;
  Table scale_;
};

/// The moments of a block between their update and their codes, which need the largest of them.
struct Moments {
  alignas(64) float m[kBlock], v[kBlock];
};

/// The step on one vector after the other.
class Update {
 public:
  explicit Update(const AdamwStep& s)
      : rest1_(splat(s.one_minus_beta1)),
        rest2_(splat(s.one_minus_beta2)),
        scale_(splat(s.scale)),
        keep_(splat(s.keep)),
        step_size_(splat(s.step_size)),
        correction_(splat(s.correction)),
        eps_(splat(s.eps)) {}

  /// Of kAtOnce elements from `i` on; moments go to place `at`.
  HWY_INLINE void operator()(const CodeBlocks& b, int64_t i, const Decoder& old_m,
                             const Decoder& old_v, int64_t at, Moments& out) {
    constexpr int64_t kAhead = 512;
    Vectors m, v, g;
    each([&](int k) BRRR_INLINE_BODY {
      __builtin_prefetch(b.param + i + k * kLanes + kAhead, 1, 3);
      __builtin_prefetch(b.grad + i + k * kLanes + kAhead, 0, 3);
      g[k] = hn::Mul(scale_, load(b.grad + i + k * kLanes));
    });
    old_v.of_unsigned(b.v + i, v);
    each([&](int k) BRRR_INLINE_BODY { v[k] = hn::MulAdd(hn::Mul(rest2_, g[k]), g[k], v[k]); });
    Vectors below;
    each([&](int k) BRRR_INLINE_BODY {
      store(v[k], out.v + at + k * kLanes);
      v_most_ = larger(v_most_, v[k]);
      below[k] = hn::Sqrt(v[k]);
    });
    old_m.of_signed(b.m + i, m);
    each([&](int k) BRRR_INLINE_BODY { m[k] = hn::MulAdd(rest1_, g[k], m[k]); });
    each([&](int k) BRRR_INLINE_BODY { below[k] = hn::MulAdd(below[k], correction_, eps_); });
    each([&](int k) BRRR_INLINE_BODY {
      store(m[k], out.m + at + k * kLanes);
      m_most_ = larger(m_most_, hn::Abs(m[k]));
      below[k] = hn::Div(hn::Mul(step_size_, m[k]), below[k]);
    });
    each([&](int k) BRRR_INLINE_BODY {
      const VF param = load(b.param + i + k * kLanes);
      store(hn::MulSub(param, keep_, below[k]), b.new_param + i + k * kLanes);
    });
  }
  /// The largest magnitudes since the last call.
  HWY_INLINE void take_scales(float& m, float& v) {
    m = max_lanes(m_most_);
    v = max_lanes(v_most_);
    m_most_ = v_most_ = hn::Zero(DF());
  }

 private:
  VF rest1_, rest2_, scale_, keep_, step_size_, correction_, eps_;
  VF m_most_ = hn::Zero(DF()), v_most_ = hn::Zero(DF());
};

/// A block gets its codes when the next one is updated: nothing waits for its scale then, which
/// stands at the end of a long chain of maxima and a division.
void adamw(const AdamwStep& s, const CodeBlocks& b) {
  const CodeCurve &m_curve = code_curve(true), &v_curve = code_curve(false);
  const Encoder new_m(m_curve), new_v(v_curve);
  Update update(s);
  Moments buffers[2];
  VF m_over = hn::Zero(DF()), v_over = hn::Zero(DF());
  const auto encode_block = [&](int64_t block, const Moments& from) BRRR_INLINE_BODY {
    for (int64_t i = 0; i < kBlock; i += kAtOnce) {
      new_m.put_signed(from.m + i, m_over, b.new_m + block * kBlock + i);
      new_v.put_unsigned(from.v + i, v_over, b.new_v + block * kBlock + i);
    }
  };
  for (int64_t block = 0; block < b.count; ++block) {
    Moments &now = buffers[block % 2], &before = buffers[1 - block % 2];
    const Decoder old_m(m_curve, s.beta1 * b.m_scale[block]);
    const Decoder old_v(v_curve, s.beta2 * b.v_scale[block]);
    for (int64_t i = 0; i < kBlock; i += kAtOnce)
      update(b, block * kBlock + i, old_m, old_v, i, now);
    if (block > 0) encode_block(block - 1, before);
    float m_most = 0, v_most = 0;
    update.take_scales(m_most, v_most);
    b.new_m_scale[block] = m_most;
    b.new_v_scale[block] = v_most;
    m_over = splat(1.0f / std::max(m_most, ops::kLeastScale));
    v_over = splat(1.0f / std::max(v_most, ops::kLeastScale));
  }
  if (b.count > 0) encode_block(b.count - 1, buffers[(b.count - 1) % 2]);
}

void encode(const float* x, bool is_signed, uint8_t* codes, int64_t n) {
  const Encoder encoder(code_curve(is_signed));
  for (int64_t i = 0; i < n; i += kAtOnce) {
    float in[kAtOnce] = {};
    uint8_t out[kAtOnce];
    const int64_t count = std::min(kAtOnce, n - i);
    std::copy_n(x + i, count, in);
    if (is_signed)
      encoder.put_signed(in, splat(1.0f), out);
    else
      encoder.put_unsigned(in, splat(1.0f), out);
    std::copy_n(out, count, codes + i);
  }
}

void decode(const uint8_t* codes, bool is_signed, float* x, int64_t n) {
  const Decoder decoder(code_curve(is_signed), 1);
  for (int64_t i = 0; i < n; i += kAtOnce) {
    uint8_t in[kAtOnce] = {};
    float out[kAtOnce];
    const int64_t count = std::min(kAtOnce, n - i);
    std::copy_n(codes + i, count, in);
    Vectors numbers;
    if (is_signed)
      decoder.of_signed(in, numbers);
    else
      decoder.of_unsigned(in, numbers);
    each([&](int k) BRRR_INLINE_BODY { store(numbers[k], out + k * kLanes); });
    std::copy_n(out, count, x + i);
  }
}

constexpr Optimizer8bitRows kTable = {&adamw, &encode, &decode};

}  // namespace

const Optimizer8bitRows& optimizer_8bit_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(optimizer_8bit_table);
const Optimizer8bitRows& optimizer_8bit_rows() {
  return HWY_DYNAMIC_DISPATCH(optimizer_8bit_table)();
}
}  // namespace brrr::cpu
#endif
