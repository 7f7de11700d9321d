#include "backend/cpu/products/gemm_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "backend/cpu/simd/simd_types.h"
#include "base/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/gemm_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

using D = DF;
using V = VF;

/// Vectors across in the tile that reads an unpacked B for `mr` rows in all: the fewer rows, the
/// longer the run of each row of B that is read at a time.
constexpr int wide_nv(int mr) { return std::clamp(kMaxAccumulators / mr, 2, 16); }

constexpr int64_t kFloatsOfLine = 16;

struct Tile {
  int64_t kc;
  const float* a;
  int64_t a_row, a_k;
  const void* b;
  int64_t b_k;
  float* c;
  int64_t ldc;
  float alpha;
  bool load_c;
  const float* bias;
  int64_t cols;
  const float* next;  // fetched meanwhile: a line for each term, or the same one again and again
  int64_t next_step;
};

/// One element of the result from its sum; the only place where C is written.
template <bool kLoadC>
HWY_INLINE V finish(V sum, V alpha, const float* c, const float* bias) {
  const D d;
  V base = bias != nullptr ? hn::LoadU(d, bias) : hn::Zero(d);
  if constexpr (kLoadC) base = hn::Add(base, hn::LoadU(d, c));
  return hn::MulAdd(alpha, sum, base);
}

template <int kRows, int kNv, bool kLoadC>
HWY_INLINE void store_tile(const V (&sums)[kRows][kNv], const Tile& t) {
  const D d;
  const V alpha = hn::Set(d, t.alpha);
  if (t.cols == kNv * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kNv; ++v) {
        float* c = t.c + i * t.ldc + v * kLanes;
        const float* bias = t.bias != nullptr ? t.bias + v * kLanes : nullptr;
        hn::StoreU(finish<kLoadC>(sums[i][v], alpha, c, bias), d, c);
      }
    }
    return;
  }
  // Columns beyond t.cols do not exist in C or the bias.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#pragma GCC unroll 16
  for (int v = 0; v < kNv; ++v) {
    const int64_t count = std::clamp<int64_t>(t.cols - v * kLanes, 0, kLanes);
    if (count == 0) break;
    const auto exists = hn::FirstN(d, static_cast<size_t>(count));
    const V bias = t.bias != nullptr ? hn::MaskedLoad(exists, d, t.bias + v * kLanes) : hn::Zero(d);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* c = t.c + i * t.ldc + v * kLanes;
      V base = bias;
      if constexpr (kLoadC) base = hn::Add(base, hn::MaskedLoad(exists, d, c));
      hn::BlendedStore(hn::MulAdd(alpha, sums[i][v], base), exists, d, c);
    }
  }
#else
  // Older instruction sets have no cheap masks: go through whole rows of our own.
  float row[kNv * kLanes] = {}, bias_row[kNv * kLanes] = {};
  const size_t bytes = static_cast<size_t>(t.cols) * sizeof(float);
  if (t.bias != nullptr) std::memcpy(bias_row, t.bias, bytes);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* c = t.c + i * t.ldc;
    if (kLoadC) std::memcpy(row, c, bytes);
#pragma GCC unroll 16
    for (int v = 0; v < kNv; ++v) {
      const float* bias = t.bias != nullptr ? bias_row + v * kLanes : nullptr;
      hn::StoreU(finish<kLoadC>(sums[i][v], alpha, row + v * kLanes, bias), d, row + v * kLanes);
    }
    std::memcpy(c, row, bytes);
  }
#endif
}

/// Floats that a tile fetches ahead of the panel that it reads for the first time.
constexpr int64_t kFarAhead = 1024;

/// kRows x (kNv vectors) of C, summed in registers over all kc terms in order. B holds T. With kFar
/// it is f32, lies in panels and comes from memory.
template <int kRows, int kNv, typename T, bool kFar = false>
void tile(const Tile& t) {
  const D d;
  V sums[kRows][kNv];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kNv; ++v) sums[i][v] = hn::Zero(d);
      // C is needed only after kc steps: fetch it meanwhile.
