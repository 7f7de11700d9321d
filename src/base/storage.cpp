#include "base/storage.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/errors.h"
#include "base/integer_panels.h"
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
                                  {Layout::transposed_panels, "transposed_panels"},
                                  {Layout::blocks, "blocks"}};
constexpr std::string_view kBlocksOf = "blocks_of_";

/// Where element (k, n) of a matrix of `terms` rows lies in panels of i8 (base/integer_panels.h).
int64_t place_in_i8_panels(int64_t k, int64_t n, int64_t terms) {
  return IntegerPanels{terms, n + 1}.place(k, n);
}
int64_t i8_panel_elements(int64_t k, int64_t n) { return IntegerPanels{k, n}.integer_bytes(); }

/// Element (row, column) of a matrix [rows, columns].
int64_t place_of(Layout layout, DType dtype, int64_t row, int64_t column, const Shape& shape) {
  const auto place = dtype == DType::f32  ? place_in_f32_panels
                     : dtype == DType::i8 ? place_in_i8_panels
                                          : place_in_panels;
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
  const auto elements = dtype == DType::f32  ? f32_panel_elements
                        : dtype == DType::i8 ? i8_panel_elements
                                             : panel_elements;
  return layout == Layout::panels ? elements(rows, columns) : elements(columns, rows);
}

/// The axis along which a product contracts a matrix in this layout.
int contracted_axis(Layout layout) { return layout == Layout::panels ? 0 : 1; }

/// Maps the elements of a quantised matrix to their integers and scales in memory. A tensor with
/// more than two axes counts as a matrix: its last axis is the columns, the others together are the
/// rows.
class QuantizedMatrix {
 public:
  QuantizedMatrix(const Storage& storage, const Shape& shape)
      : q_(storage.quantized),
        in_panels_(storage.layout != Layout::rows),
        rows_(shape.without_last(1).elements()),
        columns_(shape.size(-1)) {
    const int64_t line = q_.axis == 0 ? rows_ : columns_;
    size_ = q_.group == 0 ? std::max<int64_t>(line, 1) : q_.group;
    per_line_ = ceil_div(line, size_);
    panels_ = {line, q_.axis == 0 ? columns_ : rows_, q_.bits, q_.group};
  }

  int most() const { return panels_.most(); }
  int64_t scales() const {
    return in_panels_ ? panels_.scale_count() : per_line_ * (q_.axis == 0 ? columns_ : rows_);
  }
  /// Returns the offset of the scales in bytes; the integers lie in front of them.
  int64_t first_scale() const {
    if (in_panels_) return panels_.integer_bytes();
    return round_up(ceil_div(rows_ * columns_ * q_.bits, int64_t{8}), int64_t{sizeof(float)});
  }
  int64_t bytes() const { return first_scale() + scales() * int64_t{sizeof(float)}; }

  struct Place {
    size_t element;  // in row-major order
    size_t scale;
    size_t byte;
    bool is_high;  // 4 bits: in the high half of the byte
  };
  /// Calls f(Place) for each element, in row-major order.
  template <typename F>
  void each(F f) const {
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t j = 0; j < columns_; ++j) f(place(i, j));
  }
  int get(const std::byte* bytes, const Place& p) const {
    if (q_.bits == 8 && !in_panels_) return static_cast<int8_t>(bytes[p.byte]);
    const auto byte = static_cast<int>(bytes[p.byte]);
    if (q_.bits == 8) return byte - panels_.offset();
    return (p.is_high ? byte >> 4 : byte & 15) - panels_.offset();
  }
  void put(std::byte* bytes, const Place& p, int value) const {
    const int stored = q_.bits == 8 && !in_panels_ ? value : value + panels_.offset();
    std::byte& byte = bytes[p.byte];
    if (q_.bits == 8)
      byte = static_cast<std::byte>(stored);
    else
      byte = p.is_high ? (byte & std::byte{15}) | static_cast<std::byte>(stored << 4)
                       : (byte & std::byte{240}) | static_cast<std::byte>(stored);
  }
  /// Sets all integers to 0.
  void clear(std::byte* bytes) const {
    const int zero = q_.bits == 4 ? 0x88 : in_panels_ ? 0x80 : 0;
    std::memset(bytes, zero, static_cast<size_t>(first_scale()));
  }

 private:
  Place place(int64_t row, int64_t column) const {
    const int64_t element = row * columns_ + column;
    if (!in_panels_)
      return {static_cast<size_t>(element), static_cast<size_t>(group_of(row, column)),
              static_cast<size_t>(element * q_.bits / 8), element % 2 == 1};
    const int64_t term = q_.axis == 0 ? row : column, at = q_.axis == 0 ? column : row;
    return {static_cast<size_t>(element), static_cast<size_t>(panels_.scale_place(term, at)),
            static_cast<size_t>(panels_.place(term, at)), panels_.is_high(term)};
  }
  int64_t group_of(int64_t row, int64_t column) const {
    return q_.axis == 0 ? row / size_ * columns_ + column : row * per_line_ + column / size_;
  }

  Quantized q_;
  bool in_panels_;
  int64_t rows_, columns_, size_, per_line_;
  IntegerPanels panels_;
};

