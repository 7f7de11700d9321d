#include <algorithm>
#include <cstring>

#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/simd/simd_types.h"
#include "base/integers.h"
#include "base/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/gemm_pack.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void pack_b_plain(const T* b, int64_t ldb, int64_t kc, int64_t cols, float* out) {
  const int64_t whole = cols / kNr;
  for (int64_t k = 0; k < kc; ++k) {
    const T* source = b + k * ldb;
    float* to = out + k * kNr;
    for (int64_t p = 0; p < whole; ++p) {
      prefetch(source + 4 * ldb);
      if (sizeof(T) == 4) prefetch(source + 4 * ldb + kNr / 2);
      const VF v0 = load(source), v1 = load(source + kLanes);
      store(v0, to);
      store(v1, to + kLanes);
      source += kNr;
      to += kc * kNr;
    }
    const int64_t rest = cols - whole * kNr;
    if (rest > 0) {
      for (int64_t j = 0; j < rest; ++j) to[j] = widen(source[j]);
      std::memset(to + rest, 0, static_cast<size_t>(kNr - rest) * sizeof(float));
    }
  }
}

/// kCount rows of the source become kCount columns of the panel. `next` is where these rows (or the
/// next panel's) are read in the following step.
template <int kCount, typename T>
HWY_INLINE void transpose_rows(const T* source, int64_t ld, int64_t kc,
                               [[maybe_unused]] const T* next, float* to) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, kCount> d;
  constexpr int64_t kLine = 64 / sizeof(T);
  for (; k + kTerms<T> <= kc; k += kTerms<T>) {
    // A line of each row lasts four rounds: fetch a quarter of the rows' next lines per round.
    const T* ahead = next + (k / kTerms<T> % 4) * (kCount / 4) * ld + k / kLine * kLine;
#pragma GCC unroll 4
    for (int r = 0; r < kCount / 4; ++r) prefetch(ahead + r * ld);
    hn::Vec<decltype(d)> columns[kTerms<T>];
    transpose_terms<kCount>(source + k, ld, columns);
    float* o = to + k * kNr;
#pragma GCC unroll 8
    for (int i = 0; i < kTerms<T>; ++i) hn::StoreU(columns[i], d, o + i * kNr);
  }
#endif
  for (; k < kc; ++k) {
    for (int r = 0; r < kCount; ++r) to[k * kNr + r] = widen(source[r * ld + k]);
  }
}

template <typename T>
void pack_b_trans(const T* b, int64_t ldb, int64_t kc, int64_t cols, float* out) {
  constexpr int64_t kStep = 64;  // terms at a time: the written part of the panel stays in L1
  for (int64_t j = 0; j < cols; j += kNr, out += kc * kNr) {
    const int64_t width = std::min<int64_t>(kNr, cols - j);
    for (int64_t k = 0; k < kc; k += kStep) {
      const int64_t count = std::min(kStep, kc - k);
      const T* source = b + j * ldb + k;
      float* to = out + k * kNr;
      const T* next = k + kStep < kc ? source + kStep : b + (j + kNr) * ldb;
      int64_t r = 0;
      for (; r + kLanes <= width; r += kLanes) {
        transpose_rows<kWidth>(source + r * ldb, ldb, count, next + r * ldb, to + r);
      }
      for (; r + 4 <= width; r += 4) {
        transpose_rows<4>(source + r * ldb, ldb, count, next + r * ldb, to + r);
      }
      for (; r < width; ++r) {
        for (int64_t i = 0; i < count; ++i) to[i * kNr + r] = widen(source[r * ldb + i]);
      }
      for (int64_t i = 0; i < count && width < kNr; ++i) {
        std::memset(to + i * kNr + width, 0, static_cast<size_t>(kNr - width) * sizeof(float));
      }
    }
  }
}

void pack_b(DType dtype, const void* b, int64_t ldb, bool trans, int64_t kc, int64_t cols,
            float* out) {
  with_type(dtype, [&](auto type) {
    const auto* source = static_cast<const decltype(type)*>(b);
    if (trans) {
      pack_b_trans(source, ldb, kc, cols, out);
    } else {
      pack_b_plain(source, ldb, kc, cols, out);
    }
  });
}

template <typename T>
void pack_a_plain(const T* a, int64_t lda, int64_t kc, int64_t rows, int64_t panel, int64_t row,
                  float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* source = a + i * lda;
    float* to = out + i / kMr * panel + i % kMr * row;
    int64_t k = 0;
    for (; k + 16 <= kc; k += 16) {
      prefetch(source + 2 * lda + k);  // hardware prefetchers stop at the page that a row ends in
#pragma GCC unroll 16
      for (int v = 0; v < 16; v += kWidth) store(load(source + k + v), to + k + v);
    }
    for (; k < kc; ++k) to[k] = widen(source[k]);
  }
}

/// Whole rows of a transposed A are widened before panels take their kMr elements each.
constexpr int64_t kMaxRun = 256;

template <typename T>
HWY_INLINE const float* widened_run(const T* source, int64_t count, float* space) {
  each_vector(count, [&](auto access, int64_t i)
                         BRRR_INLINE_BODY { access.store(access.load(source + i), space + i); });
  return space;
}
HWY_INLINE const float* widened_run(const float* source, int64_t, float*) { return source; }

