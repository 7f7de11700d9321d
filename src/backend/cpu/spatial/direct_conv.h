#pragma once
// Direct convolutions: a part of x is laid out as padded planes, one for each channel, so that
// every tap of every window in the part reads the same number of floats further than the window's
// first tap. A block of results is then a product whose right operand needs no memory of its own
// (conv_tiles.h): rows of weights as they lie times shifted views of the planes.
//
// Windows of the last two axes are numbered along the rows of a plane, whose width is that of the
// results and the padding between two rows; what is summed between rows is left out. A strided
// axis is taken apart by remainder, so that its windows lie side by side, too. Each pair of a
// channel and a tap of the axes before the last two is a plane of its own.
//
// Sums are in f32: sequential over blocks of whole planes, the block sums then added in order, the
// bias last. The blocks depend on the sizes of the weights alone, so the bits of a result depend
// neither on the threads nor on the other images and windows.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/spatial/conv_sizes.h"

namespace brrr::cpu {

/// How an axis is laid out in planes.
struct PlaneAxis {
  int64_t in = 1, kernel = 1, out = 1, stride = 1, dilation = 1, before = 0;
  std::vector<int64_t> phases;  // the remainders that some tap reads

  /// How many windows further than the first tap the last one reads.
  int64_t reach() const { return (kernel - 1) * dilation / stride; }
  int64_t phase_of(int64_t tap) const;  // as an index of `phases`
  int64_t shift_of(int64_t tap) const { return tap * dilation / stride; }
  /// The element that lies at place 0 of a phase where windows from `first` on are laid out.
  int64_t element(size_t phase, int64_t first) const {
    return first * stride + phases[phase] - before;
  }
};

class DirectConv {
 public:
  explicit DirectConv(const NodeView& v);
  int64_t scratch_bytes() const;
  /// in: x, w and the bias, y: the result. With an epilogue, rows are those of [n m, out...] and y
  /// may be null: then the epilogue has it all.
  void run(const void* const* in, void* y, std::byte* scratch, GemmEpilogue epilogue = {}) const;

  /// Why a node is not computed so; empty: it is.
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
  PlaneAxis high_, wide_;   // the last two axes
  int64_t outer_taps_ = 1;  // of the axes before them
  int64_t outer_windows_ = 1;
  int64_t rows_ = 1, columns_ = 1;  // of windows in a task
  int64_t width_ = 1;               // floats of a row of a plane
  int64_t plane_floats_ = 0, channel_floats_ = 0;
  int64_t plane_step_ = 1;                   // planes that are summed at a time
  int64_t channels_ = 1, sum_channels_ = 1;  // of y in a task; that are summed at a time
  int64_t workers_ = 1, sums_ld_ = 0, worker_bytes_ = 0;
  std::vector<int32_t> offsets_;  // of the terms of a block
};

}  // namespace brrr::cpu