void read_quantized(const QuantizedMatrix& m, const void* from, std::span<double> to) {
  const auto* bytes = static_cast<const std::byte*>(from);
  std::vector<float> scales(static_cast<size_t>(m.scales()));
  std::memcpy(scales.data(), bytes + m.first_scale(), scales.size() * sizeof(float));
  m.each([&](const auto& p) {
    to[p.element] = static_cast<double>(scales[p.scale]) * m.get(bytes, p);
  });
}

void write_quantized(const QuantizedMatrix& m, std::span<const double> from, void* to) {
  auto* bytes = static_cast<std::byte*>(to);
  std::vector<double> most(static_cast<size_t>(m.scales()));
  m.each([&](const auto& p) {
    const double x = std::isfinite(from[p.element]) ? std::fabs(from[p.element]) : NAN;
    double& top = most[p.scale];
    if (!(x <= top)) top = std::isnan(top) ? NAN : x;
  });
  std::vector<float> scales;
  for (const double x : most)
    scales.push_back(static_cast<float>(x) / static_cast<float>(m.most()));
  m.clear(bytes);
  m.each([&](const auto& p) {
    const float scale = scales[p.scale];
    const float x = scale > 0 ? std::nearbyint(static_cast<float>(from[p.element]) / scale) : 0;
    const auto limit = static_cast<float>(m.most());
    m.put(bytes, p, static_cast<int>(std::clamp(x, -limit, limit)));
  });
  std::memcpy(bytes + m.first_scale(), scales.data(), scales.size() * sizeof(float));
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
  if ((q.bits != 4 && q.bits != 8) || q.axis < 0 || q.axis > 7) return std::nullopt;
  return q;
}

}  // namespace

std::string Storage::str() const {
  if (is_blocks()) return std::string(kBlocksOf) + block_type_of(*this).name;
  const std::string order(kLayouts[static_cast<size_t>(layout)].name);
  if (!is_quantized()) return order;
  std::string name = fmt::format("int{}_along_{}", quantized.bits, quantized.axis);
  if (quantized.group != 0) name += fmt::format("_by_{}", quantized.group);
  return layout == Layout::rows ? name : order + "_of_" + name;
}

std::optional<Storage> storage_from_name(std::string_view name) {
  Storage storage;
  std::string_view rest = name;
  if (rest.starts_with(kBlocksOf)) {
    const BlockType* const type = find_block_type(rest.substr(kBlocksOf.size()));
    if (type == nullptr || !type->is_read()) return std::nullopt;
    return Storage{Layout::blocks, {}, static_cast<uint8_t>(type->id)};
  }
  for (const LayoutRow& row : kLayouts) {
    if (row.layout == Layout::blocks) continue;
    if (row.name == name) return Storage{row.layout};
    if (row.layout == Layout::rows || !name.starts_with(row.name)) continue;
    rest = name.substr(row.name.size());
    if (!rest.starts_with("_of_")) return std::nullopt;
    rest.remove_prefix(4);
    storage.layout = row.layout;
  }
  const auto quantized = quantized_from_name(rest);
  if (!quantized) return std::nullopt;
  storage.quantized = *quantized;
  if (storage.str() != name) return std::nullopt;
  return storage;
}

std::string storage_names() {
  std::string names;
  for (const LayoutRow& row : kLayouts)
    if (row.layout != Layout::blocks) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names +
         ", int8 or int4 followed by _along_<axis> and perhaps _by_<group>, in panels "
         "panels_of_int8 and the like, or blocks_of_ followed by NF4, FP4 or a type of GGUF files";
}

constexpr int64_t kLongestAxis = int64_t{1} << 40;

