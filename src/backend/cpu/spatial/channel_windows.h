#pragma once
// Windows of pictures with channels last, each channel for itself, on one thread: depthwise
// convolutions, pools and the derivative of max_pool. Vectors run along the channels.

#include <cstdint>

namespace brrr::cpu {

/// Neighbouring windows that read the same taps: tap t of window p reads x[offsets[t] + p x_pixel],
/// of `channels` neighbouring channels.
struct ChannelRun {
  const float* x = nullptr;
  int64_t x_pixel = 0;
  const int64_t* offsets = nullptr;
  int64_t taps = 0, windows = 0, channels = 0;
  float* y = nullptr;
  int64_t y_pixel = 0;
};

struct ChannelWindows {
  /// y[p, c] = bias[c] + the sum over taps, in their order, of x times
  /// weights[indices[t] * weight_tap + c]. Without weights: the sum of x. `bias` may be null.
  void (*sum)(const ChannelRun& run, const float* weights, int64_t weight_tap,
              const int64_t* indices, const float* bias);
  /// y[p, c] = the largest x, of equal ones the first; NaN counts as the largest.
  void (*largest)(const ChannelRun& run);
  /// dx[place, c] += dy[p, c] for the place of the largest x of each window; run.y is dy. dx lies
  /// like x.
  void (*add_to_largest)(const ChannelRun& run, float* dx);
};
/// The functions compiled for the instruction set in use.
const ChannelWindows& channel_windows();

}  // namespace brrr::cpu
