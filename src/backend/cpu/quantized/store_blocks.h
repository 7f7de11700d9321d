#pragma once
// store: parameters in blocks, as they lie in a GGUF file, as floats or in panels of integers.

#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

std::vector<KernelEntry> block_store_kernels();

}  // namespace brrr::cpu
