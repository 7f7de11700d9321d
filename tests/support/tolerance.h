#pragma once
// The one table of tolerances: how far a kernel may be from the fp64 meaning of its op, by the
// dtype of the result and the number of terms that go into one element.

#include <cmath>
#include <cstdint>

#include "base/dtype.h"

namespace brrr::test {

/// Bound on |got - wanted| / magnitude, where the magnitude is the larger of |wanted| and the
/// largest |wanted| of the tensor. f32: 16 roundings of 2^-24, which covers a chain such as x
/// Phi(x) with an exponential of a few ulp, and the square root of the terms for sums in any order.
/// 16-bit and 8-bit results are rounded once more.
inline double tolerance(DType dtype, int64_t terms) {
  const double f32_part = std::ldexp(16 + std::sqrt(static_cast<double>(terms)), -24);
  switch (dtype) {
    case DType::f64:
      return std::ldexp(16 + static_cast<double>(terms), -53);
    case DType::f32:
      return f32_part;
    case DType::bf16:
      return std::ldexp(1.0, -8) + f32_part;
    case DType::f16:
      return std::ldexp(1.0, -11) + f32_part;
    case DType::f8e4m3:
      return std::ldexp(1.0, -4) + f32_part;
    case DType::f8e5m2:
      return std::ldexp(1.0, -3) + f32_part;
    default:
      return 0;  // integers and bool are exact
  }
}

}  // namespace brrr::test
