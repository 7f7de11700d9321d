#pragma once
// The register tiles of a direct convolution, on one thread: a product whose right operand is never
// made, because each of its rows is a shifted view of a padded plane.

#include <cstdint>

namespace brrr::cpu {

/// sums[m, p] = (add ? sums[m, p] : 0) + the sum over t in [0, terms), in order, of
/// weights[m, t] * planes[offsets[t] + p].
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
  /// Reads no element but those that are laid out and what lies between them.
  void (*lay_out)(const PlaneRows& rows);
  /// y[r * n + i] = x[r * x_ld + i] + number, r in [0, rows) and i in [0, n). y may be x where rows
  /// do not overlap.
  void (*pack)(const float* x, int64_t x_ld, int64_t rows, int64_t n, float number, float* y);
};
/// Those of the instruction set in use.
const ConvTiles& conv_tiles();

}  // namespace brrr::cpu
