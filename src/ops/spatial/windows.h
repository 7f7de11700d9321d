#pragma once
// Windows over the spatial axes of pictures: what convolutions and pools share. Pictures are
// [N, C, spatial...] or, channels last, [N, spatial..., C]. Along an axis, tap k of window o reads
// element o * stride - before + k * dilation; what lies outside the axis is padding.

#include <cstdint>
#include <span>
#include <vector>

#include "ops/support.h"

namespace brrr::ops {

/// The attributes {strides}, {dilations} and {pads}, which lists what lies before each axis, then
/// what lies behind each, and the sizes that they are applied to.
struct WindowGrid {
  Windows windows;
  std::vector<int64_t> in, kernel, out;  // sizes of the spatial axes

  size_t axes() const { return in.size(); }
  int64_t before(size_t axis) const { return windows.pads[axis]; }
  /// The element that tap k of window o reads along an axis; it may lie outside.
  int64_t at(size_t axis, int64_t o, int64_t k) const {
    return o * windows.strides[axis] - before(axis) + k * windows.dilations[axis];
  }
  /// Pairs of a window and a tap in it that reads an element, over all axes.
  int64_t taps() const;
  /// The same windows over the same memory, without axes on which there is one element and one
  /// window that reads it: the last axis is then the longest run that there is. One axis remains.
  WindowGrid without_single_elements() const;
  int64_t in_elements() const { return product_of(in); }
  int64_t kernel_elements() const { return product_of(kernel); }
  int64_t out_elements() const { return product_of(out); }

 private:
  static int64_t product_of(const std::vector<int64_t>& sizes);
};

/// The spatial sizes of a tensor [N, C, spatial...] or [M, C, kernel...].
std::vector<int64_t> spatial_sizes(const Shape& x);

/// The attribute {channels_last}; nodes without it have channels first.
bool has_channels_last(const Attrs& attrs);
/// The attributes of a node.
Windows windows_of(const Attrs& attrs);

/// The sizes of pictures, and where their elements lie in row-major memory.
struct Pictures {
  Dim batch;
  int64_t channels = 0;
  std::vector<int64_t> spatial;
  bool channels_last = false;

  int64_t elements() const { return elements_; }  // of a channel
  /// Row-major index of an element of a channel of picture n.
  int64_t at(int64_t n, int64_t channel, int64_t element) const {
    return channels_last ? (n * elements_ + element) * channels + channel
                         : (n * channels + channel) * elements_ + element;
  }
  Shape shape() const;
  /// Axis of the channels in shape().
  int channel_axis() const { return channels_last ? static_cast<int>(spatial.size()) + 1 : 1; }
  std::vector<int64_t> spatial_axes() const;

  Pictures(const Shape& shape, bool last);
  Pictures(Dim count, int64_t planes, std::vector<int64_t> sizes, bool last);

 private:
  int64_t elements_ = 1;
};
/// The windows that a node's attributes describe, over axes of size `in`.
WindowGrid window_grid(const Attrs& attrs, std::vector<int64_t> in, std::vector<int64_t> kernel);
/// The same while a node is checked: UserError for attributes that do not fit so many axes or
/// numbers beyond 31 bits, and where no window fits.
WindowGrid checked_grid(const InferContext& c, std::vector<int64_t> in,
                        std::vector<int64_t> kernel);
/// The attributes of a node.
Attrs window_attrs(const Windows& windows, Attrs more);

/// f(element, tap, window) for every pair of a window and a tap in it that reads an element, as
/// flat indices of the spatial axes. The taps of a window come in row-major order.
template <typename F>
void for_each_tap(const WindowGrid& grid, F&& f) {
  const auto walk = [&](const auto& self, size_t axis, int64_t i, int64_t k, int64_t o) -> void {
    if (axis == grid.axes()) return f(i, k, o);
    for (int64_t window = 0; window < grid.out[axis]; ++window)
      for (int64_t tap = 0; tap < grid.kernel[axis]; ++tap) {
        const int64_t at = grid.at(axis, window, tap);
        if (at < 0 || at >= grid.in[axis]) continue;
        self(self, axis + 1, i * grid.in[axis] + at, k * grid.kernel[axis] + tap,
             o * grid.out[axis] + window);
      }
  };
  walk(walk, 0, 0, 0, 0);
}

}  // namespace brrr::ops
