#pragma once
// A tensor of the reference interpreter, row-major whatever its storage. A double holds every
// element of every dtype exactly but those of 64-bit integers, which have storage of their own:
// nothing is ever rounded on its way into or out of a RefTensor that its dtype could hold.

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace brrr {

struct RefTensor {
  RefTensor() = default;
  /// Zeros.
  explicit RefTensor(Type of_type);
  /// The values as the dtype holds them: those of 64-bit integers as integer_from_double says.
  RefTensor(Type of_type, std::vector<double> values);

  Type type;
  std::vector<double> data;             // of every dtype but i64 and u64
  std::vector<int64_t> signed_data;     // of i64
  std::vector<uint64_t> unsigned_data;  // of u64

  bool operator==(const RefTensor&) const = default;
  size_t size() const;

  /// The storage of doubles, int64_t or uint64_t.
  template <typename T>
  const std::vector<T>& of() const {
    if constexpr (std::is_same_v<T, int64_t>)
      return signed_data;
    else if constexpr (std::is_same_v<T, uint64_t>)
      return unsigned_data;
    else
      return data;
  }
  template <typename T>
  std::vector<T>& of() {
    return const_cast<std::vector<T>&>(std::as_const(*this).of<T>());
  }
  /// f(the storage that the dtype uses), for code that moves elements and computes nothing.
  template <typename F>
  auto visit(F&& f) const {
    return visit_storage(*this, f);
  }
  template <typename F>
  auto visit(F&& f) {
    return visit_storage(*this, f);
  }
  /// The elements of a tensor of the same dtype and size.
  void copy_elements(const RefTensor& from);

  /// Element i of an integer or boolean tensor; see wrapped_to (base/dtype.h) for its 64 bits.
  uint64_t bits(size_t i) const;
  template <typename T>
  T integer(size_t i) const {
    return static_cast<T>(bits(i));
  }
  /// Wraps around.
  void set_bits(size_t i, uint64_t bits);
  /// Element i of any dtype, the nearest double.
  double number(size_t i) const;
  /// Floats are not rounded to their dtype; integers become what integer_from_double says.
  void set_number(size_t i, double value);

 private:
  template <typename Self, typename F>
  static auto visit_storage(Self& self, F&& f) {
    if (self.type.dtype == DType::i64) return f(self.signed_data);
    if (self.type.dtype == DType::u64) return f(self.unsigned_data);
    return f(self.data);
  }
};

/// The tensor that lies in memory, and back; floats are rounded to their dtype, to nearest even.
RefTensor read_tensor(const Type& type, const void* from);
void write_tensor(const RefTensor& tensor, void* to);
/// The tensor in memory whose element i, in row-major order, is f(i).
template <typename F>
void fill_tensor(const Type& type, void* to, F f) {
  const int64_t n = type.shape.elements();
  if (type.storage.is_plain()) {
    for (int64_t i = 0; i < n; ++i) store_from_double(type.dtype, to, i, f(i));
    return;
  }
  RefTensor tensor(type);
  for (int64_t i = 0; i < n; ++i) tensor.set_number(static_cast<size_t>(i), f(i));
  write_tensor(tensor, to);
}

}  // namespace brrr
