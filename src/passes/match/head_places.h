#pragma once
// Where an operand of attention lies in the value from which reshapes, transposes, slices and
// broadcasts have made it: attention then reads it there, without the copies between.

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace brrr {

struct HeadsFound {
  ValueId source;
  Shape shape;  // as which attention reads the source: [..., rows, columns] or [..., K, rows,
                // columns]
  int64_t column = 0;
  bool in_rows = false;
  int64_t heads = 1;  // K: the operand's heads that differ; each stands for as many of its heads
};

/// operand: [..., H, rows, width], or [..., H, width, rows] when `transposed`; without heads where
/// it has two axes. Of the values that hold it as attention can read it, the one furthest back: the
/// operand itself at least, unless it is transposed. nullopt: it must be copied.
std::optional<HeadsFound> find_heads(const Graph& graph, ValueId operand, bool transposed);

}  // namespace brrr
