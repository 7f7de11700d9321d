#pragma once
// store: floats as int8 rows (ops/quantized/int8_rows.h), and back.

#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

std::vector<KernelEntry> int8_rows_kernels();

}  // namespace brrr::cpu
