#pragma once
// Convolutions of pictures with channels last whose weights are matrices, as kernels read them.

#include "ops/ops.h"

namespace brrr {

/// w: [M, C/G, kernel...] -> [M, kernel... C/G]: the terms of a window in the order in which
/// pictures with channels last hold them.
Value weight_matrix(Value w);
/// w: [M, C, 3, 3] -> [M, S S C], S = tile + 2: the kernels as Winograd's algorithm multiplies them
/// (ops/spatial/winograd.h).
Value winograd_weight(Value w, int64_t tile);
/// x: [N, in..., C], w: weight_matrix() of [M, C/G, kernel...], perhaps in panels, bias: [M] ->
/// [N, out..., M]. Beside integers of 8 bits in panels, pictures are rounded to 8 bits, too.
/// `winograd`: 0, or the tile for which w is a winograd_weight().
Value conv_by_matrix(Value x, Value w, std::vector<int64_t> kernel, std::optional<Value> bias,
                     const Windows& windows, int64_t groups, int64_t winograd = 0);

}  // namespace brrr
