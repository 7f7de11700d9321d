#include "backend/cpu/gemm_f32_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_f32_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

// A tile keeps kMr x 2 accumulators in registers, beside two vectors of B and one element of A:
// 28 + 3 of 32 registers with AVX-512, 12 + 3 of 16 elsewhere (without fused multiply-add one more
// is needed for the product, so a tile is smaller).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#ifndef BRRR_MR
#define BRRR_MR 12
#endif
constexpr int kMr = BRRR_MR;
constexpr int kMaxAccumulators = 24;
#elif HWY_TARGET == HWY_AVX2
constexpr int kMr = 6;
constexpr int kMaxAccumulators = 12;
#else
constexpr int kMr = 4;
constexpr int kMaxAccumulators = 8;
#endif
constexpr int kNr = 2 * kLanes;

/// Vectors across in the tile that reads an unpacked B for `mr` rows in all: the fewer rows, the
/// longer the run of each row of B that is read at a time.
constexpr int wide_nv(int mr) { return std::clamp(kMaxAccumulators / mr, 2, 16); }

struct Tile {
  int64_t kc;
  const float* a;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_k;
  float* c;
  int64_t ldc;
  float alpha;
  bool load_c;
  const float* bias;
  int64_t cols;
};

HWY_INLINE void prefetch(const float* p) { __builtin_prefetch(p, 0, 3); }

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

/// kRows x (kNv vectors) of C, summed in registers over all kc terms in order.
template <int kRows, int kNv>
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
  const float* b = t.b;
  // Rows of B to fetch ahead: about 32 lines, so that they do not push each other out of the cache
  // when the rows are a multiple of its way size apart.
  constexpr int kAhead = std::clamp(32 * 16 / (kNv * kLanes), 2, 8);
  for (int64_t k = t.kc; k > 0; --k) {
#pragma GCC unroll 16
    for (int v = 0; v < kNv; v += std::max(1, 16 / kLanes)) {
      prefetch(b + kAhead * b_k + v * kLanes);
    }
    if constexpr (kNv <= 2) {
      V bv[kNv];
#pragma GCC unroll 16
      for (int v = 0; v < kNv; ++v) bv[v] = hn::LoadU(d, b + v * kLanes);
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
        const V bv = hn::LoadU(d, b + v * kLanes);
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

#if HWY_TARGET != HWY_SCALAR
/// A vector of kCount / 4 blocks: block i is four floats of row 4 i of the source.
template <int kCount>
HWY_INLINE auto load_blocks(const float* source, int64_t ld) {
  if constexpr (kCount == 4) {
    return hn::LoadU(hn::CappedTag<float, 4>(), source);
  } else {
    return hn::Combine(hn::CappedTag<float, kCount>(),
                       load_blocks<kCount / 2>(source + kCount / 2 * ld, ld),
                       load_blocks<kCount / 2>(source, ld));
  }
}

template <class VD>
struct ColumnsOf {
  VD k0, k1, k2, k3;
};
using Columns = ColumnsOf<V>;

/// Four terms of kCount rows of the source, as columns. Transposing 4 x 4 within each 128-bit block
/// leaves the rows in order, since block i holds rows 4 i to 4 i + 3.
template <int kCount>
HWY_INLINE auto transpose_blocks(const float* source, int64_t ld) {
  const hn::CappedTag<float, kCount> d;
  const hn::Repartition<double, decltype(d)> d2;
  const auto a0 = load_blocks<kCount>(source, ld), a1 = load_blocks<kCount>(source + ld, ld);
  const auto a2 = load_blocks<kCount>(source + 2 * ld, ld);
  const auto a3 = load_blocks<kCount>(source + 3 * ld, ld);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, a0, a1));
  const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, a0, a1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, a2, a3));
  const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, a2, a3));
  return ColumnsOf<hn::Vec<decltype(d)>>{hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23)),
                                         hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23)),
                                         hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23)),
                                         hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23))};
}
#endif

