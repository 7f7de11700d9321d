#pragma once
// store: integers that are given, with or without scales, in panels (base/integer_panels.h).

#include "runtime/backend.h"

namespace brrr::cpu {

/// The kernel of a store of i8, and of one with two or three operands
/// (ops/quantized/given_integers.h). The operands may be unaligned, as they lie in a file.
KernelEntry given_integers_kernel();

}  // namespace brrr::cpu
