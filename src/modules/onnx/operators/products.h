#pragma once
// Products as ONNX means them, for operators in several files.

#include "modules/onnx/call.h"

namespace brrr::onnx {

/// NumPy's matmul around `product` of matrices [..., M, K] and [..., K, N]: a vector becomes a row
/// or a column, whose axis is taken off the result again.
template <typename Product>
Value numpy_product(const Call& c, Value a, Value b, Product product) {
  const bool row = a.shape().rank() == 1, column = b.shape().rank() == 1;
  if (a.shape().rank() == 0 || b.shape().rank() == 0) c.fail("a factor is a scalar");
  if (row) a = reshape(a, {Dim(1), a.shape()[0]});
  if (column) b = reshape(b, {b.shape()[0], Dim(1)});
  Value y = product(a, b);
  Shape shape = y.shape();
  if (column) shape.erase(shape.rank() - 1);
  if (row) shape.erase(shape.rank() - (column ? 1 : 2));
  return row || column ? reshape(y, shape) : y;
}

/// A tensor of 8-bit integers as (value - zero): the values are i8, the zero point is an i32 that
/// broadcasts to them; it is absent where it is 0.
struct Shifted {
  Value value;
  std::optional<Value> zero;
  /// Sums of the columns of a right factor, [..., 1, N] i32, where they are not to be computed
  /// anew.
  std::optional<Value> sums;
};
/// 1 b: the sums of the columns.
Value column_sums(Value b);
/// Operand `value` with the zero point `zero`, which is absent, a scalar, or the vector of a row or
/// a column; `as_column` makes rows of a vector ([M] -> [M, 1]).
Shifted shifted(Call& c, size_t value, size_t zero, bool as_column);
/// The same of values that are no operands. `zero` broadcasts to x. With a call, a zero point that
/// is known to be 0 is left out.
Shifted shifted(Value x, std::optional<Value> zero);
Shifted shifted(Call& c, Value x, std::optional<Value> zero);
/// a b, exact: i32.
Value integer_product(const Shifted& a, const Shifted& b);

/// x to u8 by the range of its values, as DynamicQuantizeLinear says.
struct DynamicallyQuantised {
  Value values, scale, zero;  // u8 as x, f32[], u8[]
};
DynamicallyQuantised quantised_by_range(Value x);

}  // namespace brrr::onnx
