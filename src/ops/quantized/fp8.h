#pragma once
// Scales of tensors in 8 bits, for whoever computes them.

#include "base/dtype.h"

namespace brrr::ops {

/// The least power of two, from 2^-100 on, that brings `top`, the largest magnitude, within the
/// range of t (f8e4m3 or f8e5m2); 1 for 0, NaN for what is not finite.
double fp8_scale(double top, DType t);

}  // namespace brrr::ops
