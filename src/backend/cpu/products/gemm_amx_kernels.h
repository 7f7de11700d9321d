#pragma once
// The vector code of the AMX path of gemm(): packing into tiles, what is done to a block of sums,
// and a single row of A, for which tiles would be a detour. Compiled once per instruction set.

#include <cstdint>

namespace brrr::cpu {

/// One row of A times B, summed as tiles do it. Called with denormals flushed to zero.
enum class RowSums { kAmx, kPairs, kEmulatedPairs };
struct AmxRow {
  RowSums rule = RowSums::kAmx;
  const uint16_t* a = nullptr;  // [k]
  const uint16_t* b = nullptr;  // [k, cols], or [cols, k] when transposed
  int64_t ldb = 0, k = 0, cols = 0;
  bool trans_b = false;
  bool panels = false;    // b in panels (base/panels.h); ldb is not used
  float* sums = nullptr;  // [cols]
  bool add = false;       // to what `sums` holds; not where trans_b or panels
};

struct AmxKernels {
  /// A tile of 16 rows of 32 terms from `rows` x `terms` (the rest is zero) of a matrix whose
  /// element (i, k) is at from[i * ld + k], or from[k * ld + i] when transposed.
  void (*left_tile)(const uint16_t* from, int64_t ld, bool trans, int64_t rows, int64_t terms,
                    uint16_t* tile);
  /// The same of 16 columns of 32 terms as a right operand (VNNI): element (j, k) at
  /// from[j * ld + k], or from[k * ld + j] when transposed.
  void (*right_tile)(const uint16_t* from, int64_t ld, bool trans, int64_t columns, int64_t terms,
                     uint16_t* tile);
  /// values = alpha * values + bias [cols] (if any) + c (if any).
  void (*scale)(float* values, int64_t ld, int64_t rows, int64_t cols, float alpha,
                const float* bias, const float* c, int64_t ldc);
  void (*row)(const AmxRow& row);
};

/// Those of the instruction set in use.
const AmxKernels& amx_kernels();

}  // namespace brrr::cpu
