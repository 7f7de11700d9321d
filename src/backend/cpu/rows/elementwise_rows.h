#pragma once
// The inner loops of element-wise ops: one row, each operand contiguous or one value repeated.
// Compiled once per instruction set; elementwise.cpp lays rows over broadcast shapes and splits
// them among threads.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "ops/op.h"

namespace brrr {
struct Node;
}

namespace brrr::cpu {

struct Row {
  const void* in[3] = {};
  void* out = nullptr;
  int64_t n = 0;
  uint32_t repeated = 0;  // bit i: operand i is one value; never set for all operands
};
using RowFunction = void (*)(const Row&);

struct RowEntry {
  Op op;
  DType dtype;  // of the operands (of a and b for where: any dtype of that size)
  RowFunction run;
  std::string_view form = {};  // gelu: what {approximate} must be
};
/// A vectorised conversion between two dtypes.
struct CastEntry {
  DType from, to;
  RowFunction run;
};

std::span<const RowEntry> unary_rows();
std::span<const RowEntry> binary_rows();
/// Those of integers and of f64. Divisors must not be zero.
std::span<const RowEntry> scalar_rows();
std::span<const RowEntry> select_rows();
/// The vectorised conversion between the dtypes, or null.
RowFunction vector_cast(DType from, DType to);

/// Whether rows of the node must be looked at for divisors of zero before they are computed: it is
/// a quotient, a remainder or a power of integers.
bool may_divide_by_zero(const Node& node, DType dtype);

/// The function that computes rows of the node, alone and, unless it may divide by zero, as part of
/// a fused cluster; null: there is none. `dtype`: that of the operands, of where that of a and b.
RowFunction row_function(const Node& node, DType dtype);

}  // namespace brrr::cpu
