#pragma once
// How products read a weight, for the passes that put weights into panels (ops/panels.h).

#include <optional>

#include "ir/graph.h"

namespace brrr {

/// Whether a matmul or linear multiplies by the transpose of its right operand; nothing: it is
/// neither, or transposes its left one.
std::optional<bool> transposes_right(const Node& node);
/// The product's attributes when a right operand of `columns` columns lies in panels.
Attrs with_right_in_panels(const Node& node, int64_t columns);

}  // namespace brrr
