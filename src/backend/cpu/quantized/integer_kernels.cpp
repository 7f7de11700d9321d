#include "backend/cpu/quantized/integer_kernels.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/simd/simd_types.h"
#include "ops/quantized/quantized_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quantized/integer_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

using VU = hn::Vec<DU>;

HWY_INLINE VU load_words(const uint8_t* p) {
  return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p));
}

/// Extracts the unsigned integer of term `t` from the word of each column.
template <int kBits>
HWY_INLINE VU term_of(VU words, int t) {
  const int shift = kBits == 8 ? 8 * t : t < 4 ? 8 * t : 8 * (t - 4) + 4;
  return hn::And(hn::ShiftRightSame(words, shift), hn::Set(DU(), kBits == 8 ? 255u : 15u));
}

/// The scales of kLanes columns, and the offset of the integers times these scales.
struct Scale {
  VF scale = hn::Zero(DF()), offset = hn::Zero(DF());
  Scale() = default;
  HWY_INLINE Scale(const float* scales, int zero)
      : scale(load(scales)), offset(hn::Mul(scale, splat(-static_cast<float>(zero)))) {}
  /// (u - offset) * scale, rounded once where the machine has fused multiply-add.
  HWY_INLINE VF floats(VU integers) const {
    const auto x = hn::ConvertTo(DF(), hn::BitCast(DI(), integers));
    return hn::MulAdd(x, scale, offset);
  }
};

