#include <algorithm>
#include <cstring>

#include "backend/cpu/spatial/window_rows.h"

namespace brrr::cpu {

WindowPlane::WindowPlane(const ops::WindowGrid& grid) : grid_(grid) {
  const size_t axes = grid.axes();
  for (size_t a = 0; a < axes; ++a) {
    spans_.push_back(grid.at(a, grid.out[a] - 1, grid.kernel[a] - 1) + grid.before(a) + 1);
    if (a + 1 < axes) rows_ *= grid.out[a];
  }
  const int64_t stride = grid.windows.strides[axes - 1];
  phase_ = (spans_.back() + stride - 1) / stride;
  strides_.assign(axes - 1, 0);
  floats_ = phase_ * stride;
  for (size_t a = axes - 1; a-- > 0;) {
    strides_[a] = floats_;
    floats_ *= spans_[a];
  }
  for (int64_t t = 0; t < grid.kernel_elements(); ++t) {
    int64_t rest = t;
    const int64_t last = rest % grid.kernel[axes - 1] * grid.windows.dilations[axes - 1];
    rest /= grid.kernel[axes - 1];
    int64_t offset = last % stride * phase_ + last / stride;
    for (size_t a = axes - 1; a-- > 0; rest /= grid.kernel[a])
      offset += rest % grid.kernel[a] * grid.windows.dilations[a] * strides_[a];
    offsets_.push_back(offset);
    int64_t element = 0, size = 1;
    rest = t;
    for (size_t a = axes; a-- > 0; rest /= grid.kernel[a], size *= grid.in[a])
      element += rest % grid.kernel[a] * grid.windows.dilations[a] * size;
    tap_elements_.push_back(element);
  }
  for (int64_t r = 0; r < rows_; ++r) {
    int64_t start = 0, rest = r;
    for (size_t a = axes - 1; a-- > 0; rest /= grid.out[a])
      start += rest % grid.out[a] * grid.windows.strides[a] * strides_[a];
    row_starts_.push_back(start);
  }
}

int64_t WindowPlane::row_element(int64_t row) const {
  const size_t last = grid_.axes() - 1;
  int64_t element = -grid_.before(last), size = grid_.in[last];
  for (size_t a = last; a-- > 0; row /= grid_.out[a], size *= grid_.in[a])
    element += grid_.at(a, row % grid_.out[a], 0) * size;
  return element;
}

void WindowPlane::fill_row(DType dtype, const void* x, float* to) const {
  const size_t last = grid_.axes() - 1;
  const int64_t stride = grid_.windows.strides[last], before = grid_.before(last),
                size = grid_.in[last], span = spans_[last];
  const int64_t first = std::min(before, span), end = std::min(before + size, span);
  if (stride == 1) {
    window_rows().read(dtype, x, std::max<int64_t>(0, end - first), to + first);
    return;
  }
  if (stride == 2 && dtype == DType::f32) {
    const auto* from = static_cast<const float*>(x);
    int64_t at = first, count = end - first;
    if (at % 2 != 0 && count > 0) {
      to[phase_ + at / 2] = *from++;
      ++at;
      --count;
    }
    if (count <= 0) return;
    window_rows().split_pairs(from, count / 2, to + at / 2, to + phase_ + at / 2);
    if (count % 2 != 0) to[at / 2 + count / 2] = from[count - 1];
    return;
  }
  for (int64_t phase = 0; phase < stride; ++phase) {
    // The first element at or behind the padding with this remainder.
    int64_t at = before - before % stride + phase;
    if (at < before) at += stride;
    float* row = to + phase * phase_ + at / stride;
    if (dtype == DType::f32) {
      const auto* from = static_cast<const float*>(x);
      for (; at < end; at += stride) *row++ = from[at - before];
    } else {
      for (; at < end; at += stride)
        *row++ = static_cast<float>(load_as_double(dtype, x, at - before));
    }
  }
}

void WindowPlane::fill(DType dtype, const void* x, float* plane) const {
  const size_t outer = grid_.axes() - 1;
  const int64_t line = grid_.windows.strides[outer] * phase_, lines = floats_ / line;
  const auto bytes = static_cast<int64_t>(bytes_of(dtype));
  std::vector<int64_t> at(outer, 0);
  for (int64_t r = 0; r < lines; ++r, plane += line) {
    int64_t row = 0;
    bool inside = true;
    for (size_t a = 0; a < outer; ++a) {
      const int64_t element = at[a] - grid_.before(a);
      inside = inside && element >= 0 && element < grid_.in[a];
      row = row * grid_.in[a] + element;
    }
    if (inside)
      fill_row(dtype, static_cast<const std::byte*>(x) + row * grid_.in[outer] * bytes, plane);
    for (size_t a = outer; a-- > 0;) {
      if (++at[a] < spans_[a]) break;
      at[a] = 0;
    }
  }
}

int64_t WindowPlane::element(int64_t row, int64_t window, int64_t tap) const {
  const size_t last = grid_.axes() - 1;
  int64_t flat = grid_.at(last, window, tap % grid_.kernel[last]);
  if (flat < 0 || flat >= grid_.in[last]) return -1;
  tap /= grid_.kernel[last];
  int64_t stride = grid_.in[last];
  for (size_t a = last; a-- > 0;) {
    const int64_t at = grid_.at(a, row % grid_.out[a], tap % grid_.kernel[a]);
    if (at < 0 || at >= grid_.in[a]) return -1;
    flat += at * stride;
    stride *= grid_.in[a];
    row /= grid_.out[a];
    tap /= grid_.kernel[a];
  }
  return flat;
}

std::string window_plane_refusal(const ops::WindowGrid& grid) {
  // Dilated windows can reach far over little data.
  constexpr double kMostTimes = 8, kSmall = 1 << 18, kMostTaps = 1 << 16;
  double padded = 1, plain = 1, taps = 1;
  for (size_t a = 0; a < grid.axes(); ++a) {
    const auto span = grid.at(a, grid.out[a] - 1, grid.kernel[a] - 1) + grid.before(a) + 1 +
                      grid.windows.strides[a];
    padded *= static_cast<double>(span);
    plain *= static_cast<double>(grid.in[a]);
    taps *= static_cast<double>(grid.kernel[a]);
  }
  if (padded > kSmall && padded > kMostTimes * plain) return "padding that is far larger than x";
  return taps > kMostTaps ? "windows of more than 65,536 elements" : "";
}

}  // namespace brrr::cpu
