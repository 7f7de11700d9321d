#pragma once
// What the cross_entropy kernels share: targets, and the streaming parts of a row in f32 arithmetic
// whatever the element type.

#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "base/errors.h"

namespace brrr::cpu {

/// max and sum e^(x - max) of a row; the logarithm of the sum is lse = max + log(sum).
struct ExpSum {
  float largest = 0;
  double sum = 0;

  float lse() const { return static_cast<float>(static_cast<double>(largest) + std::log(sum)); }
  /// lse - logit without the rounding of lse.
  float loss(float logit) const {
    return static_cast<float>(static_cast<double>(largest) - static_cast<double>(logit) +
                              std::log(sum));
  }
};

/// From here on the last digit of an f32 lse is a part in 2000 of e^(x - lse) and more: gradients
/// are computed from the largest logit and the sum instead.
constexpr float kLargeLse = 8192;

/// e^(x - lse) as factor e^(x - shift), and log e^(x - lse) of one logit.
struct Probabilities {
  float shift, factor;
  double log_total;  // lse - shift

  static Probabilities of(float lse) { return {lse, 1.0f, 0.0}; }
  static Probabilities of(const ExpSum& sum) {
    return {sum.largest, static_cast<float>(1 / sum.sum), std::log(sum.sum)};
  }
  double log_of(float logit) const {
    return static_cast<double>(logit) - static_cast<double>(shift) - log_total;
  }
};

struct CrossEntropyRows {
  /// One pass over x: [n]: each element is read from memory once.
  ExpSum (*exp_sum)(const void* x, int64_t n);
  /// y = scale e^(x - shift); x, y: [n], y may be x.
  void (*probabilities)(const void* x, float shift, float scale, void* y, int64_t n);
};
const CrossEntropyRows& cross_entropy_rows(bool bf16);

/// probabilities() of f32 x as f32, bf16 or f16 y, which may begin where x does.
using ProbabilitiesFunction = void (*)(const void* x, float shift, float scale, void* y, int64_t n);
ProbabilitiesFunction probabilities_as(DType y);

/// Targets of either integer type.
struct Targets {
  const void* data;
  bool wide;

  int64_t operator[](int64_t row) const {
    return wide ? static_cast<const int64_t*>(data)[row] : static_cast<const int32_t*>(data)[row];
  }
  /// Throws UserError "[op] ..." unless each of `rows` is a class or `ignore`.
  void check(const char* op, int64_t rows, int64_t classes, int64_t ignore) const {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = (*this)[r];
      if ((t < 0 || t >= classes) && t != ignore)
        user_error(
            "[{}] the target of row {} is {}; expected a class in [0, {}) or ignore_index {}", op,
            r, t, classes, ignore);
    }
  }
};

}  // namespace brrr::cpu
