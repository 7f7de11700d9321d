#pragma once
// The sizes and the bias of a convolution, which all of its kernels share.

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/spatial/windows.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Bytes rounded up to whole cache lines.
inline int64_t in_lines(int64_t bytes) {
  constexpr int64_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}
inline const std::byte* address_at(const void* base, int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

/// A convolution from x [n, c, in...] by w [m, c/groups, kernel...] to y [n, m, out...].
struct ConvSizes {
  int64_t n = 0, groups = 1, c = 0, m = 0;
  ops::WindowGrid grid;
  DType dtype = DType::f32;

  int64_t element() const { return static_cast<int64_t>(bytes_of(dtype)); }
  int64_t cg() const { return c / groups; }
  int64_t mg() const { return m / groups; }
  int64_t terms() const { return cg() * grid.kernel_elements(); }
  int64_t in() const { return grid.in_elements(); }
  int64_t out() const { return grid.out_elements(); }
  /// The number of window rows for which one column matrix is built.
  int64_t rows_at_a_time() const;
  int64_t column_bytes() const { return terms() * rows_at_a_time() * grid.out.back() * element(); }
};

ConvSizes sizes_of_conv(const NodeView& v);
ConvSizes sizes_of_conv_transpose(const NodeView& v);
ConvSizes sizes_of_conv_weight_grad(const NodeView& v);

/// Refuses nodes with an empty tensor or a dtype other than f32, bf16 and f16; "" if accepted.
std::string picture_float_refusal(const NodeView& v);
/// The same, and pictures with channels last.
std::string conv_float_refusal(const NodeView& v);

/// The bias operand of a conv.
class ConvBias {
 public:
  explicit ConvBias(const NodeView& v);
  int64_t scratch_bytes() const {
    return exists_ && dtype_ != DType::f32 ? in_lines(count_ * int64_t{sizeof(float)}) : 0;
  }
  /// Returns the bias in f32, converted into `wide` if it has another dtype; null if there is none.
  const float* read(const void* const* in, std::byte* wide) const;

 private:
  bool exists_ = false;
  DType dtype_ = DType::f32;
  int64_t count_ = 0;
};

}  // namespace brrr::cpu
