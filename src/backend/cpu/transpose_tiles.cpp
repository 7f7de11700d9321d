#include "backend/cpu/transpose_tiles.h"

#include <algorithm>

#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/transpose_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
HWY_INLINE void transpose_plain(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
                                int64_t columns) {
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) y[j * y_stride + i] = x[i * x_stride + j];
}

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_4x4(const float* x, int64_t xs, float* y, int64_t ys) {
  const hn::Full128<float> d;
  const hn::Full128<double> d2;
  const auto a0 = hn::LoadU(d, x), a1 = hn::LoadU(d, x + xs);
  const auto a2 = hn::LoadU(d, x + 2 * xs), a3 = hn::LoadU(d, x + 3 * xs);
  const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, a0, a1));
  const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, a2, a3));
  const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, a0, a1));
  const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, a2, a3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)), d, y);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)), d, y + ys);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)), d, y + 2 * ys);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23)), d, y + 3 * ys);
}
#endif

template <typename T>
void transpose(const void* from, int64_t x_stride, void* to, int64_t y_stride, int64_t rows,
               int64_t columns) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  // A tile of 16 columns by 64 rows: whole cache lines of y are written at a time.
  constexpr int64_t kRows = 64, kColumns = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kRows) {
    for (int64_t j0 = 0; j0 < columns; j0 += kColumns) {
      const int64_t i1 = std::min(rows, i0 + kRows), j1 = std::min(columns, j0 + kColumns);
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == 4) {
        int64_t i = i0;
        for (; i + 4 <= i1; i += 4) {
          int64_t j = j0;
          for (; j + 4 <= j1; j += 4)
            transpose_4x4(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride);
          transpose_plain(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride, 4,
                          j1 - j);
        }
        transpose_plain(x + i * x_stride + j0, x_stride, y + j0 * y_stride + i, y_stride, i1 - i,
                        j1 - j0);
        continue;
      }
#endif
      transpose_plain(x + i0 * x_stride + j0, x_stride, y + j0 * y_stride + i0, y_stride, i1 - i0,
                      j1 - j0);
    }
  }
}

}  // namespace

TransposeFunction transpose_table(int64_t element_bytes) {
  return element_bytes == 1   ? &transpose<uint8_t>
         : element_bytes == 2 ? &transpose<uint16_t>
         : element_bytes == 4 ? &transpose<float>
                              : &transpose<uint64_t>;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(transpose_table);
TransposeFunction transpose_function(int64_t element_bytes) {
  return HWY_DYNAMIC_DISPATCH(transpose_table)(element_bytes);
}
}  // namespace brrr::cpu
#endif
