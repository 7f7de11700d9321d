#pragma once
// Shapes of tensors. A dimension is a size known now, or a symbol ("batch", "length") that
// specialize() binds later; both fit one 64-bit word, so shapes are plain values.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/inline_vector.h"

namespace brrr {

class Dim {
 public:
  Dim() = default;
  /// size >= 0.
  Dim(int64_t size);  // NOLINT: a size is a dimension
  /// 1 to 10 characters of [a-z0-9_], the first a letter.
  static Dim symbol(std::string_view name);

  bool is_symbol() const { return word_ < 0; }
  /// The size. Throws InternalError for a symbol.
  int64_t size() const;
  std::string name() const;
  std::string str() const;

  bool operator==(const Dim&) const = default;
  int64_t hash_word() const { return word_; }

 private:
  int64_t word_ = 0;  // >= 0: the size; < 0: a symbol, six bits per character
};

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<Dim> dims) : dims_(dims.begin(), dims.end()) {}
  explicit Shape(std::span<const Dim> dims) : dims_(dims.begin(), dims.end()) {}
  explicit Shape(const std::vector<int64_t>& sizes) : dims_(sizes.begin(), sizes.end()) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  /// Negative axes count from the end.
  Dim& operator[](int axis) { return dims_[normalise(axis)]; }
  const Dim& operator[](int axis) const { return dims_[normalise(axis)]; }
  /// The size along `axis` (negative counts from the end). Throws InternalError for a symbol.
  int64_t size(int axis) const { return dims_[normalise(axis)].size(); }

  bool is_static() const;
  /// Number of elements, 1 for a scalar. Throws InternalError for a symbolic shape, UserError when
  /// the product does not fit 63 bits.
  int64_t elements() const;
  std::vector<int64_t> sizes() const;
  /// Row-major strides in elements.
  std::vector<int64_t> strides() const;
  /// "[8,1024,768]", "[]" for a scalar.
  std::string str() const;

  std::span<const Dim> dims() const { return dims_; }
  /// The axes before the last `count`. InternalError where there are fewer.
  Shape without_last(int count) const;
  void push_back(Dim d) { dims_.push_back(d); }
  void insert(int axis, Dim d) { dims_.insert(static_cast<size_t>(axis), d); }
  void erase(int axis) { dims_.erase(static_cast<size_t>(axis)); }
  bool operator==(const Shape&) const = default;

 private:
  size_t normalise(int axis) const;
  InlineVector<Dim, 4> dims_;
};

/// A shape around one of its axes: [outer, count, inner].
struct AxisSplit {
  int64_t outer = 1, count = 1, inner = 1;
};
/// `axis` counts from 0. Throws InternalError for a symbolic shape.
AxisSplit split_at(const Shape& shape, int64_t axis);

}  // namespace brrr
