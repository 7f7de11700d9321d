#pragma once
// What the kernels of pools share.

#include "runtime/backend.h"

namespace brrr::cpu {

/// Whether something in the graph reads the indices of a max_pool.
bool reads_indices(const NodeView& max_pool);

}  // namespace brrr::cpu
