#pragma once
// Convolutions, pools and their derivatives as passes over pictures, in each of which neighbouring
// windows lie a constant distance apart.

#include <cstdint>
#include <string>
#include <vector>

#include "ops/spatial/windows.h"

namespace brrr::cpu {

/// One of the last two axes of a grid; a grid of one axis has one row.
struct GridAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, before = 0;
};
/// `wide`: the last axis; else the one before it.
GridAxis grid_axis(const ops::WindowGrid& grid, bool wide);

/// The windows of one pass along an axis: window i < out reads element origin + i step + t dilation
/// of the source for tap t; what lies outside is zero.
struct PassAxis {
  int64_t in = 1, out = 1, origin = 0, step = 1, dilation = 1;
  std::vector<int64_t> taps = {0};            // the kernel's index of each tap
  int64_t first_result = 0, result_step = 1;  // window i gives element first + i step

  int64_t tap_count() const { return static_cast<int64_t>(taps.size()); }
  /// Elements from the first one that windows [0, count) read to the last.
  int64_t span(int64_t count) const {
    return (count - 1) * step + (tap_count() - 1) * dilation + 1;
  }
  bool reads_padding() const { return origin < 0 || origin + span(out) > in; }
};

/// A pass over pictures, of which windows read `channels`, in each group.
struct WindowPass {
  PassAxis high, wide;
  int64_t channels = 0;  // of the source, in a group
  int64_t columns = 0;   // of the result, in a group

  int64_t terms() const { return high.tap_count() * wide.tap_count() * channels; }
};

/// The one pass of a convolution or pool along an axis.
PassAxis forward_axis(const GridAxis& axis);
/// The passes of its derivative in x: one for each remainder of a position modulo the stride that
/// some tap reads. With a stride, the dilation must be 1.
std::vector<PassAxis> backward_axes(const GridAxis& axis);

/// Why the node's windows are not made of such passes; empty: they are.
std::string grid_refusal(const ops::WindowGrid& grid, const Node& node);

}  // namespace brrr::cpu