template <typename T>
void pack_a_trans(const T* a, int64_t lda, int64_t kc, int64_t rows, int64_t panel, float* out) {
  constexpr int64_t kRows = kMaxRun / kMr * kMr;
  alignas(64) float space[kMaxRun];
  for (int64_t i = 0; i < rows; i += kRows, out += kRows / kMr * panel) {
    const int64_t count = std::min(kRows, rows - i);
    const int64_t whole = count / kMr, rest = count - whole * kMr;
    for (int64_t k = 0; k < kc; ++k) {
      const T* source = a + k * lda + i;
      for (int64_t line = 0; line < count; line += 64 / static_cast<int64_t>(sizeof(T))) {
        prefetch(source + 8 * lda + line);
      }
      const float* from = widened_run(source, count, space);
      float* to = out + k * kMr;
      for (int64_t p = 0; p < whole; ++p, from += kMr, to += panel) {
        std::memcpy(to, from, kMr * sizeof(float));
      }
      if (rest > 0) std::memcpy(to, from, static_cast<size_t>(rest) * sizeof(float));
    }
  }
}

void pack_a(DType dtype, const void* a, int64_t lda, bool trans, int64_t kc, int64_t rows,
            int64_t panel, int64_t row, float* out) {
  with_type(dtype, [&](auto type) {
    const auto* source = static_cast<const decltype(type)*>(a);
    if (trans) {
      pack_a_trans(source, lda, kc, rows, panel, out);
    } else {
      pack_a_plain(source, lda, kc, rows, panel, row, out);
    }
  });
}

/// A pair of terms of kLanes columns lies in kLanes words.
void pack_b_panels(const uint16_t* b, int64_t terms, int64_t k0, int64_t kc, int64_t cols,
                   float* out) {
  for (int64_t j = 0; j < round_up(cols, kPanelColumns); j += kLanes) {
    const uint16_t* panel = b + j / kPanelColumns * kPanelColumns * terms +
                            j % kPanelColumns / 16 * kPanelHalf + j % 16 * 2;
    float* to = out + j / kNr * kc * kNr + j % kNr;
    for (int64_t k = k0; k < k0 + kc; k += 2, to += 2 * kNr) {
      const uint16_t* from =
          panel + k / kPanelTerms * 2 * kPanelHalf + k % kPanelTerms / 2 * kPanelPair;
      VF even, odd;
      widen_pairs(DF(), Bf16{}, load(reinterpret_cast<const float*>(from)), &even, &odd);
      store(even, to);
      store(odd, to + kNr);
    }
  }
}

/// A line of C around the caches.
HWY_INLINE void stream_line(const float* values, float* to) {
  for (int64_t v = 0; v < 16; v += kLanes) hn::Stream(load(values + v), DF(), to + v);
}
template <typename T>
HWY_INLINE void stream_line(const float* values, T* to) {
  const hn::ScalableTag<uint8_t> bytes;
  alignas(64) T line[32];
  for (int64_t v = 0; v < 32; v += kLanes) store(load(values + v), line + v);
  const auto* from = reinterpret_cast<const uint8_t*>(line);
  for (size_t v = 0; v < 64; v += hn::Lanes(bytes)) {
    hn::Stream(hn::Load(bytes, from + v), bytes, reinterpret_cast<uint8_t*>(to) + v);
  }
}
#if HWY_TARGET != HWY_SCALAR
/// In registers: loads that span two stores would wait for both.
HWY_INLINE void stream_line(const float* values, Bf16* to) {
  const hn::ScalableTag<uint16_t> both;
  const auto half = [](const float* p) {
    return hn::DemoteTo(D16(), hn::BitCast(DI(), bf16_bits(load(p))));
  };
  for (int64_t v = 0; v < 32; v += 2 * kLanes) {
    hn::Stream(hn::Combine(both, half(values + v + kLanes), half(values + v)), both,
               reinterpret_cast<uint16_t*>(to) + v);
  }
}
#endif

template <typename T>
void store_lines(const float* values, int64_t ld, int64_t rows, int64_t cols, T* c, int64_t ldc) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += kLine) stream_line(values + i * ld + j, c + i * ldc + j);
  }
}

void store_block(const float* values, int64_t ld, int64_t rows, int64_t cols, DType dtype, void* c,
                 int64_t ldc, bool past_caches) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto* to = static_cast<T*>(c);
    const auto ends = reinterpret_cast<uintptr_t>(c) | static_cast<uintptr_t>(ldc) * sizeof(T) |
                      static_cast<uintptr_t>(cols) * sizeof(T);
    if (past_caches && ends % 64 == 0) return store_lines(values, ld, rows, cols, to, ldc);
    for (int64_t i = 0; i < rows; ++i) {
      each_vector(cols, [&](auto access, int64_t j) BRRR_INLINE_BODY {
        access.store(access.load(values + i * ld + j), to + i * ldc + j);
      });
    }
  });
}

}  // namespace

const GemmPacking& packing() {
  static constexpr GemmPacking kPacking = {&pack_b, &pack_b_panels, &pack_a, &store_block};
  return kPacking;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(packing);
const GemmPacking& gemm_packing() { return HWY_DYNAMIC_DISPATCH(packing)(); }
}  // namespace brrr::cpu
#endif
