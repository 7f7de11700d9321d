#include "backend/cpu/products/transpose_tiles.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/transpose_tiles.cpp"
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
/// One vector of 128-bit blocks, block k from x + 4 k stride.
HWY_INLINE hn::Vec<hn::Full128<float>> load_blocks(hn::Full128<float> d, const float* x, int64_t) {
  return hn::LoadU(d, x);
}
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* x, int64_t stride) {
  const hn::Half<D> half;
  constexpr int64_t kRows = static_cast<int64_t>(hn::MaxLanes(half));
  return hn::Combine(d, load_blocks(half, x + kRows * stride, stride),
                     load_blocks(half, x, stride));
}

/// As many rows as a vector has lanes by four columns: four whole vectors of y.
constexpr int64_t kTileRows = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));
HWY_INLINE void transpose_tile(const float* x, int64_t xs, float* y, int64_t ys) {
  const hn::ScalableTag<float> d;
  const hn::RepartitionToWide<decltype(d)> d2;
  const auto a0 = load_blocks(d, x, xs), a1 = load_blocks(d, x + xs, xs);
  const auto a2 = load_blocks(d, x + 2 * xs, xs), a3 = load_blocks(d, x + 3 * xs, xs);
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

/// Blocks of 16 rows of x: whole cache lines of y are written at a time.
template <typename T>
void transpose(const void* from, int64_t x_stride, void* to, int64_t y_stride, int64_t rows,
               int64_t columns) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  constexpr int64_t kRows = 16, kColumns = 64;
  for (int64_t i0 = 0; i0 < rows; i0 += kRows) {
    const int64_t i1 = std::min(rows, i0 + kRows);
    for (int64_t j0 = 0; j0 < columns; j0 += kColumns) {
      const int64_t j1 = std::min(columns, j0 + kColumns);
      int64_t j = j0;
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == 4) {
        for (; j + 4 <= j1; j += 4) {
          int64_t i = i0;
          for (; i + kTileRows <= i1; i += kTileRows)
            transpose_tile(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride);
          transpose_plain(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride, i1 - i,
                          4);
        }
      }
#endif
      transpose_plain(x + i0 * x_stride + j, x_stride, y + j * y_stride + i0, y_stride, i1 - i0,
                      j1 - j);
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
