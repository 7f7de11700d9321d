#pragma once
// Products with a right operand of quantised integers in panels.

#include <string>

#include "backend/cpu/products/gemm.h"
#include "base/integer_panels.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Returns the layout of the node's right operand.
IntegerPanels integer_panels_of(const NodeView& product);

/// Returns why these kernels do not compute the node; empty if they do.
std::string integer_matmul_refusal(const NodeView& product);

/// Whether the node quantises its left operand ({left_bits} is 8).
bool quantizes_left(const NodeView& product);

/// Returns the arguments of gemm(), without pointers, for a node that dequantises its weight.
GemmArgs unpacking_gemm(const NodeView& product, const IntegerPanels& form);

}  // namespace brrr::cpu
