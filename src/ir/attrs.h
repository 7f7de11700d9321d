#pragma once
// Attributes of a node: a small map from name to value, kept sorted, compared and printed exactly.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "ir/region.h"

namespace brrr {

/// Printed as true, 3, 1e-05, "text", (0,2,1), (0.5,1e-05), f32, [8,length]; a region as its graph
/// between braces, a node on each line.
/// An integer is a uint64_t, and a list one of uint64_t, only where an int64_t cannot hold it.
using AttrValue =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                 DType, Shape, Region, uint64_t, std::vector<uint64_t>>;

class Attrs {
 public:
  using Entry = std::pair<std::string, AttrValue>;

  Attrs() = default;
  Attrs(std::initializer_list<Entry> entries);

  /// An unsigned integer, or a list of them, that an int64_t can hold is kept as int64_t.
  void set(std::string_view name, AttrValue value);
  const AttrValue* find(std::string_view name) const;
  /// Throws InternalError when absent or of another type: infer() has checked the node before.
  template <typename T>
  const T& get(std::string_view name) const {
    const AttrValue* value = find(name);
    if (value == nullptr || !std::holds_alternative<T>(*value)) missing(name);
    return std::get<T>(*value);
  }
  template <typename T>
  T get_or(std::string_view name, T fallback) const {
    const AttrValue* value = find(name);
    return value != nullptr && std::holds_alternative<T>(*value) ? std::get<T>(*value) : fallback;
  }

  bool empty() const { return entries().empty(); }
  auto begin() const { return entries().begin(); }
  auto end() const { return entries().end(); }
  auto begin() { return own().begin(); }
  auto end() { return own().end(); }
  /// Equal attributes print as the same text: numbers are equal when their bits are, and NaN is
  /// equal to NaN.
  bool operator==(const Attrs&) const;
  /// "{axis=1, eps=1e-05}", "" when empty.
  std::string str() const;

 private:
  [[noreturn]] void missing(std::string_view name) const;
  const std::vector<Entry>& entries() const;
  std::vector<Entry>& own();

  // Copies share it until one of them is changed.
  std::shared_ptr<std::vector<Entry>> entries_;
};

/// The same for equal attributes.
uint64_t hash_of(const Attrs& attrs);

/// The shortest text that parses back to the same bits; always has a '.', an exponent or a name.
std::string double_text(double value);

}  // namespace brrr
