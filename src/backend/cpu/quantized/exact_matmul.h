#pragma once
// matmul of i8 with a right operand of i8 in panels (base/integer_panels.h, without scales): exact.

#include "runtime/backend.h"

namespace brrr::cpu {

/// Whether a product of i8 would be computed at least as fast from a right operand in panels.
bool reads_exact_panels(const NodeView& product);

}  // namespace brrr::cpu
