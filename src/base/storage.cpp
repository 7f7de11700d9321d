#include "base/storage.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/integers.h"
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
int64_t place_of(Layout layout, DType dtype, int64_t row, int64_t column, const Shape& shape) {
  const auto place = dtype == DType::f32 ? place_in_f32_panels : place_in_panels;
  if (layout == Layout::panels) return place(row, column, shape.size(0));
  return place(column, row, shape.size(1));
}

/// f(its place in row-major order, its place in memory) for each element of a matrix.
template <typename F>
void for_each_place(Layout layout, DType dtype, const Shape& shape, F f) {
  const int64_t rows = shape.size(0), columns = shape.size(1);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      f(static_cast<size_t>(i * columns + j), place_of(layout, dtype, i, j, shape));
}

int64_t elements_in_memory(Layout layout, DType dtype, const Shape& shape) {
  if (layout == Layout::rows) return shape.elements();
  const int64_t rows = shape.size(0), columns = shape.size(1);
  const auto elements = dtype == DType::f32 ? f32_panel_elements : panel_elements;
  return layout == Layout::panels ? elements(rows, columns) : elements(columns, rows);
}

/// How the groups of a quantized matrix [rows, columns] lie.
struct Groups {
  Quantized q;
  int64_t rows, columns, size, per_line;

  Groups(const Quantized& quantized, const Shape& shape)
      : q(quantized), rows(shape.size(0)), columns(shape.size(1)) {
    const int64_t line = q.axis == 0 ? rows : columns;
    size = q.group == 0 ? std::max<int64_t>(line, 1) : q.group;
    per_line = ceil_div(line, size);
  }
  int64_t count() const { return per_line * (q.axis == 0 ? columns : rows); }
  int64_t of(int64_t row, int64_t column) const {
    return q.axis == 0 ? row / size * columns + column : row * per_line + column / size;
  }
  /// Where the scales begin, aligned.
  int64_t first_scale() const {
    return round_up(ceil_div(rows * columns * q.bits, int64_t{8}), int64_t{sizeof(float)});
  }
  int most() const { return q.bits == 8 ? 127 : 7; }

  /// f(its place in row-major order, its group) for each element.
  template <typename F>
  void each(F f) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        f(static_cast<size_t>(i * columns + j), static_cast<size_t>(of(i, j)));
  }
};

int integer_at(const std::byte* bytes, int bits, size_t i) {
  if (bits == 8) return static_cast<int8_t>(bytes[i]);
  const auto pair = static_cast<int>(bytes[i / 2]);
  return (i % 2 == 0 ? pair & 15 : pair >> 4) - 8;
}
/// In order: the first of a pair clears its byte.
void put_integer(std::byte* bytes, int bits, size_t i, int value) {
  if (bits == 8) {
    bytes[i] = static_cast<std::byte>(value);
    return;
  }
  const auto half = static_cast<std::byte>((value + 8) << (i % 2 == 0 ? 0 : 4));
  bytes[i / 2] = i % 2 == 0 ? half : bytes[i / 2] | half;
}

void read_quantized(const Groups& g, const void* from, std::span<double> to) {
  const auto* bytes = static_cast<const std::byte*>(from);
  std::vector<float> scales(static_cast<size_t>(g.count()));
  std::memcpy(scales.data(), bytes + g.first_scale(), scales.size() * sizeof(float));
  g.each([&](size_t i, size_t group) {
    to[i] = static_cast<double>(scales[group]) * integer_at(bytes, g.q.bits, i);
  });
}

void write_quantized(const Groups& g, std::span<const double> from, void* to) {
  auto* bytes = static_cast<std::byte*>(to);
  std::vector<double> most(static_cast<size_t>(g.count()));
  g.each([&](size_t i, size_t group) {
    const double x = std::isfinite(from[i]) ? std::fabs(from[i]) : NAN;
    if (!(x <= most[group])) most[group] = std::isnan(most[group]) ? NAN : x;
  });
  std::vector<float> scales;
  for (const double x : most) scales.push_back(static_cast<float>(x / g.most()));
  std::memset(bytes, 0, static_cast<size_t>(g.first_scale()));
  g.each([&](size_t i, size_t group) {
    const double scale = static_cast<double>(scales[group]);
    const double x = scale > 0 ? std::nearbyint(from[i] / scale) : 0;
    put_integer(bytes, g.q.bits, i, static_cast<int>(std::clamp<double>(x, -g.most(), g.most())));
  });
  std::memcpy(bytes + g.first_scale(), scales.data(), scales.size() * sizeof(float));
}

