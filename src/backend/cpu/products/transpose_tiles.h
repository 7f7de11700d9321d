#pragma once
// The transpose of a matrix on one thread, by tiles that stay in registers and L1.

#include <cstdint>

namespace brrr::cpu {

/// y[j * y_stride + i] = x[i * x_stride + j] for i < rows, j < columns; strides in elements.
using TransposeFunction = void (*)(const void* x, int64_t x_stride, void* y, int64_t y_stride,
                                   int64_t rows, int64_t columns);
/// For elements of 1, 2, 4 or 8 bytes.
TransposeFunction transpose_function(int64_t element_bytes);

}  // namespace brrr::cpu
