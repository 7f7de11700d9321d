// Strips of integer products by VPDPBUSD (avx512_vnni), which multiplies the unsigned integers of
// panels by the signed ones of rows, four terms at a time.

#include <algorithm>
#include <cstring>

#include "backend/cpu/quantized/integer_kernels.h"
#include "base/errors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BRRR_VNNI target("avx512f,avx512vnni")
#endif

namespace brrr::cpu {

#if defined(__x86_64__)
namespace {

constexpr int64_t kStripRows = 12;
// Number of bytes by which a panel that lies in the L2 cache is fetched into the L1 cache.
constexpr int64_t kNearFetchAhead = 512;
// GCC 12 warns of the undefined lanes of intrinsics without a mask.
constexpr __mmask16 kAllLanes = 0xffff;

__attribute__((BRRR_VNNI, always_inline)) inline __m512i four_terms(const int8_t* a) {
  int32_t word;
  std::memcpy(&word, a, sizeof(word));
  return _mm512_set1_epi32(word);
}

/// Adds the products of four terms of kRows rows, which begin at `a`, `ld` bytes apart, and of 16
/// columns in each of `left` and `right`.
template <int kRows>
__attribute__((BRRR_VNNI, always_inline)) inline void add_four(const int8_t* a, int64_t ld,
                                                               __m512i left, __m512i right,
                                                               __m512i* left_sums,
                                                               __m512i* right_sums) {
  const int8_t *middle = a + 4 * ld, *bottom = a + 8 * ld;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const __m512i terms = four_terms((r < 4 ? a : r < 8 ? middle : bottom) + r % 4 * ld);
    left_sums[r] = _mm512_dpbusd_epi32(left_sums[r], left, terms);
    right_sums[r] = _mm512_dpbusd_epi32(right_sums[r], right, terms);
  }
}

/// How the sums of a group of terms are stored.
enum class GroupEnd {
  exact,      // stored as they are
  single,     // multiplied by the scales of the panel and of the rows, and stored
  accumulate  // multiplied by the scales of the panel and added to the results
};

/// Sums products over `steps` words of a group of terms, from each row's start on, and writes `out`
/// ([kRows, 32] int32 or f32, rows `out_ld` apart). Sums stay in registers: kRows x 2 of them,
/// beside two vectors of the panel and one of the rows. GCC 12 keeps them there only as two arrays
/// whose every loop is unrolled, which an empty asm statement ends; otherwise it stores each of
/// them in each step, which takes twice as long.
template <int kBits, int kRows, GroupEnd kEnd>
__attribute__((BRRR_VNNI, noinline)) void add_group(const uint8_t* words, const int8_t* a,
                                                    int64_t ld, int64_t steps,
                                                    const int32_t* starts, int64_t groups,
                                                    const float* scales, const float* row_scales,
                                                    void* out_words, int64_t out_ld) {
  constexpr int64_t kWordTerms = 32 / kBits, kWord = kPanelColumns * 4;
  const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
  __m512i left_sums[kRows], right_sums[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    left_sums[r] = right_sums[r] = _mm512_set1_epi32(starts[r * groups]);
  for (; steps > 0; --steps, a += kWordTerms, words += kWord) {
    const __m512i left = _mm512_loadu_si512(words), right = _mm512_loadu_si512(words + 64);
    __builtin_prefetch(words + kPanelFetchAhead, 0, 2);
    __builtin_prefetch(words + kPanelFetchAhead + 64, 0, 2);
    if constexpr (kRows > 4) {
      __builtin_prefetch(words + kNearFetchAhead, 0, 3);
      __builtin_prefetch(words + kNearFetchAhead + 64, 0, 3);
    }
    if constexpr (kBits == 8) {
      add_four<kRows>(a, ld, left, right, left_sums, right_sums);
    } else {
      add_four<kRows>(a, ld, _mm512_and_si512(left, low), _mm512_and_si512(right, low), left_sums,
                      right_sums);
      add_four<kRows>(a + 4, ld, _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, left, 4), low),
                      _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, right, 4), low),
                      left_sums, right_sums);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) asm("" : "+v"(left_sums[r]), "+v"(right_sums[r]));
  if constexpr (kEnd == GroupEnd::exact) {
    auto* exact = static_cast<int32_t*>(out_words);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r, exact += out_ld) {
      _mm512_storeu_si512(exact, left_sums[r]);
      _mm512_storeu_si512(exact + 16, right_sums[r]);
    }
    return;
  }
  auto* out = static_cast<float*>(out_words);
  const __m512 left_scales = _mm512_loadu_ps(scales), right_scales = _mm512_loadu_ps(scales + 16);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r, out += out_ld) {
    const __m512 left = _mm512_maskz_cvtepi32_ps(kAllLanes, left_sums[r]);
    const __m512 right = _mm512_maskz_cvtepi32_ps(kAllLanes, right_sums[r]);
    if constexpr (kEnd == GroupEnd::single) {
      const __m512 zero = _mm512_setzero_ps(), row_scale = _mm512_set1_ps(row_scales[r]);
      _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_fmadd_ps(left, left_scales, zero), row_scale));
      _mm512_storeu_ps(out + 16,
                       _mm512_mul_ps(_mm512_fmadd_ps(right, right_scales, zero), row_scale));
    } else {
      _mm512_storeu_ps(out, _mm512_fmadd_ps(left, left_scales, _mm512_loadu_ps(out)));
      _mm512_storeu_ps(out + 16, _mm512_fmadd_ps(right, right_scales, _mm512_loadu_ps(out + 16)));
    }
  }
}

