#pragma once
// How the elements of a tensor lie in memory. Shape, dtype and numbers of a tensor do not depend on
// it: only what touches its bytes has to know, and ops say which operands they read in another
// storage than rows (OpDef::stored_operands).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/shape.h"

namespace brrr {

/// The order of the elements.
enum class Layout : uint8_t {
  rows,               // row-major, as every tensor that nothing is said about
  panels,             // a matrix [K, N] as products read their right operand (base/panels.h)
  transposed_panels,  // a matrix [N, K] whose transpose [K, N] lies in panels
  blocks,             // rows in blocks of integers with their scales, as in a GGUF file
};

/// The layout in which products read the panels of a right operand [K, N] or, where they transpose
/// it, [N, K].
constexpr Layout right_layout(bool transposed) {
  return transposed ? Layout::transposed_panels : Layout::panels;
}

/// Integers that stand for the floats of a matrix: x = scale * integer, which is not rounded to the
/// dtype, with one scale for all elements of a group. The scale is the largest magnitude of the
/// group over the largest integer, 127 or 7; NaN where the group holds what is not finite, so that
/// all of it is NaN. In rows, the scales lie behind the integers, f32: those of the first row
/// (axis 1) or of the first groups of rows (axis 0) first; two integers of 4 bits share a byte.
/// In panels, groups stand along the terms of a product, and integer_panels.h says what lies where.
struct Quantized {
  int32_t bits = 0;   // 8 or 4; 0: the elements are no integers
  int32_t axis = 0;   // the elements of a group are neighbours along this axis
  int32_t group = 0;  // elements of a group; 0: all, which is a scale for each row or column
  bool operator==(const Quantized&) const = default;
};

struct Storage {
  Layout layout = Layout::rows;
  Quantized quantized = {};
  uint8_t block_type = 0;  // of blocks: BlockType::id (base/blocks/block_types.h)

  bool operator==(const Storage&) const = default;
  /// Whether the elements lie in rows, each in its dtype.
  bool is_plain() const { return *this == Storage{}; }
  bool is_quantized() const { return quantized.bits != 0; }
  bool is_blocks() const { return layout == Layout::blocks; }
  /// "rows", "panels", "transposed_panels", "int8_along_0", "int4_along_1_by_32",
  /// "panels_of_int8_along_0", "blocks_of_Q4_K"
  std::string str() const;
};
std::optional<Storage> storage_from_name(std::string_view name);
/// Every name, for messages.
std::string storage_names();

/// Why a tensor cannot lie so; empty: it can.
std::string storage_refusal(const Storage& storage, DType dtype, const Shape& shape);

/// Bytes of a tensor of static shape; UserError when the count does not fit 63 bits.
int64_t stored_bytes(const Storage& storage, DType dtype, const Shape& shape);

/// A tensor of floats in row-major order, out of its memory and into it; into it they are rounded
/// to what the storage can hold, to nearest even. Nothing writes blocks.
void read_floats(const Storage& storage, DType dtype, const Shape& shape, const void* from,
                 std::span<double> to);
void write_floats(const Storage& storage, DType dtype, const Shape& shape,
                  std::span<const double> from, void* to);

}  // namespace brrr