/// Calls f(term, floats) for terms [k0, k0 + kc) with kVectors vectors of dequantised columns, the
/// first of which is `column`.
template <int kBits, int kVectors, typename F>
HWY_INLINE void each_term(const uint8_t* panel, const float* scales, const IntegerPanels& form,
                          int64_t k0, int64_t kc, int64_t column, F f) {
  constexpr int kWordTerms = 32 / kBits;
  const int64_t group = form.terms_of_group();
  for (int64_t k = k0; k < k0 + kc;) {
    const int64_t end = std::min(k0 + kc, (k / group + 1) * group);
    Scale scale[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      scale[v] = Scale(scales + k / group * kPanelColumns + column + v * kLanes, form.offset());
    for (; k < end; k += kWordTerms) {
      const uint8_t* word = panel + (k / kWordTerms * kPanelColumns + column) * 4;
      VU words[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) words[v] = load_words(word + 4 * v * kLanes);
      prefetch_far(word + kPanelFetchAhead);
      if (kVectors * kLanes > 16) prefetch_far(word + kPanelFetchAhead + 64);
      const auto term = [&](int t) HWY_ATTR {
        VF floats[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) floats[v] = scale[v].floats(term_of<kBits>(words[v], t));
        f(k + t, floats);
      };
      if (k + kWordTerms <= end) {
#pragma GCC unroll 8
        for (int t = 0; t < kWordTerms; ++t) term(t);
      } else {
        for (int t = 0; k + t < end; ++t) term(t);
      }
    }
    k = end;
  }
}

void unpack(const uint8_t* panel, const float* scales, const IntegerPanels& form, int64_t k0,
            int64_t kc, float* out) {
  const auto unpack_bits = [&](auto bits) HWY_ATTR {
    for (int64_t j = 0; j < kPanelColumns; j += kNr) {
      float* to = out + j * kc;
      each_term<bits(), 2>(panel, scales, form, k0, kc, j,
                           [&](int64_t k, const VF(&x)[2]) BRRR_INLINE_BODY {
                             store(x[0], to + (k - k0) * kNr);
                             store(x[1], to + (k - k0) * kNr + kLanes);
                           });
    }
  };
  if (form.bits == 8)
    unpack_bits(std::integral_constant<int, 8>());
  else
    unpack_bits(std::integral_constant<int, 4>());
}

/// Keeps up to eight vectors of sums, whose independent multiply-adds hide their latency.
template <int kBits, int kRows>
HWY_INLINE void few_rows_of(const float* x, const uint8_t* panel, const float* scales,
                            const IntegerPanels& form, int64_t k_step, float* out) {
  constexpr int kMost = static_cast<int>(kPanelColumns / kLanes);
  constexpr int kVectors = kRows * kMost <= 8 ? kMost : kRows <= 2 ? 4 : 2;
  for (int64_t j = 0; j < kPanelColumns; j += kVectors * kLanes) {
    VF total[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) total[r][v] = hn::Zero(DF());
    for (int64_t k0 = 0; k0 < form.k; k0 += k_step) {
      VF sums[kRows][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(DF());
      each_term<kBits, kVectors>(panel, scales, form, k0, std::min(k_step, form.k - k0), j,
                                 [&](int64_t k, const VF(&w)[kVectors]) BRRR_INLINE_BODY {
#pragma GCC unroll 4
                                   for (int r = 0; r < kRows; ++r) {
                                     const VF a = splat(x[r * form.k + k]);
#pragma GCC unroll 8
                                     for (int v = 0; v < kVectors; ++v)
                                       sums[r][v] = hn::MulAdd(a, w[v], sums[r][v]);
                                   }
                                 });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          total[r][v] = k0 == 0 ? sums[r][v] : hn::Add(total[r][v], sums[r][v]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store(total[r][v], out + r * kPanelColumns + j + v * kLanes);
  }
}

void few_rows(const float* x, int64_t rows, const uint8_t* panel, const float* scales,
              const IntegerPanels& form, int64_t k_step, float* out) {
  const auto with_bits = [&](auto bits) HWY_ATTR {
    constexpr int kBits = bits();
    static_assert(kGemmFewRows == 4);
    if (rows == 1) return few_rows_of<kBits, 1>(x, panel, scales, form, k_step, out);
    if (rows == 2) return few_rows_of<kBits, 2>(x, panel, scales, form, k_step, out);
    if (rows == 3) return few_rows_of<kBits, 3>(x, panel, scales, form, k_step, out);
    few_rows_of<kBits, 4>(x, panel, scales, form, k_step, out);
  };
  if (form.bits == 8)
    with_bits(std::integral_constant<int, 8>());
  else
    with_bits(std::integral_constant<int, 4>());
}

/// The largest magnitude of a row; NaN where an element is not finite.
template <typename T>
HWY_INLINE float top_of(const T* x, int64_t n) {
  VF top = hn::Zero(DF()), bad = hn::Zero(DF());  // x - x is 0 for what is finite, else NaN
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const VF v = load(x + i);
    top = hn::Max(top, hn::Abs(v));
    bad = hn::Add(bad, hn::Sub(v, v));
  }
  float most = hn::GetLane(hn::MaxOfLanes(DF(), top));
  float broken = hn::GetLane(hn::SumOfLanes(DF(), bad));
  for (int64_t i = whole; i < n; ++i) {
    const float v = widen(x[i]);
    most = std::max(most, v < 0 ? -v : v);
    broken += v - v;
  }
  return most + broken;
}

template <typename T>
HWY_INLINE void quantize_row(const T* x, const IntegerPanels& form, int8_t* q, int64_t ld,
                             float* scale, int32_t* starts) {
  const float top = top_of(x, form.k);
  *scale = top < ops::kLeastTop ? 0.0f : top / 127.0f;
  if (!(top >= ops::kLeastTop)) {  // zeros, or what is not finite: its scale is NaN
    std::memset(q, 0, static_cast<size_t>(ld));
    std::fill_n(starts, form.groups(), 0);
    return;
  }
  const float inverse = 127.0f / top;
  const hn::Rebind<int8_t, DF> bytes;
  const int64_t group = form.terms_of_group();
  for (int64_t g = 0, k = 0; k < form.k; ++g) {
    const int64_t end = std::min(form.k, k + group);
    auto total = hn::Zero(DI());
    for (; k + kLanes <= end; k += kLanes) {
      const auto integers = hn::NearestInt(hn::Mul(load(x + k), splat(inverse)));
      hn::StoreU(hn::DemoteTo(bytes, integers), bytes, q + k);
      total = hn::Add(total, integers);
    }
    int32_t sum = hn::GetLane(hn::SumOfLanes(DI(), total));
    for (; k < end; ++k) {
      const auto integer = hn::GetLane(hn::NearestInt(splat(widen(x[k]) * inverse)));
      q[k] = static_cast<int8_t>(std::clamp(integer, -127, 127));
      sum += q[k];
    }
    starts[g] = -sum * form.offset();
  }
  std::memset(q + form.k, 0, static_cast<size_t>(ld - form.k));
}

void quantize_rows(DType dtype, const void* x, int64_t ld, int64_t rows, const IntegerPanels& form,
                   const QuantizedRows& to) {
  with_type(dtype, [&](auto type) {
    const auto* from = static_cast<const decltype(type)*>(x);
    for (int64_t i = 0; i < rows; ++i)
      quantize_row(from + i * ld, form, to.values + i * to.ld, to.ld, to.scales + i,
                   to.starts + i * form.groups());
  });
}

// Bytes of a word as two vectors of 16-bit integers: terms 0 and 2, 1 and 3; multiplied in pairs.
#if HWY_TARGET != HWY_SCALAR
using DI16 = hn::Repartition<int16_t, DI>;
using VI = hn::Vec<DI>;
using VI16 = hn::Vec<DI16>;

/// Adds the products of two terms to the sum of each lane.
HWY_INLINE VI add_pairs(VI sum, VI16 a, VI16 b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  VI none = hn::Zero(DI());  // x86 adds the products of neighbours; other targets use both sums
  return hn::ReorderWidenMulAccumulate(DI(), a, b, sum, none);
#else
  const VI x = hn::BitCast(DI(), a), y = hn::BitCast(DI(), b);
  const VI low =
      hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(x)), hn::ShiftRight<16>(hn::ShiftLeft<16>(y)));
  return hn::Add(sum, hn::Add(low, hn::Mul(hn::ShiftRight<16>(x), hn::ShiftRight<16>(y))));
#endif
}
HWY_INLINE VI16 pair_of(int8_t first, int8_t second) {
  const auto low = static_cast<uint16_t>(first), high = static_cast<uint16_t>(second);
  return hn::BitCast(DI16(), hn::Set(DI(), static_cast<int32_t>(low | uint32_t{high} << 16)));
}

/// Adds the products of four terms of kRows rows; `words` has their integers as unsigned bytes.
template <int kRows>
HWY_INLINE void add_four(const int8_t* a, int64_t ld, VU words, VI* sums) {
  const auto even = hn::BitCast(DI16(), hn::And(words, hn::Set(DU(), 0x00ff00ffu)));
  const auto odd =
      hn::BitCast(DI16(), hn::And(hn::ShiftRight<8>(words), hn::Set(DU(), 0x00ff00ffu)));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const int8_t* row = a + r * ld;
    sums[r] =
        add_pairs(add_pairs(sums[r], pair_of(row[0], row[2]), even), pair_of(row[1], row[3]), odd);
  }
}