/// One row: C and the sums are short, B is the work. Rows of B are read from end to end, as memory
/// likes it, four at a time, into sums in `sums` ([cols]); the order of every sum is the tile's.
void multiply_row(const GemmBlock& block, int64_t cols, float* sums) {
  const D d;
  std::memset(sums, 0, static_cast<size_t>(cols) * sizeof(float));
  int64_t k = 0;
  const auto add_rows = [&]<int kCount>(std::integral_constant<int, kCount>) HWY_ATTR {
    V a[kCount];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) a[r] = hn::Set(d, block.a[(k + r) * block.a_k]);
    const float* b = block.b + k * block.b_k;
    for (int64_t j = 0; j < cols; j += kLanes) {
      V sum = hn::LoadU(d, sums + j);
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        sum = hn::MulAdd(a[r], hn::LoadU(d, b + r * block.b_k + j), sum);
      }
      hn::StoreU(sum, d, sums + j);
    }
    k += kCount;
  };
  while (k + 4 <= block.kc) add_rows(std::integral_constant<int, 4>());
  while (k < block.kc) add_rows(std::integral_constant<int, 1>());
  const V alpha = hn::Set(d, block.alpha);
  for (int64_t j = 0; j < cols; j += kLanes) {
    const float* bias = block.bias != nullptr ? block.bias + j : nullptr;
    float* c = block.c + j;
    const V sum = hn::LoadU(d, sums + j);
    hn::StoreU(
        block.load_c ? finish<true>(sum, alpha, c, bias) : finish<false>(sum, alpha, c, bias), d,
        c);
  }
}

/// One row times a transposed B, which is only read once: transposed in registers, not packed. Two
/// vectors of columns at a time, because each is one chain of dependent multiply-adds. `cols` is a
/// multiple of kLanes.
template <int kNv>
HWY_INLINE void multiply_row_trans(const GemmBlock& block, int64_t j) {
  const D d;
  const int64_t ld = block.b_k;
  const float *b = block.b + j * ld, *a = block.a;
  V sums[kNv];
#pragma GCC unroll 2
  for (int v = 0; v < kNv; ++v) sums[v] = hn::Zero(d);
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; k + 4 <= block.kc; k += 4) {
    const V a0 = hn::Set(d, a[k * block.a_k]), a1 = hn::Set(d, a[(k + 1) * block.a_k]);
    const V a2 = hn::Set(d, a[(k + 2) * block.a_k]), a3 = hn::Set(d, a[(k + 3) * block.a_k]);
#pragma GCC unroll 2
    for (int v = 0; v < kNv; ++v) {
      const float* from = b + v * kLanes * ld + k;
      const float* ahead = from + (kNv * kLanes + k / 4 % 4 * (kLanes / 4)) * ld;
#pragma GCC unroll 4
      for (int r = 0; r < kLanes / 4; ++r) prefetch(ahead + r * ld);
      const Columns columns = transpose_blocks<kLanes>(from, ld);
      sums[v] = hn::MulAdd(a0, columns.k0, sums[v]);
      sums[v] = hn::MulAdd(a1, columns.k1, sums[v]);
      sums[v] = hn::MulAdd(a2, columns.k2, sums[v]);
      sums[v] = hn::MulAdd(a3, columns.k3, sums[v]);
    }
  }
#endif
  for (; k < block.kc; ++k) {
    const V ak = hn::Set(d, a[k * block.a_k]);
#pragma GCC unroll 2
    for (int v = 0; v < kNv; ++v) {
      float column[kLanes];
      for (int r = 0; r < kLanes; ++r) column[r] = b[(v * kLanes + r) * ld + k];
      sums[v] = hn::MulAdd(ak, hn::LoadU(d, column), sums[v]);
    }
  }
  const V alpha = hn::Set(d, block.alpha);
#pragma GCC unroll 2
  for (int v = 0; v < kNv; ++v) {
    const int64_t at = j + v * kLanes;
    const float* bias = block.bias != nullptr ? block.bias + at : nullptr;
    float* c = block.c + at;
    hn::StoreU(block.load_c ? finish<true>(sums[v], alpha, c, bias)
                            : finish<false>(sums[v], alpha, c, bias),
               d, c);
  }
}

using TileFunction = void (*)(const Tile&);

