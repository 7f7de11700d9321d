#pragma once
// The transforms of Winograd's algorithm (ops/spatial/winograd.h), a vector of channels at a time,
// on one thread. S is tile + 2.

#include <cstdint>

namespace brrr::cpu {

/// Where the results of a tile go, and what is computed of them in registers.
struct WinogradResults {
  float* y = nullptr;
  int64_t row = 0, pixel = 0;   // floats from one row of results, and one result, to the next
  int64_t high = 0, wide = 0;   // results that exist, at most `tile` along each axis
  int64_t columns = 0;          // output channels
  const float* bias = nullptr;  // [columns]; null: none
  /// Lies like y, and may be y; null: none.
  const float* residual = nullptr;
  bool relu = false;
};

struct WinogradTransforms {
  /// v[p * place + c] = (B' d_c B)[p] for p in [0, S S) and c in [0, channels), where
  /// d_c[p] = pixels[p][c]. Writes whole vectors beyond `channels`.
  void (*patch)(int64_t tile, const float* const* pixels, int64_t channels, float* v,
                int64_t place);
  /// y = A' p_j A + bias[j] + residual, of that, with `relu`, what is positive, where p_j[i] is
  /// p[i * place + j]. Reads whole vectors beyond `columns`.
  void (*results)(int64_t tile, const float* p, int64_t place, const WinogradResults& to);
};
/// The functions compiled for the instruction set in use.
const WinogradTransforms& winograd_transforms();

}  // namespace brrr::cpu
