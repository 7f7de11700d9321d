#pragma once
// The register tiles of a direct convolution, on one thread: a matrix product whose right operand
// is never stored, because each of its rows is a shifted view of a padded plane.

#include <cstdint>

namespace brrr::cpu {

/// Operands of the tile product, which adds the terms t in ascending order:
/// sums[m, p] = (add ? sums[m, p] : 0) + sum over t of weights[m, t] * planes[offsets[t] + p]
struct ConvTilesArgs {
  const float* weights = nullptr;  // [rows, terms]
  int64_t weights_ld = 0, rows = 0;
  const float* planes = nullptr;
  const int32_t* offsets = nullptr;  // [terms]
  int64_t terms = 0;
  float* sums = nullptr;  // [rows, positions]
  int64_t sums_ld = 0, positions = 0;
  bool add = false;
};

/// y[r * width + i] = x[r * x_ld + (i - first) * stride] for i in [first, last), and 0 elsewhere in
/// [0, width), for r in [0, rows).
struct PlaneRows {
  const float* x = nullptr;
  int64_t x_ld = 0, stride = 1, rows = 0;
  int64_t first = 0, last = 0, width = 0;
  float* y = nullptr;
};

struct ConvTiles {
  /// Floats of a vector. Planes are read and sums are written in whole vectors: positions count as
  /// rounded up to a multiple of it.
  int64_t lanes;
  /// The bits of a sum depend on its operands, `terms` and the instruction set alone.
  void (*multiply)(const ConvTilesArgs& args);
  /// Fills rows of a plane. Reads no element before the first or behind the last one it copies.
  void (*lay_out)(const PlaneRows& rows);
  /// Removes the gaps between rows and adds a number: y[r * n + i] = x[r * x_ld + i] + number for r
  /// in [0, rows) and i in [0, n). y may equal x.
  void (*pack)(const float* x, int64_t x_ld, int64_t rows, int64_t n, float number, float* y);
};
/// The functions compiled for the instruction set in use.
const ConvTiles& conv_tiles();

}  // namespace brrr::cpu
