#pragma once
// Which forms of attention a backend has kernels for. A form without one is decomposed into ops
// that hold all scores, so callers choose another layout of their rows instead.

#include "runtime/backend.h"

namespace brrr {

/// Whether the backend runs attention of a ragged batch ({starts}) by a kernel, and, with
/// `gradient`, attention_grad, too.
bool runs_ragged_attention(const Backend& backend, bool gradient = false);

/// Whether the backend runs attention over a KV cache in blocks ({block_rows}) by a kernel.
bool runs_block_attention(const Backend& backend);

}  // namespace brrr
