#pragma once
// SIMD kernels for quantised weights in panels (base/integer_panels.h), compiled for each
// instruction set: quantising activations, dequantising panels, and matrix products.

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/integer_panels.h"

namespace brrr::cpu {

/// Rows of the left operand quantised to 8 bits, each with a scale of its own: x = scale * integer,
/// rounded to nearest even (ops/quantized/quantized_rows.h says how).
struct QuantizedRows {
  int8_t* values = nullptr;  // [rows, ld]; zeros after the k terms
  int64_t ld = 0;            // a multiple of 64
  float* scales = nullptr;   // [rows]
  // [rows, groups]: where sums of products begin, minus the offset of the panel's integers times
  // the sum of the row's integers in each group of terms.
  int32_t* starts = nullptr;
};

/// Maximum number of rows of any strip. Rows of values are allocated in multiples of it, because
/// tiles read rows past the last.
inline constexpr int64_t kMostStripRows = 32;
/// Returns the bytes between two rows of 8-bit values: whole tiles.
inline int64_t strip_row_bytes(const IntegerPanels& form) {
  return round_up(std::max<int64_t>(form.k, 1), 64);
}
/// Returns the bytes that the values of so many rows take.
inline int64_t strip_value_bytes(int64_t rows, const IntegerPanels& form) {
  return round_up(rows, kMostStripRows) * strip_row_bytes(form);
}

/// Number of bytes by which a panel is fetched into the L2 cache before it is read. A fetch into
/// the L1 cache occupies one of its few fill buffers for as long as memory takes: on a Xeon
/// (Emerald Rapids) two threads then read 23 to 25 GB/s, and 27 to 30 through the L2 cache.
inline constexpr int64_t kPanelFetchAhead = 4096;

/// Arguments of the product of a strip of quantised rows and the 32 columns of a panel.
struct IntegerStrip {
  const int8_t* values = nullptr;  // of the first row
  int64_t ld = 0;
  int64_t rows = 0;
  const float* row_scales = nullptr;
  const int32_t* row_starts = nullptr;  // [rows, groups]
  const uint8_t* panel = nullptr;
  const float* scales = nullptr;  // [groups, 32], of the panel
  float* out = nullptr;           // [rows, 32], rows out_ld apart
  int64_t out_ld = 0;
  int32_t* exact = nullptr;  // if set, takes sums without scales in place of `out`; one group only
};

/// Computes strips: exact sums of integer products, multiplied by the scales.
struct StripKernel {
  using Function = void (*)(const IntegerStrip& s, const IntegerPanels& form);
  Function run = nullptr;
  int64_t rows = 0;  // maximum number of rows of a strip
};

struct IntegerKernels {
  /// Quantises rows of f32, bf16 or f16 that are `ld` elements apart.
  void (*quantize_rows)(DType dtype, const void* x, int64_t ld, int64_t rows,
                        const IntegerPanels& form, const QuantizedRows& to);
  /// Writes the floats of terms [k0, k0 + kc) of a panel as GemmPacking::pack_b() would; k0 is a
  /// multiple of 8.
  void (*unpack)(const uint8_t* panel, const float* scales, const IntegerPanels& form, int64_t k0,
                 int64_t kc, float* out);
  /// out [rows, 32] = x times the floats of a panel, for at most kGemmFewRows rows x of f32 that
  /// are form.k apart. Adds in the order of gemm()'s vector path, over blocks of k_step terms.
  void (*few_rows)(const float* x, int64_t rows, const uint8_t* panel, const float* scales,
                   const IntegerPanels& form, int64_t k_step, float* out);
  StripKernel::Function strip;  // takes any number of rows
  /// Multiplies sums [rows, 32] of a panel with one group by its scales and those of the rows.
  void (*scale_sums)(const IntegerStrip& s, const int32_t* sums);
};

/// Returns the kernels of the instruction set in use.
const IntegerKernels& integer_kernels();

/// Strips by 512-bit VPDPBUSD, by AMX tiles (8 bits and one group), and by these tiles in plain
/// C++. All give the bits of IntegerKernels::strip: integer sums are exact.
StripKernel vnni_strips();
StripKernel amx_strips();
StripKernel emulated_amx_strips();

}  // namespace brrr::cpu