/// Multiplies the results by the scales of the rows.
__attribute__((BRRR_VNNI)) void scale_rows(const IntegerStrip& s) {
  for (int64_t r = 0; r < s.rows; ++r) {
    float* out = s.out + r * s.out_ld;
    const __m512 scale = _mm512_set1_ps(s.row_scales[r]);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_loadu_ps(out), scale));
    _mm512_storeu_ps(out + 16, _mm512_mul_ps(_mm512_loadu_ps(out + 16), scale));
  }
}

template <int kBits, int kRows>
void strip_of(const IntegerStrip& s, const IntegerPanels& form) {
  constexpr int64_t kWordTerms = 32 / kBits, kWord = kPanelColumns * 4;
  const int64_t group = form.terms_of_group(), groups = form.groups();
  const uint8_t* words = s.panel;
  const float* scales = s.scales;
  if (groups == 1) {
    const int64_t steps = ceil_div(form.k, kWordTerms);
    if (s.exact != nullptr)
      return add_group<kBits, kRows, GroupEnd::exact>(words, s.values, s.ld, steps, s.row_starts,
                                                      groups, nullptr, nullptr, s.exact, s.out_ld);
    return add_group<kBits, kRows, GroupEnd::single>(words, s.values, s.ld, steps, s.row_starts,
                                                     groups, scales, s.row_scales, s.out, s.out_ld);
  }
  for (int r = 0; r < kRows; ++r) std::fill_n(s.out + r * s.out_ld, kPanelColumns, 0.0f);
  for (int64_t g = 0, k = 0; g < groups; ++g, k += group, scales += kPanelColumns) {
    const int64_t steps = ceil_div(std::min(form.k - k, group), kWordTerms);
    if (form.group != 0) {
      __builtin_prefetch(scales + kPanelFetchAhead / 4, 0, 2);
      __builtin_prefetch(scales + kPanelFetchAhead / 4 + 16, 0, 2);
    }
    add_group<kBits, kRows, GroupEnd::accumulate>(words, s.values + k, s.ld, steps,
                                                  s.row_starts + g, groups, scales, s.row_scales,
                                                  s.out, s.out_ld);
    words += steps * kWord;
  }
  scale_rows(s);
}

template <int kBits>
void strip_rows(const IntegerStrip& s, const IntegerPanels& form) {
  static constexpr StripKernel::Function kStrips[kStripRows] = {
      &strip_of<kBits, 1>, &strip_of<kBits, 2>,  &strip_of<kBits, 3>,  &strip_of<kBits, 4>,
      &strip_of<kBits, 5>, &strip_of<kBits, 6>,  &strip_of<kBits, 7>,  &strip_of<kBits, 8>,
      &strip_of<kBits, 9>, &strip_of<kBits, 10>, &strip_of<kBits, 11>, &strip_of<kBits, 12>};
  kStrips[s.rows - 1](s, form);
}

void vnni_strip(const IntegerStrip& s, const IntegerPanels& form) {
  if (form.k == 0) return integer_kernels().strip(s, form);
  if (form.bits == 8)
    strip_rows<8>(s, form);
  else
    strip_rows<4>(s, form);
}
#undef BRRR_VNNI

}  // namespace

StripKernel vnni_strips() { return {&vnni_strip, kStripRows}; }
#else
StripKernel vnni_strips() {
  BRRR_CHECK(false, "no VPDPBUSD on this processor");
  return {};
}
#endif

}  // namespace brrr::cpu