std::string storage_refusal(const Storage& storage, DType dtype, const Shape& shape) {
  if (storage.is_plain()) return "";
  if (storage.is_blocks()) {
    const int64_t elements = block_type_of(storage).elements;
    if (!is_float(dtype) || shape.rank() == 0 || !shape.is_static() ||
        shape.size(-1) % elements != 0)
      return fmt::format("rows of whole blocks of {} floats lie in {}; got {}{}", elements,
                         storage.str(), name_of(dtype), shape.str());
    return "";
  }
  const bool rows_of_integers =
      storage.is_quantized() && storage.layout == Layout::rows && shape.rank() > 2;
  if ((shape.rank() != 2 && !rows_of_integers) || !shape.is_static())
    return fmt::format("only matrices lie in {}; got {}", storage.str(), shape.str());
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape.size(axis) > kLongestAxis)
      return fmt::format("an axis of {} is too long for {}", shape.str(), storage.str());
  if (storage.quantized.axis >= shape.rank() ||
      (rows_of_integers && storage.quantized.axis != shape.rank() - 1))
    return fmt::format("the groups of {} do not stand along the last axis of {}", storage.str(),
                       shape.str());
  if (storage.is_quantized()) {
    if (!is_float(dtype)) return fmt::format("only floats are quantized; got {}", name_of(dtype));
    if (storage.layout == Layout::rows) return "";
    if (storage.quantized.axis != contracted_axis(storage.layout))
      return "groups of integers in panels stand along the terms of a product";
    // The integers of a word of four bytes share a scale.
    return storage.quantized.group % 8 == 0
               ? ""
               : fmt::format("groups in panels are multiples of 8; got {}",
                             storage.quantized.group);
  }
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32 && dtype != DType::i8)
    return fmt::format("only bf16, f16, f32 and i8 lie in panels; got {}", name_of(dtype));
  return "";
}

int64_t stored_bytes(const Storage& storage, DType dtype, const Shape& shape) {
  if (storage.is_blocks()) {
    stored_bytes({}, DType::f64, shape);  // blocks take fewer bytes than that
    const BlockType& type = block_type_of(storage);
    return shape.elements() / type.elements * type.bytes;
  }
  // With 8 bytes for an element, whole panels fit, and integers with as many scales.
  if (!storage.is_plain()) {
    Shape whole = shape;
    whole[-2] = Dim(round_up(shape.size(-2), kPanelTerms));
    whole[-1] = Dim(round_up(shape.size(-1), kPanelColumns));
    stored_bytes({}, DType::f64, whole);
  }
  if (storage.is_quantized()) return QuantizedMatrix(storage, shape).bytes();
  int64_t bytes = 0;
  const int64_t elements = elements_in_memory(storage.layout, dtype, shape);
  if (__builtin_mul_overflow(elements, static_cast<int64_t>(bytes_of(dtype)), &bytes))
    user_error("{}{} has too many bytes", name_of(dtype), shape.str());
  return bytes;
}

void read_floats(const Storage& storage, DType dtype, const Shape& shape, const void* from,
                 std::span<double> to) {
  if (storage.is_blocks()) {
    std::vector<float> values(to.size());
    dequantise(block_type_of(storage),
               {static_cast<const std::byte*>(from),
                static_cast<size_t>(stored_bytes(storage, dtype, shape))},
               values);
    std::copy(values.begin(), values.end(), to.begin());
    return;
  }
  if (storage.is_quantized()) return read_quantized(QuantizedMatrix(storage, shape), from, to);
  if (storage.layout != Layout::rows)
    return for_each_place(storage.layout, dtype, shape, [&](size_t i, int64_t place) {
      to[i] = dtype == DType::i8
                  ? static_cast<const uint8_t*>(from)[place] - IntegerPanels().offset()
                  : load_as_double(dtype, from, place);
    });
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = load_as_double(dtype, from, static_cast<int64_t>(i));
}

void write_floats(const Storage& storage, DType dtype, const Shape& shape,
                  std::span<const double> from, void* to) {
  if (storage.is_blocks()) {
    const std::vector<float> values(from.begin(), from.end());
    quantise(
        block_type_of(storage), values,
        {static_cast<std::byte*>(to), static_cast<size_t>(stored_bytes(storage, dtype, shape))});
    return;
  }
  if (storage.is_quantized()) return write_quantized(QuantizedMatrix(storage, shape), from, to);
  if (storage.layout != Layout::rows) {
    const bool is_i8 = dtype == DType::i8;
    std::memset(to, is_i8 ? IntegerPanels().offset() : 0,
                static_cast<size_t>(stored_bytes(storage, dtype, shape)));
    return for_each_place(storage.layout, dtype, shape, [&](size_t i, int64_t place) {
      if (is_i8)
        static_cast<uint8_t*>(to)[place] =
            static_cast<uint8_t>(static_cast<int>(from[i]) + IntegerPanels().offset());
      else
        store_from_double(dtype, to, place, from[i]);
    });
  }
  for (size_t i = 0; i < from.size(); ++i)
    store_from_double(dtype, to, static_cast<int64_t>(i), from[i]);
}

}  // namespace brrr
