#pragma once
// Weights whose integers and scales are given, such as those of a quantised file: store reads them
// without rounding anything again.

#include <optional>

#include "base/storage.h"
#include "ir/graph.h"

namespace brrr {

/// The matrix (integers - zeros) * scales of {dtype} in {storage}: quantised panels with the groups
/// of `scales`. integers: [R, C] i8 or u8; scales: f32, bf16 or f16, one for each group: [groups,
/// C] for axis 0, [R, groups] for axis 1; zeros: i8 or u8 of the shape of scales; none: 0. A
/// difference that the bits of the storage cannot hold becomes the nearest one that they can. A
/// scale that is not finite makes its group NaN.
Value store_integers(Value integers, Value scales, std::optional<Value> zeros,
                     const Storage& storage, DType dtype);

}  // namespace brrr
