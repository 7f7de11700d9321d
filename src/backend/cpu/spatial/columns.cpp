#include "backend/cpu/spatial/columns.h"

#include <algorithm>
#include <cstring>

namespace brrr::cpu {
namespace {

/// The windows of a row whose tap reads an element, and which.
struct ColumnSpan {
  int64_t low = 0, high = 0, first = 0, stride = 1;
  ColumnSpan(const ops::WindowGrid& grid, int64_t tap) {
    const size_t last = grid.axes() - 1;
    first = grid.at(last, 0, tap);
    stride = grid.windows.strides[last];
    const int64_t size = grid.in[last], windows = grid.out[last];
    low = std::min(windows, first >= 0 ? 0 : (-first + stride - 1) / stride);
    high = size <= first ? 0 : std::min(windows, (size - first - 1) / stride + 1);
    high = std::max(high, low);
  }
};

/// f(row of windows, row of elements or -1) for rows [first, last), for one tap.
template <typename F>
void each_row_of_tap(const ops::WindowGrid& grid, int64_t tap, int64_t first, int64_t last, F f) {
  const size_t outer = grid.axes() - 1;
  std::vector<int64_t> at(outer), taps(outer);
  tap /= grid.kernel[outer];
  int64_t rest = first;
  for (size_t a = outer; a-- > 0;) {
    taps[a] = tap % grid.kernel[a];
    tap /= grid.kernel[a];
    at[a] = rest % grid.out[a];
    rest /= grid.out[a];
  }
  for (int64_t r = first; r < last; ++r) {
    int64_t row = 0;
    for (size_t a = 0; a < outer && row >= 0; ++a) {
      const int64_t element = grid.at(a, at[a], taps[a]);
      row = element < 0 || element >= grid.in[a] ? -1 : row * grid.in[a] + element;
    }
    f(r, row);
    for (size_t a = outer; a-- > 0;) {
      if (++at[a] < grid.out[a]) break;
      at[a] = 0;
    }
  }
}

template <typename T>
void gather_as(const ops::WindowGrid& grid, const T* x, int64_t k_begin, int64_t k_end,
               int64_t first, int64_t last, T* columns) {
  const int64_t taps = grid.kernel_elements(), plane = grid.in_elements(), size = grid.in.back(),
                width = grid.out.back();
  for (int64_t k = k_begin; k < k_end; ++k) {
    const int64_t tap = k % taps;
    const ColumnSpan span(grid, tap % grid.kernel.back());
    const T* const channel = x + k / taps * plane;
    T* to = columns + k * (last - first) * width;
    each_row_of_tap(grid, tap, first, last, [&](int64_t, int64_t row) {
      T* const y = to;
      to += width;
      if (row < 0) return void(std::fill(y, y + width, T{}));
      std::fill(y, y + span.low, T{});
      const T* const from = channel + row * size + span.first;
      if (span.stride == 1)
        std::copy(from + span.low, from + span.high, y + span.low);
      else
        for (int64_t o = span.low; o < span.high; ++o) y[o] = from[o * span.stride];
      std::fill(y + span.high, y + width, T{});
    });
  }
}

template <typename T>
void gather_windows_as(const ops::WindowGrid& grid, const T* x, int64_t channels, T* rows) {
  const size_t last = grid.axes() - 1;
  const int64_t taps = grid.kernel_elements(), plane = grid.in_elements(), run = grid.kernel[last],
                size = grid.in[last], width = grid.out[last], windows = grid.out_elements(),
                step = grid.windows.dilations[last];
  for (int64_t tap = 0; tap < taps; tap += run)
    each_row_of_tap(grid, tap, 0, windows / width, [&](int64_t r, int64_t row) {
      for (int64_t o = 0; o < width; ++o) {
        const int64_t first = grid.at(last, o, 0);
        int64_t low = first >= 0 ? 0 : std::min(run, (-first + step - 1) / step);
        int64_t high = size <= first ? 0 : std::min(run, (size - first - 1) / step + 1);
        if (row < 0 || high < low) low = high = run;
        T* to = rows + (r * width + o) * channels * taps + tap;
        const T* from = x + std::max<int64_t>(row, 0) * size + first;
        for (int64_t c = 0; c < channels; ++c, to += taps, from += plane) {
          for (int64_t t = 0; t < low; ++t) to[t] = T{};
          for (int64_t t = low; t < high; ++t) to[t] = from[t * step];
          for (int64_t t = high; t < run; ++t) to[t] = T{};
        }
      }
    });
}

}  // namespace

int64_t window_row_count(const ops::WindowGrid& grid) {
  return grid.out_elements() / std::max<int64_t>(1, grid.out.back());
}

bool is_pointwise(const ops::WindowGrid& grid) {
  for (size_t a = 0; a < grid.axes(); ++a)
    if (grid.kernel[a] != 1 || grid.windows.strides[a] != 1 || grid.before(a) != 0 ||
        grid.in[a] != grid.out[a])
      return false;
  return true;
}

void gather_columns(const ops::WindowGrid& grid, size_t element_bytes, const void* x,
                    int64_t k_begin, int64_t k_end, int64_t first, int64_t last, void* columns) {
  if (element_bytes == 2)
    gather_as(grid, static_cast<const uint16_t*>(x), k_begin, k_end, first, last,
              static_cast<uint16_t*>(columns));
  else
    gather_as(grid, static_cast<const uint32_t*>(x), k_begin, k_end, first, last,
              static_cast<uint32_t*>(columns));
}

void gather_windows(const ops::WindowGrid& grid, size_t element_bytes, const void* x,
                    int64_t channels, void* rows) {
  if (element_bytes == 2)
    gather_windows_as(grid, static_cast<const uint16_t*>(x), channels,
                      static_cast<uint16_t*>(rows));
  else
    gather_windows_as(grid, static_cast<const uint32_t*>(x), channels,
                      static_cast<uint32_t*>(rows));
}

void add_columns(const ops::WindowGrid& grid, const float* columns, float* x) {
  const int64_t size = grid.in.back(), width = grid.out.back(), rows = window_row_count(grid);
  for (int64_t tap = 0; tap < grid.kernel_elements(); ++tap) {
    const ColumnSpan span(grid, tap % grid.kernel.back());
    const float* const column = columns + tap * rows * width;
    each_row_of_tap(grid, tap, 0, rows, [&](int64_t r, int64_t row) {
      if (row < 0) return;
      const float* const from = column + r * width;
      float* const to = x + row * size + span.first;
      if (span.stride == 1)
        for (int64_t o = span.low; o < span.high; ++o) to[o] += from[o];
      else
        for (int64_t o = span.low; o < span.high; ++o) to[o * span.stride] += from[o];
    });
  }
}

}  // namespace brrr::cpu
