#pragma once
// Tensors in the memory of the host, row by row.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "brrr/error.h"

namespace brrr {
inline namespace v1 {

enum class DType {
  f32 = BRRR_F32,
  f64 = BRRR_F64,
  bf16 = BRRR_BF16,
  f16 = BRRR_F16,
  i32 = BRRR_I32,
  i64 = BRRR_I64,
  i8 = BRRR_I8,
  u8 = BRRR_U8,
  boolean = BRRR_BOOL,
  f8e4m3 = BRRR_F8E4M3,
  f8e5m2 = BRRR_F8E5M2,
  i16 = BRRR_I16,
  u16 = BRRR_U16,
  u32 = BRRR_U32,
  u64 = BRRR_U64
};
inline constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16,
                       i32 = DType::i32, i64 = DType::i64, i8 = DType::i8, u8 = DType::u8,
                       boolean = DType::boolean;

/// The dtype whose elements are numbers of that type.
template <typename T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DType::i16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::u16;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return DType::u32;
  else {
    static_assert(std::is_same_v<T, uint64_t>, "no dtype has elements of this type");
    return DType::u64;
  }
}

/// A tensor. Copies share the memory. What is computed from tensors reads them where they lie: they
/// must not change meanwhile.
class Tensor {
 public:
  Tensor() : Tensor(DType::f32, {0}) {}
  /// Zeros.
  Tensor(DType dtype, const std::vector<int64_t>& sizes) {
    detail::require_library();
    brrr_tensor* made = nullptr;
    detail::check(brrr_tensor_create(static_cast<brrr_dtype>(dtype), sizes.data(),
                                     static_cast<int>(sizes.size()), &made));
    take(made);
  }
  /// As many values as the sizes say, row by row. Throws Error for another number.
  template <typename T>
  static Tensor of(const std::vector<int64_t>& sizes, const std::vector<T>& values) {
    Tensor t(dtype_for<T>(), sizes);
    if (t.bytes() != values.size() * sizeof(T))
      throw Error(BRRR_USAGE, "Tensor::of: " + std::to_string(values.size()) + " values for " +
                                  std::to_string(t.bytes() / sizeof(T)) + " elements");
    if (t.bytes() > 0) std::memcpy(t.data(), values.data(), t.bytes());
    return t;
  }
  /// Over memory of the caller, which must outlive the tensor and its copies.
  template <typename T>
  static Tensor borrow(const std::vector<int64_t>& sizes, T* data) {
    detail::require_library();
    brrr_tensor* made = nullptr;
    detail::check(brrr_tensor_borrow(static_cast<brrr_dtype>(dtype_for<T>()), sizes.data(),
                                     static_cast<int>(sizes.size()), data, nullptr, nullptr,
                                     &made));
    return Tensor(made);
  }
  /// Takes over a DLPack tensor without a copy.
  static Tensor from_dlpack(DLManagedTensor* managed) {
    detail::require_library();
    brrr_tensor* made = nullptr;
    detail::check(brrr_tensor_from_dlpack(managed, &made));
    return Tensor(made);
  }
  /// The same memory for another library, which calls the deleter.
  DLManagedTensor* to_dlpack() const {
    DLManagedTensor* made = nullptr;
    detail::check(brrr_tensor_to_dlpack(handle(), &made));
    return made;
  }

  DType dtype() const { return static_cast<DType>(brrr_tensor_dtype(handle())); }
  std::vector<int64_t> sizes() const {
    const int64_t* first = brrr_tensor_sizes(handle());
    return {first, first + brrr_tensor_rank(handle())};
  }
  void* data() const { return brrr_tensor_data(handle()); }
  size_t bytes() const { return brrr_tensor_bytes(handle()); }
  /// The elements. Throws Error for another dtype.
  template <typename T>
  std::span<T> as() const {
    if (dtype() != dtype_for<std::remove_const_t<T>>())
      throw Error(BRRR_USAGE, "Tensor::as: the elements are of another dtype");
    return {static_cast<T*>(data()), bytes() / sizeof(T)};
  }

  /// For the C interface; belongs to the tensor.
  brrr_tensor* handle() const { return handle_.get(); }
  /// Takes over a handle of the C interface.
  explicit Tensor(brrr_tensor* made) { take(made); }

 private:
  void take(brrr_tensor* made) { handle_ = std::shared_ptr<brrr_tensor>(made, &brrr_tensor_free); }
  std::shared_ptr<brrr_tensor> handle_;
};

/// Tensors by name.
using Tensors = std::vector<std::pair<std::string, Tensor>>;

}  // namespace v1
}  // namespace brrr