#pragma GCC unroll 16
    for (int v = 0; v < kNv; ++v) __builtin_prefetch(t.c + i * t.ldc + v * kLanes, 1, 3);
  }
  // Rows are addressed as one base per three rows plus 0, 1 or 2 strides, which fit x86 address
  // modes and leave registers for the rest.
  constexpr int kBases = (kRows + 2) / 3;
  const float* base[kBases];
  const int64_t a_row = t.a_row, a_k = t.a_k, b_k = t.b_k;
#pragma GCC unroll 16
  for (int g = 0; g < kBases; ++g) base[g] = t.a + 3 * g * a_row;
  const T* b = static_cast<const T*>(t.b);
  // Rows of B to fetch ahead: about 32 lines, so that they do not push each other out of the cache
  // when the rows are a multiple of its way size apart.
  constexpr int kAhead = std::clamp(32 * 16 / (kNv * kWidth), 2, 8);
  constexpr int kLine = 64 / static_cast<int>(sizeof(T));  // elements of a cache line
  const float* next = t.next;
  for (int64_t k = t.kc; k > 0; --k) {
#pragma GCC unroll 16
    for (int v = 0; v < kNv; v += std::max(1, kLine / kWidth)) {
      prefetch(b + kAhead * b_k + v * kLanes);
    }
    if constexpr (kFar) {
#pragma GCC unroll 2
      for (int64_t line = 0; line < kPanelColumns; line += kFloatsOfLine)
        prefetch_far(b + kFarAhead + line);
    } else if constexpr (kRows == kMr) {
      prefetch_far(next);
      next += t.next_step;
    }
    if constexpr (kNv <= 2) {
      V bv[kNv];
#pragma GCC unroll 16
      for (int v = 0; v < kNv; ++v) bv[v] = load(b + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const V av = hn::Set(d, base[i / 3][(i % 3) * a_row]);
#pragma GCC unroll 16
        for (int v = 0; v < kNv; ++v) sums[i][v] = hn::MulAdd(av, bv[v], sums[i][v]);
      }
    } else {
      V av[kRows];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) av[i] = hn::Set(d, base[i / 3][(i % 3) * a_row]);
#pragma GCC unroll 16
      for (int v = 0; v < kNv; ++v) {
        const V bv = load(b + v * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) sums[i][v] = hn::MulAdd(av[i], bv, sums[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int g = 0; g < kBases; ++g) base[g] += a_k;
    b += b_k;
  }
  if (t.load_c) {
    store_tile<kRows, kNv, true>(sums, t);
  } else {
    store_tile<kRows, kNv, false>(sums, t);
  }
}

/// C of one row from its sums.
void finish_row(const GemmBlock& block, int64_t cols, const float* sums) {
  const D d;
  const V alpha = hn::Set(d, block.alpha);
  const auto finish_at = [&](V sum, float* c, const float* bias) HWY_ATTR {
    hn::StoreU(
        block.load_c ? finish<true>(sum, alpha, c, bias) : finish<false>(sum, alpha, c, bias), d,
        c);
  };
  int64_t j = 0;
  for (; j + kLanes <= cols; j += kLanes)
    finish_at(hn::LoadU(d, sums + j), block.c + j,
              block.bias != nullptr ? block.bias + j : nullptr);
  if (j == cols) return;
  float sum[kLanes] = {}, c[kLanes] = {}, bias[kLanes] = {};
  const auto bytes = static_cast<size_t>(cols - j) * sizeof(float);
  std::memcpy(sum, sums + j, bytes);
  if (block.load_c) std::memcpy(c, block.c + j, bytes);
  if (block.bias != nullptr) std::memcpy(bias, block.bias + j, bytes);
  finish_at(hn::LoadU(d, sum), c, block.bias != nullptr ? bias : nullptr);
  std::memcpy(block.c + j, c, bytes);
}

/// One row: C and the sums are short, B is the work. Rows of B are read from end to end, as memory
/// likes it, four at a time, into sums in `sums` ([cols]); the order of every sum is the tile's.
template <typename T>
void multiply_row(const GemmBlock& block, int64_t cols, float* sums) {
  const D d;
  const T* const all_b = static_cast<const T*>(block.b);
  std::memset(sums, 0, static_cast<size_t>(cols) * sizeof(float));
  int64_t k = 0;
  const auto add_rows = [&]<int kCount>(std::integral_constant<int, kCount>) HWY_ATTR {
    V a[kCount];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) a[r] = hn::Set(d, block.a[(k + r) * block.a_k]);
    const T* b = all_b + k * block.b_k;
    constexpr int64_t kLine = 64 / sizeof(T), kRowsAhead = 16;
    for (int64_t j = 0; j < cols; j += kLanes) {
      // Rows may be too short for the hardware to notice that they are read on and on.
      if (j % kLine == 0) {
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) prefetch_far(b + (kRowsAhead + r) * block.b_k + j);
      }
      V sum = hn::LoadU(d, sums + j);
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        sum = hn::MulAdd(a[r], load(b + r * block.b_k + j), sum);
      }
      hn::StoreU(sum, d, sums + j);
    }
    k += kCount;
  };
  while (k + 4 <= block.kc) add_rows(std::integral_constant<int, 4>());
  while (k < block.kc) add_rows(std::integral_constant<int, 1>());
  finish_row(block, cols, sums);
}