/// "int8_along_0", "int4_along_1_by_32"
std::optional<Quantized> quantized_from_name(std::string_view text) {
  Quantized q;
  const auto number = [&](std::string_view before, int32_t& value) {
    if (!text.starts_with(before)) return false;
    text.remove_prefix(before.size());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return error == std::errc();
  };
  if (!number("int", q.bits) || !number("_along_", q.axis)) return std::nullopt;
  if (!text.empty() && (!number("_by_", q.group) || q.group <= 0 || !text.empty()))
    return std::nullopt;
  if ((q.bits != 4 && q.bits != 8) || (q.axis != 0 && q.axis != 1)) return std::nullopt;
  return q;
}

}  // namespace

std::string Storage::str() const {
  if (!is_quantized()) return std::string(kLayouts[static_cast<size_t>(layout)].name);
  const std::string name = fmt::format("int{}_along_{}", quantized.bits, quantized.axis);
  return quantized.group == 0 ? name : fmt::format("{}_by_{}", name, quantized.group);
}

std::optional<Storage> storage_from_name(std::string_view name) {
  for (const LayoutRow& row : kLayouts)
    if (row.name == name) return Storage{row.layout};
  const auto quantized = quantized_from_name(name);
  if (!quantized || Storage{Layout::rows, *quantized}.str() != name) return std::nullopt;
  return Storage{Layout::rows, *quantized};
}

std::string storage_names() {
  std::string names;
  for (const LayoutRow& row : kLayouts)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names + ", int8 or int4 followed by _along_<axis> and perhaps _by_<group>";
}

constexpr int64_t kLongestAxis = int64_t{1} << 40;

std::string storage_refusal(const Storage& storage, DType dtype, const Shape& shape) {
  if (storage.is_plain()) return "";
  if (shape.rank() != 2 || shape[0].is_symbol() || shape[1].is_symbol())
    return fmt::format("only matrices lie in {}; got {}", storage.str(), shape.str());
  if (std::max(shape.size(0), shape.size(1)) > kLongestAxis)
    return fmt::format("an axis of {} is too long for {}", shape.str(), storage.str());
  if (storage.is_quantized())
    return storage.layout != Layout::rows ? "integers lie in rows"
           : is_float(dtype)              ? std::string()
                             : fmt::format("only floats are quantized; got {}", name_of(dtype));
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
    return fmt::format("only bf16, f16 and f32 lie in panels; got {}", name_of(dtype));
  return "";
}

int64_t stored_bytes(const Storage& storage, DType dtype, const Shape& shape) {
  // With 8 bytes for an element, whole panels fit, and integers with as many scales.
  if (!storage.is_plain())
    stored_bytes({}, DType::f64,
                 {round_up(shape.size(0), kPanelTerms), round_up(shape.size(1), kPanelColumns)});
  if (storage.is_quantized()) {
    const Groups groups(storage.quantized, shape);
    return groups.first_scale() + groups.count() * int64_t{sizeof(float)};
  }
  int64_t bytes = 0;
  const int64_t elements = elements_in_memory(storage.layout, dtype, shape);
  if (__builtin_mul_overflow(elements, static_cast<int64_t>(bytes_of(dtype)), &bytes))
    user_error("{}{} has too many bytes", name_of(dtype), shape.str());
  return bytes;
}

void read_floats(const Storage& storage, DType dtype, const Shape& shape, const void* from,
                 std::span<double> to) {
  if (storage.is_quantized()) return read_quantized(Groups(storage.quantized, shape), from, to);
  if (storage.layout != Layout::rows)
    return for_each_place(storage.layout, dtype, shape, [&](size_t i, int64_t place) {
      to[i] = load_as_double(dtype, from, place);
    });
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = load_as_double(dtype, from, static_cast<int64_t>(i));
}

void write_floats(const Storage& storage, DType dtype, const Shape& shape,
                  std::span<const double> from, void* to) {
  if (storage.is_quantized()) return write_quantized(Groups(storage.quantized, shape), from, to);
  if (storage.layout != Layout::rows) {
    std::memset(to, 0, static_cast<size_t>(stored_bytes(storage, dtype, shape)));
    return for_each_place(storage.layout, dtype, shape, [&](size_t i, int64_t place) {
      store_from_double(dtype, to, place, from[i]);
    });
  }
  for (size_t i = 0; i < from.size(); ++i)
    store_from_double(dtype, to, static_cast<int64_t>(i), from[i]);
}

}  // namespace brrr
