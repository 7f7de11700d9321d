#pragma once
// A tensor in memory of its own, row by row: what goes into a model and comes out of it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/shape.h"

namespace brrr {

/// The dtype whose elements are numbers of that type.
template <typename T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, int8_t>) return DType::i8;
  if constexpr (std::is_same_v<T, int16_t>) return DType::i16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::u16;
  if constexpr (std::is_same_v<T, uint32_t>) return DType::u32;
  if constexpr (std::is_same_v<T, uint64_t>) return DType::u64;
}

struct HostTensor {
  DType dtype = DType::f32;
  Shape shape;                   // static
  std::vector<std::byte> bytes;  // as many as dtype and shape say

  HostTensor() = default;
  /// Zeros.
  HostTensor(DType of_dtype, Shape of_shape)
      : dtype(of_dtype),
        shape(std::move(of_shape)),
        bytes(static_cast<size_t>(shape.elements()) * bytes_of(dtype)) {}
  /// Every element is `value`.
  static HostTensor filled(DType dtype, const std::vector<int64_t>& sizes, double value) {
    HostTensor t(dtype, Shape(sizes));
    for (int64_t i = 0; i < t.shape.elements(); ++i)
      store_from_double(dtype, t.bytes.data(), i, value);
    return t;
  }
  /// The values, row by row; as many as the sizes say.
  template <typename T>
  static HostTensor of(const std::vector<int64_t>& sizes, const std::vector<T>& values) {
    HostTensor t(dtype_for<T>(), Shape(sizes));
    BRRR_CHECK(t.bytes.size() == values.size() * sizeof(T), "{} values for {}", values.size(),
               t.shape.str());
    if (!t.bytes.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
    return t;
  }
  /// Element i, in row-major order, as a double.
  double number(int64_t i) const { return load_as_double(dtype, bytes.data(), i); }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  bool operator==(const HostTensor&) const = default;
};

}  // namespace brrr
