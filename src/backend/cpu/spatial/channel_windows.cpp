#include "backend/cpu/spatial/channel_windows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/channel_windows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// Windows whose sums are kept in registers while the taps are read.
constexpr int kWindows = 8;

/// Arithmetic on the channels of a vector.
template <class D>
struct Channels {
  using V = hn::Vec<D>;
  static constexpr int64_t kCount = static_cast<int64_t>(hn::MaxLanes(D()));
  static HWY_INLINE V zero() { return hn::Zero(D()); }
  static HWY_INLINE V get(const float* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE void put(V v, float* p) { hn::StoreU(v, D(), p); }
  static HWY_INLINE V number(int64_t n) { return hn::Set(D(), static_cast<float>(n)); }
  /// Whether b is larger than a, or NaN where a is not.
  static HWY_INLINE auto beats(V b, V a) {
    return hn::Or(hn::Gt(b, a), hn::And(hn::Ne(b, b), hn::Eq(a, a)));
  }
};

/// f(Channels<D>{}, channel) for all channels, with vectors that become shorter at the end. The
/// arithmetic of a channel does not depend on the vector that it is in.
template <typename F>
HWY_INLINE void each_channel(int64_t channels, F f) {
  int64_t c = 0;
  const auto while_fits = [&]<class D>(D) HWY_ATTR {
    using S = Channels<D>;
    for (; c + S::kCount <= channels; c += S::kCount) f(S{}, c);
  };
  while_fits(DF());
  if constexpr (kLanes > 8) while_fits(hn::CappedTag<float, 8>());
  if constexpr (kLanes > 4) while_fits(hn::CappedTag<float, 4>());
  if constexpr (kLanes > 1) while_fits(hn::CappedTag<float, 1>());
}

template <typename S, int kCount, bool kWeighted>
HWY_INLINE void sum_windows(const ChannelRun& r, int64_t p, int64_t c, const float* weights,
                            int64_t weight_tap, const int64_t* indices, const float* bias) {
  typename S::V sums[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) sums[i] = S::zero();
  for (int64_t t = 0; t < r.taps; ++t) {
    const float* x = r.x + r.offsets[t] + p * r.x_pixel + c;
    if constexpr (kWeighted) {
      const auto w = S::get(weights + indices[t] * weight_tap + c);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sums[i] = hn::MulAdd(S::get(x + i * r.x_pixel), w, sums[i]);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sums[i] = hn::Add(sums[i], S::get(x + i * r.x_pixel));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i)
    S::put(bias != nullptr ? hn::Add(sums[i], S::get(bias + c)) : sums[i],
           r.y + (p + i) * r.y_pixel + c);
}

template <bool kWeighted>
void sum_run(const ChannelRun& r, const float* weights, int64_t weight_tap, const int64_t* indices,
             const float* bias) {
  each_channel(r.channels, [&]<typename S>(S, int64_t c) HWY_ATTR {
    int64_t p = 0;
    for (; p + kWindows <= r.windows; p += kWindows)
      sum_windows<S, kWindows, kWeighted>(r, p, c, weights, weight_tap, indices, bias);
    for (; p + 4 <= r.windows; p += 4)
      sum_windows<S, 4, kWeighted>(r, p, c, weights, weight_tap, indices, bias);
    for (; p < r.windows; ++p)
      sum_windows<S, 1, kWeighted>(r, p, c, weights, weight_tap, indices, bias);
  });
}

void sum_channels(const ChannelRun& r, const float* weights, int64_t weight_tap,
                  const int64_t* indices, const float* bias) {
  if (weights != nullptr)
    sum_run<true>(r, weights, weight_tap, indices, bias);
  else
    sum_run<false>(r, weights, weight_tap, indices, bias);
}

void largest_channels(const ChannelRun& r) {
  each_channel(r.channels, [&]<typename S>(S, int64_t c) HWY_ATTR {
    for (int64_t p = 0; p < r.windows; ++p) {
      const float* x = r.x + p * r.x_pixel + c;
      auto best = S::get(x + r.offsets[0]);
      for (int64_t t = 1; t < r.taps; ++t) {
        const auto next = S::get(x + r.offsets[t]);
        best = hn::IfThenElse(S::beats(next, best), next, best);
      }
      S::put(best, r.y + p * r.y_pixel + c);
    }
  });
}

void add_to_largest(const ChannelRun& r, float* dx) {
  each_channel(r.channels, [&]<typename S>(S, int64_t c) HWY_ATTR {
    for (int64_t p = 0; p < r.windows; ++p) {
      const float* x = r.x + p * r.x_pixel + c;
      float* const to = dx + p * r.x_pixel + c;
      auto best = S::get(x + r.offsets[0]), tap = S::number(0);
      for (int64_t t = 1; t < r.taps; ++t) {
        const auto next = S::get(x + r.offsets[t]);
        const auto beats = S::beats(next, best);
        best = hn::IfThenElse(beats, next, best);
        tap = hn::IfThenElse(beats, S::number(t), tap);
      }
      const auto dy = S::get(r.y + p * r.y_pixel + c);
      for (int64_t t = 0; t < r.taps; ++t)
        S::put(
            hn::Add(S::get(to + r.offsets[t]), hn::IfThenElseZero(hn::Eq(tap, S::number(t)), dy)),
            to + r.offsets[t]);
    }
  });
}

constexpr ChannelWindows kWindowTable = {&sum_channels, &largest_channels, &add_to_largest};

}  // namespace

const ChannelWindows& channel_windows_table() { return kWindowTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(channel_windows_table);
const ChannelWindows& channel_windows() { return HWY_DYNAMIC_DISPATCH(channel_windows_table)(); }
}  // namespace brrr::cpu
#endif
