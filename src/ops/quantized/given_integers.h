#pragma once
// The form of `store` that takes integers with their scales, such as those of a quantised file, and
// therefore rounds nothing.

#include <optional>

#include "base/storage.h"
#include "ir/graph.h"

namespace brrr {

/// The shape of the scales of a quantised matrix.
Shape scales_shape(const Quantized& q, const Shape& matrix);

/// Returns the matrix (integers - zeros) * scales of {dtype} in {storage}, which must be quantised
/// panels whose groups are those of `scales`. Operands: integers i8 or u8 [R, C]; scales f32, bf16
/// or f16, one for each group, [groups, C] for axis 0 or [R, groups] for axis 1; zeros i8 or u8 of
/// the same shape as scales, 0 if absent. A difference outside the range of the storage's bits is
/// clamped. A scale that is not finite makes its group NaN.
Value store_integers(Value integers, Value scales, std::optional<Value> zeros,
                     const Storage& storage, DType dtype);

}  // namespace brrr
