#pragma once
// Products with a right operand of quantised integers in panels.

#include <string>

#include "backend/cpu/products/gemm.h"
#include "base/integer_panels.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// The panels that the node multiplies by.
IntegerPanels integer_panels_of(const NodeView& product);

/// Why the node is no product of f32, bf16 or f16 with such panels; empty: it is one.
std::string integer_matmul_refusal(const NodeView& product);

/// Whether the node quantises its left operand ({left_bits} is 8).
bool quantizes_left(const NodeView& product);

/// What the vector path of gemm() is called with for a node that does not; null operands.
GemmArgs unpacking_gemm(const NodeView& product, const IntegerPanels& form);

}  // namespace brrr::cpu
