#include "backend/cpu/quantized/quantize_group.h"

#include <bit>
#include <cstring>
#include <limits>

#include "backend/cpu/isa.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quantized/quantize_group.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

float quantize(const float* x, int64_t count, uint8_t* integers) {
  // Bit patterns of magnitudes are ordered like the magnitudes, with infinity and NaN last.
  constexpr int32_t kInfinite = 0x7f800000;
  auto most = hn::Zero(DI());
  for (int64_t i = 0; i < count; i += kLanes)
    most = hn::Max(most, hn::And(hn::BitCast(DI(), load(x + i)), hn::Set(DI(), 0x7fffffff)));
  const int32_t top = hn::GetLane(hn::MaxOfLanes(DI(), most));
  const float scale = top < kInfinite ? std::bit_cast<float>(top) / 127.0f
                                      : std::numeric_limits<float>::quiet_NaN();
  if (!(scale > 0)) {
    std::memset(integers, 128, static_cast<size_t>(count));
    return scale;
  }
  const VF divisor = splat(scale), limit = splat(127.0f);
  const hn::Rebind<int8_t, DF> d8;
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF quotient = hn::Div(load(x + i), divisor);
    const VF inside = hn::Max(hn::Min(quotient, limit), hn::Neg(limit));
    const auto bytes = hn::DemoteTo(d8, hn::NearestInt(inside));
    const auto shifted = hn::Xor(bytes, hn::Set(d8, -128));
    hn::StoreU(shifted, d8, reinterpret_cast<int8_t*>(integers + i));
  }
  return scale;
}

}  // namespace

QuantizeGroup group_quantizer() { return &quantize; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(group_quantizer);
QuantizeGroup quantize_group() { return HWY_DYNAMIC_DISPATCH(group_quantizer)(); }
}  // namespace brrr::cpu
#endif
