#pragma once
// Convolutions as products of matrices.

#include "backend/cpu/products/gemm.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// The largest product that the kernel of a convolution makes at a time, without addresses; nothing
/// where it makes none.
std::optional<GemmArgs> conv_product(const NodeView& view);

}  // namespace brrr::cpu
