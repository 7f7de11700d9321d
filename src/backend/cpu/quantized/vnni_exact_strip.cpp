// Exact sums of products of i8 by VPDPBUSD (avx512_vnni), as integers.

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

template <int kRows>
__attribute__((BRRR_VNNI, noinline)) void exact_strip_of(const IntegerStrip& s, int64_t terms,
                                                         int offset) {
  constexpr int64_t kWord = kPanelColumns * 4;
  __m512i sums[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_setzero_si512();
  const int8_t* a = s.values;
  const int64_t ld = s.ld;
  const uint8_t* words = s.panel;
  for (int64_t k = 0; k < terms; k += 4, a += 4, words += kWord) {
    const __m512i b[2] = {_mm512_loadu_si512(words), _mm512_loadu_si512(words + 64)};
    __builtin_prefetch(words + 16 * kWord, 0, 3);
    __builtin_prefetch(words + 16 * kWord + 64, 0, 3);
    const int8_t *top = a, *middle = a + 4 * ld, *bottom = a + 8 * ld;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, (r < 4 ? top : r < 8 ? middle : bottom) + r % 4 * ld, sizeof(four));
      const __m512i left = _mm512_set1_epi32(four);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], b[v], left);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const __m512i excess = _mm512_set1_epi32(s.row_sums[r] * offset);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      _mm512_storeu_si512(s.exact + r * s.out_ld + 16 * v, _mm512_sub_epi32(sums[r][v], excess));
  }
}

}  // namespace

void vnni_exact_strip(const IntegerStrip& s, const IntegerPanels& form) {
  using Strip = void (*)(const IntegerStrip&, int64_t, int);
  static constexpr Strip kStrips[kStripRows] = {
      &exact_strip_of<1>, &exact_strip_of<2>,  &exact_strip_of<3>,  &exact_strip_of<4>,
      &exact_strip_of<5>, &exact_strip_of<6>,  &exact_strip_of<7>,  &exact_strip_of<8>,
      &exact_strip_of<9>, &exact_strip_of<10>, &exact_strip_of<11>, &exact_strip_of<12>};
  kStrips[s.rows - 1](s, form.k, form.offset());
}
#undef BRRR_VNNI
#else
void vnni_exact_strip(const IntegerStrip&, const IntegerPanels&) {
  BRRR_CHECK(false, "no VPDPBUSD on this processor");
}
#endif

}  // namespace brrr::cpu