template <int... kRowsMinus1>
constexpr auto narrow_tiles(std::integer_sequence<int, kRowsMinus1...>) {
  return std::array<std::array<TileFunction, 2>, kMr>{
      {{&tile<kRowsMinus1 + 1, 1>, &tile<kRowsMinus1 + 1, 2>}...}};
}
template <int... kRowsMinus1>
constexpr auto wide_tiles(std::integer_sequence<int, kRowsMinus1...>) {
  return std::array<TileFunction, kMr>{{&tile<kRowsMinus1 + 1, wide_nv(kRowsMinus1 + 1)>...}};
}
constexpr auto kNarrow = narrow_tiles(std::make_integer_sequence<int, kMr>());
constexpr auto kWide = wide_tiles(std::make_integer_sequence<int, kMr>());

void multiply(const GemmBlock& block) {
  Tile t{};
  t.kc = block.kc;
  t.a_row = block.a_row;
  t.a_k = block.a_k;
  t.ldc = block.ldc;
  t.alpha = block.alpha;
  t.load_c = block.load_c;
  const int64_t whole = block.b_tail != nullptr ? block.cols / kLanes * kLanes : block.cols;
  for (int64_t i = 0; i < block.rows; i += kMr) {
    const int rows = static_cast<int>(std::min<int64_t>(kMr, block.rows - i));
    t.a = block.a + i / kMr * block.a_panel;
    const auto run = [&](TileFunction function, int64_t j, const float* b, int64_t b_k,
                         int64_t cols) {
      t.b = b;
      t.b_k = b_k;
      t.c = block.c + i * block.ldc + j;
      t.bias = block.bias != nullptr ? block.bias + j : nullptr;
      t.cols = cols;
      function(t);
    };
    int64_t j = 0;
    if (block.b_trans) {
      for (; j + kNr <= whole; j += kNr) multiply_row_trans<2>(block, j);
      if (j < whole) multiply_row_trans<1>(block, j);
      j = whole;
    } else if (block.row_sums != nullptr) {
      multiply_row(block, whole, block.row_sums);
      j = whole;
    } else if (!block.b_packed && block.rows <= kMr) {
      const int64_t width = wide_nv(rows) * kLanes;
      for (; whole - j >= width; j += width) run(kWide[rows - 1], j, block.b + j, block.b_k, width);
    }
    for (; j < whole; j += kNr) {
      const int64_t cols = std::min<int64_t>(kNr, whole - j);
      // Packed panels are kc * kNr long, and j is here a multiple of kNr.
      const float* b = block.b + j * (block.b_packed ? block.kc : 1);
      run(kNarrow[rows - 1][cols > kLanes], j, b, block.b_k, cols);
    }
    if (whole < block.cols) {
      run(kNarrow[rows - 1][0], whole, block.b_tail, kNr, block.cols - whole);
    }
  }
}

void pack_b_plain(const float* b, int64_t ldb, int64_t kc, int64_t cols, float* out) {
  const D d;
  const int64_t whole = cols / kNr;
  for (int64_t k = 0; k < kc; ++k) {
    const float* source = b + k * ldb;
    float* to = out + k * kNr;
    for (int64_t p = 0; p < whole; ++p) {
      prefetch(source + 4 * ldb);
      prefetch(source + 4 * ldb + kNr / 2);
      const V v0 = hn::LoadU(d, source), v1 = hn::LoadU(d, source + kLanes);
      hn::StoreU(v0, d, to);
      hn::StoreU(v1, d, to + kLanes);
      source += kNr;
      to += kc * kNr;
    }
    const int64_t rest = cols - whole * kNr;
    if (rest > 0) {
      std::memcpy(to, source, static_cast<size_t>(rest) * sizeof(float));
      std::memset(to + rest, 0, static_cast<size_t>(kNr - rest) * sizeof(float));
    }
  }
}