/// One row times panels: B is read from end to end. v... are the vectors of 16 columns.
template <size_t... v>
void multiply_row_panels(const GemmBlock& block, std::index_sequence<v...>) {
  constexpr int64_t kAhead = 4 * kPanelHalf;
  const D d;
  const auto* panel = static_cast<const uint16_t*>(block.b);
  for (int64_t j = 0; j < block.cols; j += kPanelColumns, panel += kPanelColumns * block.b_k) {
    V sums[2][sizeof...(v)];
    for (auto& half : sums) ((half[v] = hn::Zero(d)), ...);
    const uint16_t* from = panel;
    for (int64_t k = 0; k < block.kc; k += kPanelTerms) {
      for (auto& half : sums) {
        for (int64_t i = 0; i < kPanelTerms; i += 2, from += kPanelPair) {
          prefetch_far(from + kAhead);
          const V a0 = hn::Set(d, block.a[(k + i) * block.a_k]);
          const V a1 = hn::Set(d, block.a[(k + i + 1) * block.a_k]);
          const auto add = [&](V& sum, const uint16_t* words) HWY_ATTR {
            V even, odd;
            widen_pairs(d, Bf16{}, hn::LoadU(d, reinterpret_cast<const float*>(words)), &even,
                        &odd);
            sum = hn::MulAdd(a1, odd, hn::MulAdd(a0, even, sum));
          };
          (add(half[v], from + v * 2 * kLanes), ...);
        }
      }
    }
    (hn::StoreU(sums[0][v], d, block.row_sums + j + v * kLanes), ...);
    (hn::StoreU(sums[1][v], d, block.row_sums + j + 16 + v * kLanes), ...);
  }
  finish_row(block, block.cols, block.row_sums);
}

