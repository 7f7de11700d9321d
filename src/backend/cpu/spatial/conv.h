#pragma once
// Which kernel computes a convolution, and the products of matrices that it makes.

#include <optional>
#include <string>

#include "backend/cpu/products/gemm.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// The largest product that the kernel of a convolution makes at a time, without addresses; nothing
/// where it makes none.
std::optional<GemmArgs> conv_product(const NodeView& view);

/// Why a conv is not computed block by block, with an epilogue for each block; empty: it is.
std::string blockwise_conv_refusal(const NodeView& view);

}  // namespace brrr::cpu