/// With kExact, panels have one group, whose sums are stored without scales.
template <int kBits, int kRows, bool kExact>
HWY_INLINE void strip_of(const IntegerStrip& s, const IntegerPanels& form, int64_t first) {
  const int64_t group = form.terms_of_group();
  for (int64_t j = 0; j < kPanelColumns; j += kLanes) {
    VF total[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) total[r] = hn::Zero(DF());
    for (int64_t g = 0, k = 0; k < form.k; ++g) {
      const int64_t end = std::min(form.k, k + group);
      VI sums[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        sums[r] = hn::Set(DI(), s.row_starts[(first + r) * form.groups() + g]);
      for (; k < end; k += 32 / kBits) {
        const int8_t* a = s.values + first * s.ld + k;
        const VU words = load_words(s.panel + (k / (32 / kBits) * kPanelColumns + j) * 4);
        if constexpr (kBits == 8) {
          add_four<kRows>(a, s.ld, words, sums);
        } else {
          const VU low = hn::Set(DU(), 0x0f0f0f0fu);
          add_four<kRows>(a, s.ld, hn::And(words, low), sums);
          add_four<kRows>(a + 4, s.ld, hn::And(hn::ShiftRight<4>(words), low), sums);
        }
      }
      k = end;
      if constexpr (kExact) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          hn::StoreU(sums[r], DI(), s.exact + (first + r) * s.out_ld + j);
        continue;
      }
      const VF scale = kExact ? hn::Zero(DF()) : load(s.scales + g * kPanelColumns + j);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        total[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), scale, total[r]);
    }
    if constexpr (!kExact) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        store(hn::Mul(total[r], splat(s.row_scales[first + r])),
              s.out + (first + r) * s.out_ld + j);
    }
  }
}

