#pragma once
// Register tiles of convolutions of pictures with channels last whose weights lie in panels of 16
// bits (base/panels.h) or of integers (base/integer_panels.h), on one thread. They differ from
// channel_tiles.h in what a term is; the left operand, too, is read where windows lie.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

/// What the left operand holds, and how it is multiplied.
enum class PackedTerms : uint8_t {
  bf16_as_floats,  // f32, by weights of bf16 that are widened in registers
  f16_as_floats,   // the same, by weights of f16
  bf16_pairs,      // bf16, two terms at a time by VDPBF16PS
  bf16_tiles,      // bf16, by AMX tiles (packed_amx.cpp); runs are multiples of 32 terms
  integers,        // int8 by uint8 with an offset of 128, four terms at a time; sums are exact
  integer_tiles,   // the same by AMX tiles; runs are multiples of 64 terms
  // The last forms of tiles in plain C++.
  emulated_bf16_tiles,
  emulated_integer_tiles,
};
constexpr bool has_integers(PackedTerms terms) {
  return terms == PackedTerms::integers || terms == PackedTerms::integer_tiles ||
         terms == PackedTerms::emulated_integer_tiles;
}
constexpr bool has_tiles(PackedTerms terms) {
  return terms == PackedTerms::bf16_tiles || terms == PackedTerms::integer_tiles ||
         terms == PackedTerms::emulated_bf16_tiles || terms == PackedTerms::emulated_integer_tiles;
}
constexpr bool are_widened(PackedTerms terms) {
  return terms == PackedTerms::bf16_as_floats || terms == PackedTerms::f16_as_floats;
}
/// Bytes of a term of the left operand.
constexpr int64_t bytes_of_term(PackedTerms terms) {
  return has_integers(terms) ? 1 : are_widened(terms) ? 4 : 2;
}

/// s[l, i, j] = the sum over runs r, and over t in [0, run_terms), of
///   a[l * a_line + i * a_row + a_runs[r], term t] * b[term r * run_terms + t, column j]
/// for l in [0, lines), i in [0, rows), j in [0, columns); distances of a in bytes. Integers start
/// at starts[l * rows + i], and the sum is multiplied by scales[j] * scale.
///   y[l, i, j] = s + bias[j] + residual[l, i, j], of that, with `relu`, what is positive.
/// Distances of y in elements; `residual` lies like y.
struct PackedTilesArgs {
  const std::byte* a = nullptr;
  int64_t a_line = 0, a_row = 0;
  const int64_t* a_runs = nullptr;
  const std::byte* b = nullptr;  // one panel, of 32 columns
  int64_t runs = 0, run_terms = 0;
  int64_t lines = 1, rows = 0, columns = 0;
  const int32_t* starts = nullptr;
  const float* scales = nullptr;
  float scale = 0;
  const float* bias = nullptr;
  DType dtype = DType::f32;  // of y: f32, bf16 or f16
  void* y = nullptr;
  int64_t y_line = 0, y_row = 0;
  const void* residual = nullptr;
  bool relu = false;
};

struct PackedTiles {
  /// Without AMX. The bits of a sum depend on its operands, their number and the instruction set
  /// alone.
  void (*multiply)(PackedTerms terms, const PackedTilesArgs& args);
  /// What follows the sums [rows, sums_ld] of neighbouring windows of a line, from a row on.
  void (*finish)(bool integers, const PackedTilesArgs& args, const float* sums, int64_t sums_ld,
                 int64_t line, int64_t row, int64_t rows);
  /// The largest magnitude of n elements of f32, bf16 or f16; NaN if one of them is not finite.
  float (*largest)(DType dtype, const void* x, int64_t n);
  /// to[p * to_ld + c] = x[p * ld + c] * inverse, rounded to nearest even, and sums[p] = their sum,
  /// for p in [0, pixels), c in [0, channels).
  void (*quantize)(DType dtype, const void* x, int64_t ld, int64_t pixels, int64_t channels,
                   float inverse, int8_t* to, int64_t to_ld, int32_t* sums);
};
/// The functions compiled for the instruction set in use.
const PackedTiles& packed_tiles();

/// Multiplies terms of any kind. AMX tiles have 16 rows, and more of `a` is read than windows have:
/// 2 * kTileRows rows and 64 bytes must be there.
void multiply_packed_terms(PackedTerms terms, const PackedTilesArgs& args);

}  // namespace brrr::cpu
