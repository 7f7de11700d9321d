#pragma once
// Register tiles of convolutions of pictures with channels last, on one thread: products whose left
// operand is read where windows of a picture lie, so that no column matrix is stored.

#include <cstdint>

namespace brrr::cpu {

/// c[l, i, j] = (add ? c[l, i, j] : 0) + the sum over runs r, and over t in [0, run_terms[r]), of
///   a[a_runs[r] + l * a_line + i * a_row + t * a_term] * b[b_runs[r] + t * b_term + j], plus
/// bias[j], plus residual[l, i, j], which lies like c, for l in [0, lines), i in [0, rows), j in
/// [0, columns); of that, with `relu`, what is positive. Terms are added in ascending order, one at
/// a time.
struct ChannelTilesArgs {
  const float* a = nullptr;
  int64_t a_line = 0, a_row = 0, a_term = 1;
  const int64_t* a_runs = nullptr;
  const float* b = nullptr;  // rows are read in whole vectors beyond `columns`
  int64_t b_term = 0;
  const int64_t* b_runs = nullptr;
  const int64_t* run_terms = nullptr;
  int64_t runs = 0;
  int64_t lines = 1, rows = 0, columns = 0;
  float* c = nullptr;  // nothing beyond `columns` is written
  int64_t c_line = 0, c_row = 0;
  bool add = false;
  const float* bias = nullptr;
  const float* residual = nullptr;
  bool relu = false;
};

struct ChannelTiles {
  int64_t lanes;  // floats of a vector
  int64_t rows;   // of the tallest tile
  /// The bits of a sum depend on its operands, their number and the instruction set alone.
  void (*multiply)(const ChannelTilesArgs& args);
  /// to[r * to_ld + j] = from[r * from_ld + j] for r in [0, rows), j in [0, n).
  void (*copy)(const float* from, int64_t from_ld, int64_t rows, int64_t n, float* to,
               int64_t to_ld);
};
/// The functions compiled for the instruction set in use.
const ChannelTiles& channel_tiles();

}  // namespace brrr::cpu
