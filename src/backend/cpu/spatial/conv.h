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

/// Why a conv is not computed directly (direct_conv.h): it cannot be, or another kernel is faster.
std::string direct_conv_refusal(const NodeView& view);

}  // namespace brrr::cpu
