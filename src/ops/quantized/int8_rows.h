#pragma once
// The storage of a KV cache in 8 bits: rows of int8 in which each group of neighbouring columns,
// one for each head, has a scale. A row can be written and read without the others.

#include "base/integers.h"
#include "ops/support.h"

namespace brrr::ops {

/// The storage of [..., C], of `rank` axes, in int8 with a scale for each `group` columns.
inline Storage int8_rows(int rank, int64_t group) {
  return {Layout::rows, {8, rank - 1, static_cast<int32_t>(group)}};
}

/// Whether a tensor has this storage. Rows that have one scale without a group size do not count.
inline bool is_int8_rows(const Type& t) {
  const Quantized& q = t.storage.quantized;
  return t.storage.layout == Layout::rows && q.bits == 8 && q.group > 0 &&
         q.axis == t.shape.rank() - 1;
}

/// Where the integers and the scales of a tensor in int8 rows lie.
struct Int8RowsLayout {
  int64_t columns, rows, group;  // columns of a row, and those that share a scale
  int64_t groups_in_row;
  int64_t first_scale;  // offset of the scales, f32 [rows, groups_in_row], in bytes

  explicit Int8RowsLayout(const Type& t)
      : columns(t.shape.size(-1)),
        rows(t.shape.without_last(1).elements()),
        group(t.storage.quantized.group),
        groups_in_row(ceil_div(columns, group)),
        first_scale(t.bytes() - rows * groups_in_row * int64_t{sizeof(float)}) {}
};

/// A sample operand in that storage.
inline Sample::Operand int8_rows_operand(Shape shape, int64_t group, DType dtype = DType::f32) {
  Sample::Operand x = tensor(std::move(shape), -1, 1, dtype);
  x.type.storage = int8_rows(x.type.shape.rank(), group);
  return x;
}

}  // namespace brrr::ops
