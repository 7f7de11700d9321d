#include "backend/cpu/optimizer_8bit_rows.h"

#include <algorithm>

#include "backend/cpu/code_curve.h"
#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer_8bit_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

using VI = hn::Vec<DI>;
constexpr int64_t kBlock = ops::kCodeBlock;
static_assert(kBlock % kLanes == 0);

HWY_INLINE VI integers(int32_t x) { return hn::Set(DI(), x); }

/// table[index & 7]; the table stands in memory twice, one after the other.
HWY_INLINE VF pick(const float (&table)[16], VI index) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DF(), table[hn::GetLane(index) & 7]);
#else
  const DF d;
#if HWY_IS_DEBUG_BUILD  // where Highway insists on it
  index = hn::And(index, integers(7));
#endif
  if constexpr (kLanes >= 8)
    return hn::TableLookupLanes(hn::Load(d, table), hn::IndicesFromVec(d, index));
  const auto lanes = hn::IndicesFromVec(d, hn::And(index, integers(3)));
  const VF low = hn::TableLookupLanes(hn::Load(d, table), lanes);
  const VF high = hn::TableLookupLanes(hn::Load(d, table + 4), lanes);
  const auto is_low = hn::Eq(hn::And(index, integers(4)), hn::Zero(DI()));
  return hn::IfThenElse(hn::RebindMask(d, is_low), low, high);
#endif
}

/// How many codes the numbers x in [0, 1] are above zero; to be rounded.
HWY_INLINE VF code_of(VF x, const CodeCurve& c) {
  // The bits of a float are a straight line through its logarithm, by at most 0.026 too low in
  // units of a decade, and decades begin up to 0.279 above their powers of ten: so the line gives
  // the decade, or the one above it. 2^23 more, and its last bits are the whole number.
  constexpr float kWhole = 8388608, kDecades = 0.30103f / kWhole;
  constexpr float kBias = 8 - 0.28f - 0.5f - 127 * 0.30103f;
  const VF bits = hn::ConvertTo(DF(), hn::BitCast(DI(), x));
  const VF line = hn::MulAdd(bits, splat(kDecades), splat(kBias));
  const VI guess = hn::BitCast(DI(), hn::Add(line, splat(kWhole)));
  const auto below = hn::RebindMask(DI(), hn::Le(x, pick(c.above, guess)));
  const VI decade = hn::Add(guess, hn::VecFromMask(DI(), below));
  const VF cells = hn::BitCast(DF(), hn::Add(hn::ShiftLeft<23>(decade), integers(c.one_cell)));
  const VF offset = hn::MulAdd(cells, splat(8.0f / 9), splat(c.offset));
  const VF last = hn::MulAdd(cells, splat(2.0f), splat(c.last));
  const VF code = hn::Min(hn::MulAdd(x, pick(c.slope, decade), offset), last);
  return hn::IfThenElseZero(hn::Gt(x, splat(c.least)), code);
}

/// Codes in [0, 256) as numbers to their bytes, rounded: the last bits of what is 2^23 more.
HWY_INLINE void store_codes(VF codes, float zero, uint8_t* to) {
  const VF whole = hn::Add(codes, splat(8388608 + zero));
  hn::StoreU(hn::TruncateTo(D8(), hn::BitCast(DU(), whole)), D8(), to);
}
HWY_INLINE void encode_signed(VF x, const CodeCurve& c, uint8_t* to) {
  const VF sign = hn::And(x, splat(-0.0f));
  const VF away = hn::Xor(code_of(hn::Abs(x), c), sign);
  store_codes(hn::Max(away, splat(-127.0f)), 127, to);
}
HWY_INLINE void encode_unsigned(VF x, const CodeCurve& c, uint8_t* to) {
  store_codes(code_of(x, c), 0, to);
}