/// A few rows times a transposed B, which is only read once: transposed in registers, not packed. A
/// few vectors of columns at a time, because each is one chain of dependent multiply-adds. The
/// columns from j are kNv whole vectors.
template <int kRows, int kNv, typename T>
HWY_INLINE void multiply_rows_trans(const GemmBlock& block, int64_t j) {
  const D d;
  const int64_t ld = block.b_k;
  const T* b = static_cast<const T*>(block.b) + j * ld;
  V sums[kRows][kNv];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) sums[i][v] = hn::Zero(d);
  const auto add = [&](int64_t k, int v, V column) HWY_ATTR {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const V a = hn::Set(d, block.a[i * block.a_row + k * block.a_k]);
      sums[i][v] = hn::MulAdd(a, column, sums[i][v]);
    }
  };
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; k + kTerms<T> <= block.kc; k += kTerms<T>) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      const T* from = b + v * kLanes * ld + k;
      prefetch_rows<kNv>(from, ld, k);
      V columns[kTerms<T>];
      transpose_terms<kWidth>(from, ld, columns);
#pragma GCC unroll 8
      for (int t = 0; t < kTerms<T>; ++t) add(k + t, v, columns[t]);
    }
  }
#endif
  for (; k < block.kc; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      float column[kLanes];
      for (int r = 0; r < kLanes; ++r) column[r] = widen(b[(v * kLanes + r) * ld + k]);
      add(k, v, hn::LoadU(d, column));
    }
  }
  const V alpha = hn::Set(d, block.alpha);
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      const int64_t at = j + v * kLanes;
      const float* bias = block.bias != nullptr ? block.bias + at : nullptr;
      float* c = block.c + i * block.ldc + at;
      hn::StoreU(block.load_c ? finish<true>(sums[i][v], alpha, c, bias)
                              : finish<false>(sums[i][v], alpha, c, bias),
                 d, c);
    }
  }
}

using TileFunction = void (*)(const Tile&);

// Narrow tiles read a packed B or what wide ones leave of an unpacked one.
template <typename T, bool kFar, int... kRowsMinus1>
constexpr auto narrow_tiles(std::integer_sequence<int, kRowsMinus1...>) {
  return std::array<std::array<TileFunction, 2>, kMr>{
      {{&tile<kRowsMinus1 + 1, 1, T, kFar>, &tile<kRowsMinus1 + 1, 2, T, kFar>}...}};
}
template <typename T, int... kRowsMinus1>
constexpr auto wide_tiles(std::integer_sequence<int, kRowsMinus1...>) {
  return std::array<TileFunction, kMr>{{&tile<kRowsMinus1 + 1, wide_nv(kRowsMinus1 + 1), T>...}};
}
template <typename T>
constexpr auto kNarrow = narrow_tiles<T, false>(std::make_integer_sequence<int, kMr>());
constexpr auto kFarTiles = narrow_tiles<float, true>(std::make_integer_sequence<int, kMr>());
template <typename T>
constexpr auto kWide = wide_tiles<T>(std::make_integer_sequence<int, kMr>());

template <int kRows, typename T>
void multiply_trans(const GemmBlock& block, int64_t whole) {
  // Rows of B read side by side: 16 of 16-bit numbers, more were slower.
  constexpr int kNv = sizeof(T) == 4 ? 2 : std::max(1, 16 / kWidth);
  int64_t j = 0;
  for (; j + kNv * kLanes <= whole; j += kNv * kLanes) multiply_rows_trans<kRows, kNv, T>(block, j);
  for (; j < whole; j += kLanes) multiply_rows_trans<kRows, 1, T>(block, j);
}

/// At most kGemmFewRows rows of A and B as it lies, transposed: reading B is the work.
template <typename T>
void multiply_few_trans(const GemmBlock& block, int64_t whole) {
  static_assert(kGemmFewRows == 4);
  switch (block.rows) {
    case 1:
      return multiply_trans<1, T>(block, whole);
    case 2:
      return multiply_trans<2, T>(block, whole);
    case 3:
      return multiply_trans<3, T>(block, whole);
    default:
      return multiply_trans<4, T>(block, whole);
  }
}

