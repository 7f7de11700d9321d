#pragma once
// store: panels of quantised integers (base/integer_panels.h) as floats in rows.

#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

std::vector<KernelEntry> read_panel_kernels();

}  // namespace brrr::cpu
