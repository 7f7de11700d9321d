#pragma once
// The inner loops of Adafactor, on one row of a matrix.

#include <cstdint>

namespace brrr::cpu {

struct AdafactorRows {
  /// columns[j] += (scale g[j])^2; returns the sum of the squares. f32 within 1024 terms, then f64.
  double (*square_sums)(const float* g, float scale, float* columns, int64_t n);
  /// sum of (scale g[j])^2 w[j]
  double (*weighted_squares)(const float* g, float scale, const float* w, int64_t n);
  /// y[j] = keep p[j] - step g[j] w[j]; y may be p.
  void (*step)(const float* p, const float* g, const float* w, float keep, float step, float* y,
               int64_t n);
};
const AdafactorRows& adafactor_rows();

}  // namespace brrr::cpu
