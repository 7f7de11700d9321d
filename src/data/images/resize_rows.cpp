#include "data/images/resize_rows.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/images/resize_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace brrr::io::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int32_t kHalf = 1 << (kResizeBits - 1);

/// Four lanes are the three channels of a pixel and one of the next, which is overwritten by it.
void resize_columns(const uint8_t* in, const ResizeTaps& taps, int64_t results, uint8_t* out) {
  const hn::CappedTag<int32_t, 4> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  for (int64_t i = 0; i < results; ++i) {
    const uint8_t* from = in + 3 * static_cast<int64_t>(taps.first[i]);
    const int32_t* weights = taps.weights + i * taps.taps;
    auto sum = hn::Set(d, kHalf);
    for (int64_t k = 0, count = taps.counts[i]; k < count; ++k) {
      const auto pixel = hn::PromoteTo(d, hn::LoadU(d8, from + 3 * k));
      sum = hn::Add(sum, hn::Mul(pixel, hn::Set(d, weights[k])));
    }
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kResizeBits>(sum)), d8, out + 3 * i);
  }
}

void resize_rows_of(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t count,
                    int64_t bytes, uint8_t* out) {
  const hn::ScalableTag<int32_t> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto half = hn::Set(d, kHalf);
  int64_t i = 0;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    auto a = half, b = half, c = half, e = half;
    for (int64_t k = 0; k < count; ++k) {
      const uint8_t* from = in + k * stride + i;
      const auto weight = hn::Set(d, weights[k]);
      a = hn::Add(a, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, from)), weight));
      b = hn::Add(b, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, from + lanes)), weight));
      c = hn::Add(c, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, from + 2 * lanes)), weight));
      e = hn::Add(e, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, from + 3 * lanes)), weight));
    }
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kResizeBits>(a)), d8, out + i);
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kResizeBits>(b)), d8, out + i + lanes);
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kResizeBits>(c)), d8, out + i + 2 * lanes);
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kResizeBits>(e)), d8, out + i + 3 * lanes);
  }
  for (; i < bytes; ++i) {
    int32_t sum = kHalf;
    for (int64_t k = 0; k < count; ++k) sum += in[k * stride + i] * weights[k];
    out[i] = static_cast<uint8_t>(std::clamp(sum >> kResizeBits, 0, 255));
  }
}

constexpr ResizeRows kResizeRows = {&resize_columns, &resize_rows_of};

}  // namespace

const ResizeRows& resize_table() { return kResizeRows; }

}  // namespace brrr::io::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::io {
HWY_EXPORT(resize_table);
const ResizeRows& resize_rows() { return HWY_DYNAMIC_DISPATCH(resize_table)(); }
}  // namespace brrr::io
#endif
