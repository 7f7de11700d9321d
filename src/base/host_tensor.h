#pragma once
// A tensor in memory of its own, row by row: what goes into a model and comes out of it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace brrr {

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
