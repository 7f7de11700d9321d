#pragma once
// Convolutions of pictures with channels last whose weights lie in panels of 16 bits or of integers
// (window_panels() and quantize_weights() make them). Rows of a picture are copied into a padded
// buffer that stays in the L2 cache, as f32, bf16 or int8, and multiplied by register tiles
// (packed_tiles.h). Few units of work share one buffer for each picture.
//
// Integers: weights have a scale for each output channel, and pictures one each, which the largest
// magnitude of the picture gives ({left_bits} of conv). Sums are exact, so that all instruction
// sets agree on them.
//
// The bits of a result depend neither on the number of threads nor on the other pictures.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/spatial/conv_sizes.h"
#include "backend/cpu/spatial/packed_tiles.h"
#include "backend/cpu/spatial/window_pass.h"
#include "base/integer_panels.h"

namespace brrr::cpu {

class PackedConv {
 public:
  explicit PackedConv(const NodeView& v) : PackedConv(v, best_terms(v)) {}
  /// Multiplies these terms, which must suit the weights and the processor.
  PackedConv(const NodeView& v, PackedTerms terms);

  int64_t scratch_bytes() const;
  /// in: x, w and the bias if there is one; y: the result. An epilogue is called for each finished
  /// block of the result as a matrix [n out..., m]; y is then null.
  void run(const void* const* in, void* y, std::byte* scratch, GemmEpilogue epilogue = {}) const;
  /// y + residual, which has y's type and may be null, and of that, with `relu`, what is positive.
  void run(const void* const* in, void* y, std::byte* scratch, const void* residual,
           bool relu) const;

  /// The reason for which a node is refused, or "".
  static std::string refusal(const NodeView& v);
  static PackedTerms best_terms(const NodeView& v);

 private:
  struct Memory;
  struct Unit {
    int64_t image = 0, first = 0, rows = 0;  // rows of windows
  };

  void run(Memory memory, const void* const* in) const;
  void find_scales(const Memory& memory) const;
  /// Rows [begin, end) of a buffer whose first row belongs to row `first` of windows.
  void fill(const Memory& memory, int64_t image, int64_t group, int64_t first, int64_t begin,
            int64_t end, std::byte* buffer) const;
  void count_starts(const std::byte* buffer, int64_t first, int64_t rows, int32_t* starts) const;
  void run_task(const Memory& memory, int64_t task, int64_t worker) const;

  Unit unit(int64_t index) const;
  int64_t unit_count() const { return s_.n * blocks_; }
  /// Rows of a buffer for so many rows of windows, and its bytes: pixels, then their sums.
  int64_t buffer_rows(int64_t rows) const;
  int64_t pixel_area(int64_t rows) const;
  int64_t buffer_bytes(int64_t rows) const;
  int32_t* sums_of_pixels(const std::byte* buffer, int64_t rows) const;
  int64_t start_bytes() const;
  int64_t worker_bytes() const;

  ConvSizes s_;
  ConvBias bias_;
  PackedTerms terms_;
  bool is_integer_ = false;
  DType y_dtype_;
  WindowPass pass_;
  IntegerPanels form_;
  int64_t panel_bytes_ = 0;
  int64_t workers_ = 1;
  // A buffer's row has `width_` pixels of `pixel_bytes_`; neighbouring windows are `wide_step_`
  // pixels, neighbouring rows of windows `high_step_` rows apart.
  int64_t width_ = 0, pixel_bytes_ = 0, wide_step_ = 1, high_step_ = 1;
  std::vector<int64_t> tap_pixels_;  // the pixel of each tap, from a window's first
  std::vector<int64_t> runs_;        // where runs of neighbouring terms begin, in bytes
  int64_t run_terms_ = 0;
  int64_t rows_ = 1, blocks_ = 1;  // rows of windows of a unit, units of a picture
  bool shares_ = false;            // a buffer for each picture, which threads share
  int64_t units_of_task_ = 1, splits_ = 1;
};

}  // namespace brrr::cpu
