#pragma once
// Convolutions of pictures with channels last, and their derivatives, without a column matrix. A
// convolution is one pass or several, in each of which neighbouring windows lie a constant distance
// apart: conv is one pass, its derivative in x one for each remainder of a position modulo the
// strides. A pass copies the part of the picture that a few rows of windows read into a padded
// buffer that stays in the L2 cache (or reads the picture where it lies), and multiplies it by
// weights in panels (base/panels.h): the terms of a window are runs of neighbouring numbers.
//
// Sums are in f32: terms in the order (kernel rows, kernel columns, channels), one after the other
// within blocks of gemm_terms_of_block(), the block sums in order, then the bias. The bits of a
// result depend neither on the number of threads nor on the other pictures and windows. Gradients
// of weights are sums over fixed chunks of the windows, added in order: they do not depend on the
// number of threads.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/spatial/conv_sizes.h"
#include "backend/cpu/spatial/window_pass.h"

namespace brrr::cpu {

/// How a pass goes through its pictures: units of whole rows of windows of one picture.
class PassUnits {
 public:
  PassUnits(const WindowPass& pass, DType dtype, int64_t images, int64_t pixel_channels,
            bool copies);
  struct Unit {
    int64_t image = 0, first = 0, rows = 0;
  };
  int64_t count() const { return images_ * blocks_; }
  Unit unit(int64_t index) const;
  bool copies() const { return copies_; }
  int64_t buffer_floats() const { return copies_ ? buffer_floats_ : 0; }
  int64_t windows() const { return rows_ * pass_.wide.out; }  // at most, in a unit
  /// The part of the picture that the windows of a unit read, for one group: the buffer, filled, or
  /// the picture itself.
  const float* provide(const void* x, const Unit& unit, int64_t group, float* buffer) const;
  int64_t pixel() const { return pixel_; }  // floats between neighbouring windows
  int64_t line() const { return line_; }    // floats between neighbouring rows of windows
  /// The beginning of each run of terms in what provide() gives, and the terms of a run.
  const std::vector<int64_t>& runs() const { return runs_; }
  int64_t run_terms() const { return run_terms_; }

 private:
  WindowPass pass_;
  DType dtype_;
  int64_t images_, pixel_channels_, blocks_ = 1, rows_ = 1;
  bool copies_ = true;
  int64_t pixel_ = 0, line_ = 0, buffer_floats_ = 0;
  int64_t buffer_pixel_ = 0, buffer_width_ = 0;
  std::vector<int64_t> runs_;
  int64_t run_terms_ = 0;
};

/// What is computed of a result of f32 while it is in registers: y + residual, which has its shape,
/// and of that, with `relu`, what is positive.
struct ConvFinish {
  const float* residual = nullptr;
  bool relu = false;
};

/// conv and conv_transpose.
class ChannelsLastConv {
 public:
  explicit ChannelsLastConv(const NodeView& v);
  int64_t scratch_bytes() const;
  /// in: x, w and the bias if there is one; y: the result. An epilogue is called for each finished
  /// block of the result as a matrix [n out..., m]; y may then be null.
  void run(const void* const* in, void* y, std::byte* scratch, GemmEpilogue epilogue = {}) const;
  /// y must be f32.
  void run(const void* const* in, void* y, std::byte* scratch, const ConvFinish& finish) const;

  /// The reason for which a node is refused, or "".
  static std::string refusal(const NodeView& v);

 private:
  struct Memory;
  void run(Memory memory, const void* const* in) const;
  /// Whether units are copied once for all threads: there are so few that threads share them.
  bool shares_buffers(const PassUnits& units) const;
  void run_pass(size_t index, const Memory& memory) const;
  void pack_weights(const WindowPass& pass, const void* w, float* panels) const;

  ConvSizes s_;
  ConvBias bias_;
  bool transposed_ = false, in_panels_ = false, is_matrix_ = false;
  DType y_dtype_ = DType::f32;
  int64_t source_channels_ = 0, result_channels_ = 0;  // of a picture
  int64_t result_high_ = 1, result_wide_ = 1;
  bool leaves_gaps_ = false;  // some results have no tap
  std::vector<WindowPass> passes_;
  std::vector<PassUnits> units_;
  int64_t workers_ = 1, units_of_task_ = 1;
  int64_t buffer_bytes_ = 0, shared_bytes_ = 0, sums_bytes_ = 0, panel_bytes_ = 0;
};

class ChannelsLastWeightGrad {
 public:
  explicit ChannelsLastWeightGrad(const NodeView& v);
  int64_t scratch_bytes() const;
  void run(const void* const* in, void* dw, std::byte* scratch) const;
  static std::string refusal(const NodeView& v);

 private:
  /// Adds units [first, last) to the sums of output channels [m_begin, m_end) of a group.
  void add_units(const void* x, const void* dy, int64_t first, int64_t last, int64_t group,
                 int64_t m_begin, int64_t m_end, float* buffer, float* sums) const;

  ConvSizes s_;
  WindowPass pass_;
  PassUnits units_;
  int64_t chunks_ = 1, units_at_once_ = 1, workers_ = 1;
  int64_t run_floats_ = 0;  // of a run in the sums
  int64_t dy_floats_ = 0;   // of a unit's dy, widened
};

}  // namespace brrr::cpu
