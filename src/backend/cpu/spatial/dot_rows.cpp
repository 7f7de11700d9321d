#include "backend/cpu/spatial/dot_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/dot_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

// Vectors of sums in registers: enough of them that none waits for its own last multiply-add.
constexpr int kSums = kMaxAccumulators >= 16 ? 16 : 8;
constexpr int kMostColumns = 4;
/// Rows of a at a time, beside so many columns.
constexpr int dot_tile_rows(int columns) { return columns <= 2 ? kSums / 2 : kSums / 4; }

/// The sum of the lanes of each of kSums vectors.
HWY_INLINE void add_lanes(const float* vectors, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  std::copy(vectors, vectors + kSums, sums);
#else
#pragma GCC unroll 4
  for (int i = 0; i < kSums; i += kWidth) {
    VF sum = hn::Zero(DF());
#pragma GCC unroll 4
    for (int lane = 0; lane < kWidth; lane += kTerms<float>) {
      VF columns[kTerms<float>];
      transpose_terms<kWidth>(vectors + i * kLanes + lane, kLanes, columns);
#pragma GCC unroll 4
      for (int k = 0; k < kTerms<float>; ++k) sum = hn::Add(sum, columns[k]);
    }
    store(sum, sums + i);
  }
#endif
}

/// kRows rows of a by kColumns rows of b: y at [i * ldy + j].
template <int kRows, int kColumns, typename T>
void dot_tile(const T* a, const T* b, int64_t terms, float* y, int64_t ldy) {
  VF sums[kRows][kColumns];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) sums[i][j] = hn::Zero(DF());
  each_vector(terms, [&](auto v, int64_t t) BRRR_INLINE_BODY {
    VF right[kColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) right[j] = v.load(b + j * terms + t);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      // The rows that the next tile reads.
      prefetch(a + (kRows + i) * terms + t);
      const VF left = v.load(a + i * terms + t);
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) sums[i][j] = hn::MulAdd(left, right[j], sums[i][j]);
    }
  });
  alignas(64) float vectors[kSums * kLanes], all[kSums];
  if constexpr (kRows * kColumns < kSums) std::fill(vectors, vectors + kSums * kLanes, 0.0f);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) store(sums[i][j], vectors + (i * kColumns + j) * kLanes);
  add_lanes(vectors, all);
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j) y[i * ldy + j] = all[i * kColumns + j];
}

template <int kColumns, typename T>
void dot_columns(const T* a, int64_t rows, const T* b, int64_t terms, float* y, int64_t ldy) {
  constexpr int kRows = dot_tile_rows(kColumns);
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    dot_tile<kRows, kColumns>(a + i * terms, b, terms, y + i * ldy, ldy);
  for (; i < rows; ++i) dot_tile<1, kColumns>(a + i * terms, b, terms, y + i * ldy, ldy);
}

template <typename T>
void multiply_as(const T* a, int64_t rows, const T* b, int64_t columns, int64_t terms, float* y,
                 int64_t ldy) {
  // The rows of one tile stay in L1 while the columns go by.
  constexpr int64_t kRowsAtATime = 32;
  for (int64_t i = 0; i < rows; i += kRowsAtATime) {
    const int64_t count = std::min(kRowsAtATime, rows - i);
    for (int64_t j = 0; j < columns; j += kMostColumns) {
      const T *left = a + i * terms, *right = b + j * terms;
      float* const to = y + i * ldy + j;
      switch (std::min<int64_t>(kMostColumns, columns - j)) {
        case 1:
          dot_columns<1>(left, count, right, terms, to, ldy);
          break;
        case 2:
          dot_columns<2>(left, count, right, terms, to, ldy);
          break;
        case 3:
          dot_columns<3>(left, count, right, terms, to, ldy);
          break;
        default:
          dot_columns<4>(left, count, right, terms, to, ldy);
      }
    }
  }
}

void multiply_dots(DType dtype, const void* a, int64_t rows, const void* b, int64_t columns,
                   int64_t terms, float* y, int64_t ldy) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    multiply_as(static_cast<const T*>(a), rows, static_cast<const T*>(b), columns, terms, y, ldy);
  });
}

constexpr DotRows kDots = {kLanes, &multiply_dots};

}  // namespace

const DotRows& dot_table() { return kDots; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(dot_table);
const DotRows& dot_rows() { return HWY_DYNAMIC_DISPATCH(dot_table)(); }
}  // namespace brrr::cpu
#endif
