#pragma once
// Direct convolutions, which need no column matrix (im2col). Each channel of a part of x is copied
// into a zero-padded plane, in which a tap of the kernel lies at the same distance from the first
// tap for every window. The convolution is then a matrix product of the weights with shifted views
// of the planes (conv_tiles.h).
//
// The windows of the last two axes are numbered along the rows of a plane. A plane's rows are wider
// than the result's by the padding between them; sums at those positions are discarded. For a
// stride s, elements with the same index modulo s are stored together (a phase), so that
// neighbouring windows read neighbouring elements. Every pair of a channel and a tap of the axes
// before the last two has a plane of its own.
//
// Sums are in f32: sequential within a block of planes, then the block sums in order, then the
// bias. The blocks depend on the shape of the weights alone, so the bits of a result depend neither
// on the number of threads nor on the other images and windows.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/spatial/conv_sizes.h"

namespace brrr::cpu {

/// How an axis is laid out in planes.
struct PlaneAxis {
  int64_t in = 1, kernel = 1, out = 1, stride = 1, dilation = 1, before = 0;
  std::vector<int64_t> phases;  // indices modulo the stride that some tap reads

  /// The distance between the first and the last tap, in windows.
  int64_t reach() const { return (kernel - 1) * dilation / stride; }
  /// The index in `phases` of the phase that the tap reads.
  int64_t phase_of(int64_t tap) const;
  int64_t shift_of(int64_t tap) const { return tap * dilation / stride; }
  /// The element of x at place 0 of a phase in a plane whose first window is `first`.
  int64_t element(size_t phase, int64_t first) const {
    return first * stride + phases[phase] - before;
  }
};

class DirectConv {
 public:
  explicit DirectConv(const NodeView& v);
  int64_t scratch_bytes() const;
  /// in: x, w and the bias if there is one; y: the result. An epilogue is called for each finished
  /// block of the result as a matrix [n * m, out...]; y may then be null.
  void run(const void* const* in, void* y, std::byte* scratch, GemmEpilogue epilogue = {}) const;

  /// The reason for which a node is refused, or "".
  static std::string refusal(const NodeView& v);

 private:
  struct Task;
  struct Memory;
  Task task(int64_t index) const;
  void run_task(const Task& task, const Memory& memory) const;
  void add_planes(const Task& task, const Memory& memory, int64_t first, int64_t last) const;
  void lay_out(const Task& task, const Memory& memory, int64_t first, int64_t last) const;
  void lay_out_phase(const std::byte* x, size_t phase, const Task& task, const Memory& memory,
                     float* to) const;
  void finish(const Task& task, const Memory& memory) const;

  int64_t planes() const { return s_.cg() * outer_taps_; }
  int64_t plane_rows() const { return rows_ + high_.reach(); }
  int64_t taps() const { return high_.kernel * wide_.kernel; }

  ConvSizes s_;
  ConvBias bias_;
  PlaneAxis high_, wide_;   // the second last and the last axis
  int64_t outer_taps_ = 1;  // product of the kernel's other sizes
  int64_t outer_windows_ = 1;
  int64_t rows_ = 1, columns_ = 1;  // windows in a task
  int64_t width_ = 1;               // floats in a row of a plane
  int64_t plane_floats_ = 0, channel_floats_ = 0;
  int64_t plane_step_ = 1;    // planes in a block of the sum
  int64_t channels_ = 1;      // output channels in a task
  int64_t sum_channels_ = 1;  // output channels whose sums are kept at a time
  int64_t workers_ = 1, sums_ld_ = 0, worker_bytes_ = 0;
  std::vector<int32_t> offsets_;  // of each term of a block in the planes
};

}  // namespace brrr::cpu
