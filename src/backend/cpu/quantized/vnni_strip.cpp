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

constexpr int kVectors = 2;  // of 16 columns
// GCC 12 warns of the undefined lanes of intrinsics without a mask.
constexpr __mmask16 kAll = 0xffff;

__attribute__((BRRR_VNNI, always_inline)) inline __m512i four_terms(const int8_t* a) {
  int32_t word;
  std::memcpy(&word, a, sizeof(word));
  return _mm512_set1_epi32(word);
}

/// Sums of a group stay in registers: kRows x 2 of them, beside two vectors of the panel and one of
/// the rows.
template <int kBits, int kRows>
__attribute__((BRRR_VNNI, noinline)) void strip_of(const IntegerStrip& s,
                                                   const IntegerPanels& form) {
  constexpr int64_t kWordTerms = 32 / kBits, kWord = kPanelColumns * 4;
  const int64_t group = form.terms_of_group(), groups = form.groups();
  const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
  const uint8_t* words = s.panel;
  for (int64_t g = 0, k = 0; g < groups; ++g) {
    const int64_t end = std::min(form.k, k + group);
    __m512i sums[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_si512();
    const int8_t* a = s.values + k;
    const int64_t ld = s.ld;
    for (; k < end; k += kWordTerms, a += kWordTerms, words += kWord) {
      __m512i b[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        b[v] = _mm512_loadu_si512(words + 64 * v);
        __builtin_prefetch(words + 16 * kWord + 64 * v, 0, 3);
      }
#pragma GCC unroll 2
      for (int half = 0; half < kWordTerms / 4; ++half) {
        __m512i quads[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          quads[v] = kBits == 8
                         ? b[v]
                         : _mm512_and_si512(
                               half == 0 ? b[v] : _mm512_maskz_srli_epi32(kAll, b[v], 4), low);
        const int8_t *top = a + 4 * half, *middle = top + 4 * ld, *bottom = top + 8 * ld;
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i left = four_terms((r < 4 ? top : r < 8 ? middle : bottom) + r % 4 * ld);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], quads[v], left);
        }
      }
    }
    k = end;
    const bool is_first = g == 0, is_last = g + 1 == groups;
    const float* scales = s.scales + g * kPanelColumns;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i excess = _mm512_set1_epi32(s.row_sums[r * groups + g] * form.offset());
      const __m512 row_scale = _mm512_set1_ps(s.row_scales[r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* out = s.out + r * s.out_ld + 16 * v;
        const __m512 sum = _mm512_maskz_cvtepi32_ps(kAll, _mm512_sub_epi32(sums[r][v], excess));
        const __m512 before = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
        __m512 total = _mm512_fmadd_ps(sum, _mm512_loadu_ps(scales + 16 * v), before);
        if (is_last) total = _mm512_mul_ps(total, row_scale);
        _mm512_storeu_ps(out, total);
      }
    }
  }
}

template <int kBits>
void strip_rows(const IntegerStrip& s, const IntegerPanels& form) {
  switch (s.rows) {
    case 1:
      return strip_of<kBits, 1>(s, form);
    case 2:
      return strip_of<kBits, 2>(s, form);
    case 3:
      return strip_of<kBits, 3>(s, form);
    case 4:
      return strip_of<kBits, 4>(s, form);
    case 5:
      return strip_of<kBits, 5>(s, form);
    case 6:
      return strip_of<kBits, 6>(s, form);
    case 7:
      return strip_of<kBits, 7>(s, form);
    case 8:
      return strip_of<kBits, 8>(s, form);
    case 9:
      return strip_of<kBits, 9>(s, form);
    case 10:
      return strip_of<kBits, 10>(s, form);
    case 11:
      return strip_of<kBits, 11>(s, form);
    default:
      return strip_of<kBits, 12>(s, form);
  }
}

}  // namespace

void vnni_strip(const IntegerStrip& s, const IntegerPanels& form) {
  if (form.k == 0) {
    for (int64_t r = 0; r < s.rows; ++r) std::fill_n(s.out + r * s.out_ld, kPanelColumns, 0.0f);
    return;
  }
  if (form.bits == 8)
    strip_rows<8>(s, form);
  else
    strip_rows<4>(s, form);
}
#undef BRRR_VNNI
#else
void vnni_strip(const IntegerStrip&, const IntegerPanels&) {
  BRRR_CHECK(false, "no VPDPBUSD on this processor");
}
#endif

}  // namespace brrr::cpu