/// A few rows (at most kMr) and B as it lies: the longest runs of its rows that registers allow.
template <typename T>
void multiply_few(const GemmBlock& block, int64_t whole, Tile t) {
  const int64_t rows = block.rows, width = wide_nv(static_cast<int>(rows)) * kLanes;
  for (int64_t j = 0; j < whole; j += t.cols) {
    const bool wide = whole - j >= width;
    t.cols = wide ? width : std::min<int64_t>(kNr, whole - j);
    t.b = static_cast<const T*>(block.b) + j;
    t.c = block.c + j;
    t.bias = block.bias != nullptr ? block.bias + j : nullptr;
    (wide ? kWide<T>[rows - 1] : kNarrow<T>[rows - 1][t.cols > kLanes])(t);
  }
}

/// Row panel i of A times the columns of B's panels from j on.
void multiply_tile(const GemmBlock& block, int64_t i, int64_t j, Tile& t) {
  const int64_t rows = std::min<int64_t>(kMr, block.rows - i);
  t.a = block.a + i / kMr * block.a_panel;
  t.cols = std::min<int64_t>(kNr, block.cols - j);
  t.b = static_cast<const float*>(block.b) + j / block.b_width * block.b_panel + j % block.b_width;
  t.c = block.c + i * block.ldc + j;
  t.bias = block.bias != nullptr ? block.bias + j : nullptr;
  t.next = block.a_far ? t.a + block.a_panel : t.a;
  // The first tile of a row fetches the next row's A.
  t.next_step = block.a_far && j == 0 ? kFloatsOfLine : 0;
  const bool is_far = block.b_far && i == 0 && j % block.b_width == 0;
  (is_far ? kFarTiles : kNarrow<float>)[rows - 1][t.cols > kLanes](t);
}

/// B in panels of f32. Panels that come from memory are read by all rows before the next one is,
/// where the rows stay in a near cache; else each row panel goes by all panels of B.
void multiply_in_panels(const GemmBlock& block, Tile t) {
  constexpr int64_t kNearRows = int64_t{1} << 17;  // floats
  if (block.b_far && block.rows * block.kc <= kNearRows) {
    for (int64_t j = 0; j < block.cols; j += kNr)
      for (int64_t i = 0; i < block.rows; i += kMr) multiply_tile(block, i, j, t);
    return;
  }
  for (int64_t i = 0; i < block.rows; i += kMr)
    for (int64_t j = 0; j < block.cols; j += kNr) multiply_tile(block, i, j, t);
}

void multiply(const GemmBlock& block) {
  Tile t{};
  t.kc = block.kc;
  t.a = t.next = block.a;
  t.a_row = block.a_row;
  t.a_k = block.a_k;
  t.b_k = block.b_k;
  t.ldc = block.ldc;
  t.alpha = block.alpha;
  t.load_c = block.load_c;
  if (block.b_width > 0) return multiply_in_panels(block, t);
  if (block.b_panels)
    return multiply_row_panels(block, std::make_index_sequence<16 / static_cast<size_t>(kLanes)>());
  const int64_t whole = block.b_tail != nullptr ? block.cols / kLanes * kLanes : block.cols;
  with_type(block.b_dtype, [&](auto type) {
    using T = decltype(type);
    if (block.b_trans) {
      multiply_few_trans<T>(block, whole);
    } else if (block.rows == 1 && block.row_sums != nullptr) {
      multiply_row<T>(block, whole, block.row_sums);
    } else {
      multiply_few<T>(block, whole, t);
    }
  });
  if (whole == block.cols) return;
  t.b = block.b_tail;
  t.b_k = kNr;
  t.c = block.c + whole;
  t.bias = block.bias != nullptr ? block.bias + whole : nullptr;
  t.cols = block.cols - whole;
  kNarrow<float>[block.rows - 1][0](t);
}

}  // namespace

const GemmKernels& kernels() {
  static constexpr GemmKernels kKernels = {kMr, kNr, kLanes, &multiply};
  return kKernels;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(kernels);
const GemmKernels& gemm_kernels() { return HWY_DYNAMIC_DISPATCH(kernels)(); }
}  // namespace brrr::cpu
#endif
