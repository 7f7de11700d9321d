#pragma once
// The part of gemm() that is compiled once per instruction set: packing and the register tiles of
// the vector path. gemm_vector.cpp decides what is packed and who computes which block.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

/// So few rows of A do not repay packing a transposed B. No register tile has fewer rows.
inline constexpr int64_t kGemmFewRows = 4;

/// One block product C += A B over kc terms. Element (i, k) of A lies at
/// a + (i / mr) * a_panel + (i % mr) * a_row + k * a_k; element (k, j) of B at b + k * b_k + j, or
/// in panels of f32 at b + (j / b_width) * b_panel + k * b_k + j % b_width.
struct GemmBlock {
  int64_t rows = 0, cols = 0, kc = 0;
  const float* a = nullptr;
  int64_t a_panel = 0, a_row = 0, a_k = 0;
  bool a_far = false;  // the panels lie one after the other, and none is in a near cache yet
  const void* b = nullptr;
  DType b_dtype = DType::f32;
  int64_t b_k = 0;
  int64_t b_width = 0, b_panel = 0;  // columns of a panel; 0: B does not lie in panels of f32
  bool b_far = false;                // the panels are not in a near cache yet
  // For at most kGemmFewRows rows of A: element (k, j) of B lies at b + j * b_k + k.
  bool b_trans = false;
  // For one row of A and panels (base/panels.h) of bf16: b is where the block's terms of its first
  // panel begin, and panels are b_k columns of 32 numbers apart.
  bool b_panels = false;
  // B is read in whole vectors. Where the memory behind `b` ends with its last column (B is not
  // packed), the columns beyond the last whole vector come from here: [kc, nr], zero-padded.
  const float* b_tail = nullptr;
  // For one row of A and an unpacked B: space for [cols] sums, or null.
  float* row_sums = nullptr;
  float* c = nullptr;
  int64_t ldc = 0;
  float alpha = 1.0f;
  bool load_c = false;          // add to what C holds
  const float* bias = nullptr;  // [cols] or null

  /// B as GemmPacking::pack_b() leaves kc terms of it.
  void set_packed(const float* packed, int64_t nr) {
    b = packed;
    b_width = b_k = nr;
    b_panel = kc * nr;
  }
};

struct GemmKernels {
  int64_t mr, nr, lanes;  // rows and columns of a register tile; floats of a vector (nr = 2 lanes)
  void (*multiply)(const GemmBlock& block);
};

/// Between memory of any operand dtype and blocks of f32.
struct GemmPacking {
  /// out: panels of nr columns, each [kc, nr], zero-padded; element (k, j) of the source is at
  /// b + k * ldb + j, or b + j * ldb + k when transposed.
  void (*pack_b)(DType dtype, const void* b, int64_t ldb, bool trans, int64_t kc, int64_t cols,
                 float* out);

  /// The same from panels (base/panels.h) of `terms` rows: terms [k0, k0 + kc) of `cols` columns
  /// from where their first panel begins. k0 and kc are multiples of 32.
  void (*pack_b_panels)(const uint16_t* b, int64_t terms, int64_t k0, int64_t kc, int64_t cols,
                        float* out);

  /// out: panels of mr rows, `panel` floats apart: [mr, kc] with row stride `row`, or when
  /// transposed [kc, mr]. Rows beyond `rows` are not written.
  void (*pack_a)(DType dtype, const void* a, int64_t lda, bool trans, int64_t kc, int64_t rows,
                 int64_t panel, int64_t row, float* out);

  /// c[i, j] = values[i, j], rounded to nearest even. With past_caches, rows of whole aligned lines
  /// are written around the caches.
  void (*store)(const float* values, int64_t ld, int64_t rows, int64_t cols, DType dtype, void* c,
                int64_t ldc, bool past_caches);
};

/// Those of the instruction set in use.
const GemmKernels& gemm_kernels();
const GemmPacking& gemm_packing();

}  // namespace brrr::cpu
