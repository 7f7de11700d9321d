#include "base/storage.h"

#include <cstring>

#include "base/errors.h"
#include "base/panels.h"

namespace brrr {
namespace {

struct LayoutRow {
  Layout layout;
  std::string_view name;
};
constexpr LayoutRow kLayouts[] = {{Layout::rows, "rows"},
                                  {Layout::panels, "panels"},
                                  {Layout::transposed_panels, "transposed_panels"}};

/// Element (row, column) of a matrix [rows, columns].
int64_t place_of(Layout layout, int64_t row, int64_t column, const Shape& shape) {
  if (layout == Layout::panels) return place_in_panels(row, column, shape.size(0));
  return place_in_panels(column, row, shape.size(1));
}

/// f(its place in row-major order, its place in memory) for each element of a matrix.
template <typename F>
void for_each_place(Layout layout, const Shape& shape, F f) {
  const int64_t rows = shape.size(0), columns = shape.size(1);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      f(static_cast<size_t>(i * columns + j), place_of(layout, i, j, shape));
}

int64_t elements_in_memory(Layout layout, const Shape& shape) {
  if (layout == Layout::rows) return shape.elements();
  const int64_t rows = shape.size(0), columns = shape.size(1);
  return layout == Layout::panels ? panel_elements(rows, columns) : panel_elements(columns, rows);
}

}  // namespace

std::string Storage::str() const { return std::string(kLayouts[static_cast<size_t>(layout)].name); }

std::optional<Storage> storage_from_name(std::string_view name) {
  for (const LayoutRow& row : kLayouts)
    if (row.name == name) return Storage{row.layout};
  return std::nullopt;
}

std::string storage_names() {
  std::string names;
  for (const LayoutRow& row : kLayouts)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

std::string storage_refusal(const Storage& storage, DType dtype, const Shape& shape) {
  if (storage.is_plain()) return "";
  if (shape.rank() != 2 || shape[0].is_symbol() || shape[1].is_symbol())
    return fmt::format("only matrices lie in panels; got {}", shape.str());
  if (dtype != DType::bf16 && dtype != DType::f16)
    return fmt::format("only bf16 and f16 lie in panels; got {}", name_of(dtype));
  return "";
}

int64_t stored_bytes(const Storage& storage, DType dtype, const Shape& shape) {
  int64_t bytes = 0;
  const int64_t elements = elements_in_memory(storage.layout, shape);
  if (__builtin_mul_overflow(elements, static_cast<int64_t>(bytes_of(dtype)), &bytes))
    user_error("{}{} has too many bytes", name_of(dtype), shape.str());
  return bytes;
}

void read_floats(const Storage& storage, DType dtype, const Shape& shape, const void* from,
                 std::span<double> to) {
  if (storage.layout != Layout::rows)
    return for_each_place(storage.layout, shape, [&](size_t i, int64_t place) {
      to[i] = load_as_double(dtype, from, place);
    });
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = load_as_double(dtype, from, static_cast<int64_t>(i));
}

void write_floats(const Storage& storage, DType dtype, const Shape& shape,
                  std::span<const double> from, void* to) {
  if (storage.layout != Layout::rows) {
    std::memset(to, 0, static_cast<size_t>(stored_bytes(storage, dtype, shape)));
    return for_each_place(storage.layout, shape, [&](size_t i, int64_t place) {
      store_from_double(dtype, to, place, from[i]);
    });
  }
  for (size_t i = 0; i < from.size(); ++i)
    store_from_double(dtype, to, static_cast<int64_t>(i), from[i]);
}

}  // namespace brrr
