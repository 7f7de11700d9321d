#include "backend/cpu/spatial/window_pass.h"

#include <algorithm>

#include "base/integers.h"
#include "ops/op.h"

namespace brrr::cpu {

GridAxis grid_axis(const ops::WindowGrid& grid, bool wide) {
  if (grid.axes() == 1 && !wide) return {};
  const size_t a = wide ? grid.axes() - 1 : grid.axes() - 2;
  return {grid.in[a],
          grid.out[a],
          grid.kernel[a],
          grid.windows.strides[a],
          grid.windows.dilations[a],
          grid.before(a)};
}

PassAxis forward_axis(const GridAxis& g) {
  PassAxis axis{g.in, g.out, -g.before, g.stride, g.dilation};
  axis.taps.resize(static_cast<size_t>(g.kernel));
  for (int64_t k = 0; k < g.kernel; ++k) axis.taps[static_cast<size_t>(k)] = k;
  return axis;
}

std::vector<PassAxis> backward_axes(const GridAxis& g) {
  std::vector<PassAxis> axes;
  // Tap k of window o reads element h = o stride - before + k dilation of x.
  if (g.stride == 1) {
    PassAxis axis{g.out, g.in, g.before - (g.kernel - 1) * g.dilation, 1, g.dilation};
    axis.taps.resize(static_cast<size_t>(g.kernel));
    for (int64_t k = 0; k < g.kernel; ++k) axis.taps[static_cast<size_t>(k)] = g.kernel - 1 - k;
    return {axis};
  }
  for (int64_t r = 0; r < std::min(g.stride, g.kernel); ++r) {
    // Elements h = i stride + r - before, which taps r, r + stride, ... of windows i, i - 1, ...
    // read.
    const int64_t taps = ceil_div(g.kernel - r, g.stride);
    const int64_t first = std::max<int64_t>(0, ceil_div(g.before - r, g.stride));
    const int64_t begin = first * g.stride + r - g.before;
    if (begin >= g.in) continue;
    PassAxis axis{g.out, ceil_div(g.in - begin, g.stride), first - (taps - 1), 1, 1};
    axis.taps.clear();
    for (int64_t t = 0; t < taps; ++t) axis.taps.push_back(r + g.stride * (taps - 1 - t));
    axis.first_result = begin;
    axis.result_step = g.stride;
    axes.push_back(axis);
  }
  return axes;
}

std::string grid_refusal(const ops::WindowGrid& grid, const Node& node) {
  if (grid.axes() > 2) return "more than two axes";
  if (!is(node, Op::conv_transpose)) return "";
  for (size_t a = 0; a < grid.axes(); ++a)
    if (grid.windows.strides[a] > 1 && grid.windows.dilations[a] > 1)
      return "strides and dilations";
  return "";
}

}  // namespace brrr::cpu