/// kCount rows of the source become kCount columns of the panel. Transposing 4 x 4 within each
/// 128-bit block leaves the columns in order, since block i holds rows 4 i to 4 i + 3. `next` is
/// where these rows (or the next panel's) are read in the following step.
template <int kCount>
HWY_INLINE void transpose_rows(const float* source, int64_t ld, int64_t kc,
                               [[maybe_unused]] const float* next, float* to) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, kCount> d;
  for (; k + 4 <= kc; k += 4) {
    // A line of each row lasts four rounds: fetch a quarter of the rows' next lines per round.
    const float* ahead = next + (k / 4 % 4) * (kCount / 4) * ld + k / 16 * 16;
#pragma GCC unroll 4
    for (int r = 0; r < kCount / 4; ++r) prefetch(ahead + r * ld);
    const auto columns = transpose_blocks<kCount>(source + k, ld);
    float* o = to + k * kNr;
    hn::StoreU(columns.k0, d, o);
    hn::StoreU(columns.k1, d, o + kNr);
    hn::StoreU(columns.k2, d, o + 2 * kNr);
    hn::StoreU(columns.k3, d, o + 3 * kNr);
  }
#endif
  for (; k < kc; ++k) {
    for (int r = 0; r < kCount; ++r) to[k * kNr + r] = source[r * ld + k];
  }
}

void pack_b_trans(const float* b, int64_t ldb, int64_t kc, int64_t cols, float* out) {
  constexpr int64_t kStep =
      64;  // terms at a time, so that the written part of the panel stays in L1
  for (int64_t j = 0; j < cols; j += kNr, out += kc * kNr) {
    const int64_t width = std::min<int64_t>(kNr, cols - j);
    for (int64_t k = 0; k < kc; k += kStep) {
      const int64_t count = std::min(kStep, kc - k);
      const float* source = b + j * ldb + k;
      float* to = out + k * kNr;
      const float* next = k + kStep < kc ? source + kStep : b + (j + kNr) * ldb;
      int64_t r = 0;
      for (; r + kLanes <= width; r += kLanes) {
        transpose_rows<kLanes>(source + r * ldb, ldb, count, next + r * ldb, to + r);
      }
      for (; r + 4 <= width; r += 4) {
        transpose_rows<4>(source + r * ldb, ldb, count, next + r * ldb, to + r);
      }
      for (; r < width; ++r) {
        for (int64_t i = 0; i < count; ++i) to[i * kNr + r] = source[r * ldb + i];
      }
      for (int64_t i = 0; i < count && width < kNr; ++i) {
        std::memset(to + i * kNr + width, 0, static_cast<size_t>(kNr - width) * sizeof(float));
      }
    }
  }
}

void pack_b(const float* b, int64_t ldb, bool trans, int64_t kc, int64_t cols, float* out) {
  if (trans) {
    pack_b_trans(b, ldb, kc, cols, out);
  } else {
    pack_b_plain(b, ldb, kc, cols, out);
  }
}

void pack_a(const float* a, int64_t lda, bool trans, int64_t kc, int64_t rows, int64_t panel,
            int64_t row, float* out) {
  if (!trans) {
    const D d;
    for (int64_t i = 0; i < rows; ++i) {
      const float* source = a + i * lda;
      float* to = out + i / kMr * panel + i % kMr * row;
      int64_t k = 0;
      for (; k + 16 <= kc; k += 16) {
        prefetch(source + 2 * lda + k);  // hardware prefetchers stop at the page that a row ends in
#pragma GCC unroll 16
        for (int v = 0; v < 16; v += kLanes) {
          hn::StoreU(hn::LoadU(d, source + k + v), d, to + k + v);
        }
      }
      std::memcpy(to + k, source + k, static_cast<size_t>(kc - k) * sizeof(float));
    }
    return;
  }
  const int64_t whole = rows / kMr, rest = rows - whole * kMr;
  for (int64_t k = 0; k < kc; ++k) {
    const float* source = a + k * lda;
    float* to = out + k * kMr;
    for (int64_t p = 0; p < whole; ++p, source += kMr, to += panel) {
      prefetch(source + 8 * lda);
      std::memcpy(to, source, kMr * sizeof(float));
    }
    if (rest > 0) std::memcpy(to, source, static_cast<size_t>(rest) * sizeof(float));
  }
}

}  // namespace

const GemmKernels& kernels() {
  static constexpr GemmKernels kKernels = {kMr, kNr, kLanes, &pack_b, &pack_a, &multiply};
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