template <int kBits, bool kExact = false>
HWY_INLINE void strip_rows(const IntegerStrip& s, const IntegerPanels& form) {
  int64_t r = 0;
  for (; r + 4 <= s.rows; r += 4) strip_of<kBits, 4, kExact>(s, form, r);
  for (; r < s.rows; ++r) strip_of<kBits, 1, kExact>(s, form, r);
}
#else
template <int kBits, bool kExact = false>
HWY_INLINE void strip_rows(const IntegerStrip& s, const IntegerPanels& form) {
  const int64_t group = form.terms_of_group();
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      float total = 0;
      for (int64_t g = 0; g < form.groups(); ++g) {
        int32_t sum = 0;
        for (int64_t k = g * group; k < std::min(form.k, (g + 1) * group); ++k) {
          const int byte = s.panel[form.place(k, j)];
          const int integer = kBits == 8 ? byte : form.is_high(k) ? byte >> 4 : byte & 15;
          sum += s.values[r * s.ld + k] * (integer - form.offset());
        }
        if constexpr (kExact) {
          s.exact[r * s.out_ld + j] = sum;
          continue;
        }
        total += static_cast<float>(sum) * s.scales[g * kPanelColumns + j];
      }
      if constexpr (!kExact) s.out[r * s.out_ld + j] = total * s.row_scales[r];
    }
}
#endif

void strip(const IntegerStrip& s, const IntegerPanels& form) {
  if (s.exact != nullptr && form.k > 0) return strip_rows<8, true>(s, form);
  if (s.exact != nullptr) {
    for (int64_t r = 0; r < s.rows; ++r) std::fill_n(s.exact + r * s.out_ld, kPanelColumns, 0);
  } else if (form.bits == 8) {
    strip_rows<8>(s, form);
  } else {
    strip_rows<4>(s, form);
  }
}

void scale_sums(const IntegerStrip& s, const int32_t* sums) {
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t j = 0; j < kPanelColumns; j += kLanes) {
      const auto sum = hn::LoadU(DI(), sums + r * kPanelColumns + j);
      const VF total = hn::MulAdd(hn::ConvertTo(DF(), sum), load(s.scales + j), hn::Zero(DF()));
      store(hn::Mul(total, splat(s.row_scales[r])), s.out + r * s.out_ld + j);
    }
}

}  // namespace

const IntegerKernels& integer_table() {
  static constexpr IntegerKernels kKernels = {&quantize_rows, &unpack, &few_rows, &strip,
                                              &scale_sums};
  return kKernels;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(integer_table);
const IntegerKernels& integer_kernels() { return HWY_DYNAMIC_DISPATCH(integer_table)(); }
}  // namespace brrr::cpu
#endif
