#pragma once
// The inner loops of element-wise ops: one row, each operand contiguous or one value repeated.
// Compiled once per instruction set; elementwise.cpp lays rows over broadcast shapes and splits
// them among threads.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace brrr::cpu {

struct Row {
  const void* in[3] = {};
  void* out = nullptr;
  int64_t n = 0;
  uint32_t repeated = 0;  // bit i: operand i is one value; never set for all operands
};
using RowFunction = void (*)(const Row&);

struct RowEntry {
  std::string_view op;  // "gelu.tanh" for gelu with approximate="tanh"
  DType dtype;          // of the operands (of a and b for where: any dtype of that size)
  RowFunction run;
};

std::span<const RowEntry> unary_rows();
std::span<const RowEntry> binary_rows();
/// Those of 64-bit integers. Divisors must not be zero.
std::span<const RowEntry> integer_rows();
std::span<const RowEntry> select_rows();
/// Conversions to and from f32: op is "to" or "from", dtype the other type.
std::span<const RowEntry> cast_rows();

}  // namespace brrr::cpu
