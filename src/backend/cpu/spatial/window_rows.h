#pragma once
// Windows of one plane on one thread. The plane is laid out anew with its padding, so that no tap
// looks outside, and with the elements of its last axis apart by their remainder modulo the stride,
// so that neighbouring windows read neighbouring elements.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/threads/parallel.h"
#include "ops/spatial/windows.h"

namespace brrr::cpu {

/// Functions that are compiled for every instruction set.
struct WindowRows {
  /// y[o] = start + the sum over t, in their order, of weights[t] * plane[offsets[t] + o], o in
  /// [0, n).
  void (*add)(const float* plane, const int64_t* offsets, const float* weights, int64_t taps,
              float start, int64_t n, float* y);
  /// y[o] = the largest plane[offsets[t] + o], of equal ones the first, and which tap it is; NaN is
  /// the largest.
  void (*largest)(const float* plane, const int64_t* offsets, int64_t taps, int64_t n, float* y,
                  float* tap);
  /// Maxima over several operands for i in [0, n): y[i] = max over r of rows[r][i], and y[i] = max
  /// over t of plane[offsets[t] + i]. The first of equal elements wins, and NaN over numbers.
  void (*largest_of_rows)(const float* const* rows, int64_t count, int64_t n, float* y);
  void (*largest_of_pairs)(const float* const* rows, int64_t count, int64_t n, float* y);
  void (*largest_of_taps)(const float* plane, const int64_t* offsets, int64_t taps, int64_t n,
                          float* y);
  /// x[i] += number, i in [0, n).
  void (*add_number)(float number, int64_t n, float* x);
  /// y[i] += factor * x[i], modulo 2^32.
  void (*add_multiple)(int32_t factor, const int32_t* x, int64_t n, int32_t* y);
  /// even[i] = x[2 i] and odd[i] = x[2 i + 1], i in [0, n).
  void (*split_pairs)(const float* x, int64_t n, float* even, float* odd);
  /// n elements of f32, bf16 or f16 as f32, and back.
  void (*read)(DType from, const void* x, int64_t n, float* y);
  void (*write)(DType to, const float* x, int64_t n, void* y);
};
const WindowRows& window_rows();

/// How a plane is laid out, for the windows of a grid.
class WindowPlane {
 public:
  explicit WindowPlane(const ops::WindowGrid& grid);
  /// Floats that a plane takes.
  int64_t floats() const { return floats_; }
  /// Windows come in rows along the last axis.
  int64_t rows() const { return rows_; }
  int64_t row_windows() const { return grid_.out.back(); }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Where the windows of a row begin.
  int64_t row_start(int64_t row) const { return row_starts_[static_cast<size_t>(row)]; }
  /// Makes memory ready for fill(), which writes the elements between the padding alone: any number
  /// of planes can follow each other.
  void pad(float padding, float* plane) const { std::fill(plane, plane + floats_, padding); }
  /// Lays a plane out.
  void fill(DType dtype, const void* x, float* plane) const;
  /// The element of x that the first tap of a row's first window reads, were there no padding, and
  /// how much further each tap reads.
  int64_t row_element(int64_t row) const;
  const std::vector<int64_t>& tap_elements() const { return tap_elements_; }
  /// The element of x that a tap of a window reads; -1: padding.
  int64_t element(int64_t row, int64_t window, int64_t tap) const;

 private:
  void fill_row(DType dtype, const void* x, float* to) const;

  ops::WindowGrid grid_;
  std::vector<int64_t> spans_;    // elements along each axis, padding included
  std::vector<int64_t> strides_;  // floats from one to the next along each axis but the last
  std::vector<int64_t> offsets_, tap_elements_, row_starts_;
  int64_t phase_ = 0;  // floats of one remainder of the last axis
  int64_t floats_ = 0, rows_ = 1;
};

/// body(worker, begin, end) for contiguous parts of [0, planes), one for each thread, in which a
/// plane takes so many multiply-adds. `worker` is below `workers`.
template <typename Body>
void each_part_of_planes(int64_t planes, int64_t work_of_plane, int64_t workers, Body&& body) {
  // Starting the team costs about as much as this many multiply-adds.
  constexpr int64_t kSerial = int64_t{1} << 17;
  const bool is_small = planes * work_of_plane < kSerial;
  const int64_t parts =
      is_small ? 1 : std::min<int64_t>({workers, int64_t{thread_count()}, planes});
  parallel_parts(planes, parts, std::forward<Body>(body));
}

/// Why a plane is not laid out anew; empty: it is.
std::string window_plane_refusal(const ops::WindowGrid& grid);

}  // namespace brrr::cpu
