#pragma once
// The CPU as a backend: its name says which instruction set is in use ("cpu:avx512").

#include "runtime/backend.h"

namespace brrr::cpu {

/// Chooses the instruction set (best_isa) and lists the kernels. UserError when BRRR_ISA is wrong.
Backend cpu_backend();

}  // namespace brrr::cpu
