#pragma once
// matmul of i8 with a right operand of i8 in panels (base/integer_panels.h, without scales): exact.

#include "runtime/backend.h"

namespace brrr::cpu {

/// Whether packing the right operand of a product of i8 into panels makes it no slower.
bool reads_exact_panels(const NodeView& product);

}  // namespace brrr::cpu
