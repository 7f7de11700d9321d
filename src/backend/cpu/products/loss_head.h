#pragma once
// linear_cross_entropy, its gradient, and both together: the logits of some rows at a time.

#include <memory>

#include "runtime/backend.h"

namespace brrr::cpu {

/// Rows whose logits are held at once: of at most 64 MiB (256 where there are instructions that
/// make the products faster than f32) but at least 128, of about equal parts, and never all of more
/// than 256.
int64_t loss_head_chunk(int64_t rows, int64_t classes, bool packs_tiles = false);

std::unique_ptr<Kernel> loss_head(const NodeView& node, int64_t chunk);

}  // namespace brrr::cpu
