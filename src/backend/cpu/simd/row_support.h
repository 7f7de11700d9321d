#pragma once
// What the row kernels share: a tensor as rows of its last axis, refusals, and where rows are
// split.

#include <algorithm>
#include <string>

#include "runtime/backend.h"

namespace brrr::cpu {

/// [..., N] as rows of N.
struct Rows {
  int64_t count = 1, width = 1;
};
inline Rows rows_of(const Shape& shape) {
  Rows rows;
  rows.width = shape.size(-1);
  for (int axis = 0; axis + 1 < shape.rank(); ++axis) rows.count *= shape.size(axis);
  return rows;
}

/// Elements of rows that are worth another thread; of rows that take an exponential of each.
inline constexpr int64_t kRowGrain = 16384, kExpGrain = 8192;
/// Rows per part of parallel_for so that a part has at least `elements` elements.
inline int64_t row_grain(int64_t width, int64_t elements) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, width));
}

/// Sums over the rows of a matrix are made of chunks that depend on its shape alone, then added in
/// order: at most 64 chunks (but for rounding) of some thousand elements at least, each of whole
/// groups of the eight rows that are folded at a time.
struct RowChunks {
  int64_t rows, size, count;
  RowChunks(int64_t n, int64_t width) : rows(n) {
    constexpr int64_t kElements = 8192, kTogether = 8;
    size = std::max<int64_t>({1, kElements / std::max<int64_t>(1, width), (n + 63) / 64});
    size = (size + kTogether - 1) / kTogether * kTogether;
    count = std::max<int64_t>(1, (n + size - 1) / size);
  }
  int64_t begin(int64_t chunk) const { return std::min(rows, chunk * size); }
  int64_t end(int64_t chunk) const { return std::min(rows, (chunk + 1) * size); }
};

inline std::string only_f32_or_16_bits(const NodeView& node) {
  const DType t = node.in[0].dtype;
  if (t != DType::f32 && t != DType::bf16 && t != DType::f16)
    return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
  return "";
}
inline std::string only_f32_or_bf16(const NodeView& node) {
  const DType t = node.in[0].dtype;
  if (t != DType::f32 && t != DType::bf16)
    return fmt::format("dtype {}: only f32 and bf16", name_of(t));
  return "";
}

}  // namespace brrr::cpu