/// The number of twice a code and one more (signed: from zero), or of twice a code and three more:
/// an odd number, whose mantissa is the middle of a cell.
HWY_INLINE VF number(VF odd, const CodeCurve& c) {
  const VI bits = hn::BitCast(DI(), hn::Min(odd, splat(c.one)));
  const VI mantissa = hn::Or(hn::And(bits, integers(0x7fffff)), integers(0x3f800000));
  const VF at = hn::Sub(hn::BitCast(DF(), mantissa), splat(8.0f / 9));
  return hn::Mul(at, pick(c.scale, hn::ShiftRight<23>(bits)));
}
HWY_INLINE VF load_codes(const uint8_t* codes) {
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(D8(), codes)));
}
HWY_INLINE VF decode_signed(const uint8_t* codes, const CodeCurve& c) {
  const VF twice = hn::MulAdd(load_codes(codes), splat(2.0f), splat(-254.0f));
  const VF sign = hn::And(twice, splat(-0.0f));
  return hn::Or(number(hn::Add(hn::Abs(twice), splat(1.0f)), c), sign);
}
HWY_INLINE VF decode_unsigned(const uint8_t* codes, const CodeCurve& c) {
  return number(hn::MulAdd(load_codes(codes), splat(2.0f), splat(3.0f)), c);
}

void adamw(const AdamwStep& s, CodeBlock& b) {
  const CodeCurve &m_curve = code_curve(true), &v_curve = code_curve(false);
  alignas(64) float ms[kBlock], vs[kBlock];
  const float *param = b.param, *grad = b.grad;
  const uint8_t *m_codes = b.m, *v_codes = b.v;
  float* new_param = b.new_param;
  const VF beta1 = splat(s.beta1), rest1 = splat(s.one_minus_beta1), beta2 = splat(s.beta2);
  const VF rest2 = splat(s.one_minus_beta2), scale = splat(s.scale), keep = splat(s.keep);
  const VF step_size = splat(s.step_size), correction = splat(s.correction), eps = splat(s.eps);
  const VF m_scale = hn::Mul(beta1, splat(b.m_scale)), v_scale = hn::Mul(beta2, splat(b.v_scale));
  VF m_most = hn::Zero(DF()), v_most = hn::Zero(DF());
  constexpr int64_t kAhead = 512;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    __builtin_prefetch(param + i + kAhead, 1, 3);
    __builtin_prefetch(grad + i + kAhead, 0, 3);
    const VF g = hn::Mul(scale, load(grad + i));
    const VF m = hn::MulAdd(m_scale, decode_signed(m_codes + i, m_curve), hn::Mul(rest1, g));
    const VF v =
        hn::MulAdd(v_scale, decode_unsigned(v_codes + i, v_curve), hn::Mul(hn::Mul(rest2, g), g));
    const VF below = hn::MulAdd(hn::Sqrt(v), correction, eps);
    const VF step = hn::Div(hn::Mul(step_size, m), below);
    store(hn::MulSub(load(param + i), keep, step), new_param + i);
    m_most = hn::Max(m_most, hn::Abs(m));
    v_most = hn::Max(v_most, v);
    store(m, ms + i);
    store(v, vs + i);
  }
  b.new_m_scale = max_lanes(m_most);
  b.new_v_scale = max_lanes(v_most);
  const VF m_over = splat(1.0f / std::max(b.new_m_scale, ops::kLeastScale));
  const VF v_over = splat(1.0f / std::max(b.new_v_scale, ops::kLeastScale));
  uint8_t *new_m = b.new_m, *new_v = b.new_v;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    encode_signed(hn::Mul(load(ms + i), m_over), m_curve, new_m + i);
    encode_unsigned(hn::Mul(load(vs + i), v_over), v_curve, new_v + i);
  }
}

void encode(const float* x, bool is_signed, uint8_t* codes, int64_t n) {
  const CodeCurve& curve = code_curve(is_signed);
  for (int64_t i = 0; i < n; i += kLanes) {
    float in[kLanes] = {};
    uint8_t out[kLanes];
    const int64_t count = std::min(kLanes, n - i);
    std::copy_n(x + i, count, in);
    if (is_signed)
      encode_signed(load(in), curve, out);
    else
      encode_unsigned(load(in), curve, out);
    std::copy_n(out, count, codes + i);
  }
}

void decode(const uint8_t* codes, bool is_signed, float* x, int64_t n) {
  const CodeCurve& curve = code_curve(is_signed);
  for (int64_t i = 0; i < n; i += kLanes) {
    uint8_t in[kLanes] = {};
    float out[kLanes];
    const int64_t count = std::min(kLanes, n - i);
    std::copy_n(codes + i, count, in);
    store(is_signed ? decode_signed(in, curve) : decode_unsigned(in, curve), out);
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
