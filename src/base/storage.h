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
};

/// That of a right operand of products, [K, N] or, where they transpose it, [N, K], in panels.
constexpr Layout right_layout(bool transposed) {
  return transposed ? Layout::transposed_panels : Layout::panels;
}

struct Storage {
  Layout layout = Layout::rows;

  bool operator==(const Storage&) const = default;
  /// Whether it is that of a tensor that nothing is said about.
  bool is_plain() const { return *this == Storage{}; }
  /// "rows", "panels", "transposed_panels"
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
/// to what the storage can hold, to nearest even.
void read_floats(const Storage& storage, DType dtype, const Shape& shape, const void* from,
                 std::span<double> to);
void write_floats(const Storage& storage, DType dtype, const Shape& shape,
                  std::span<const double> from, void* to);

}  // namespace brrr
