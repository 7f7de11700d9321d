#include "backend/cpu/rows/random_rows.h"

#include <algorithm>
#include <bit>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/random_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

static_assert(std::endian::native == std::endian::little, "the low half of a word comes first");

/// Blocks are of four words, eight elements.
void draw(RngKey key, uint32_t stream, uint64_t first, int64_t blocks, uint16_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t b = 0; b < blocks; ++b) {
    const auto words = philox(key, stream, first + static_cast<uint64_t>(b));
    std::memcpy(out + 8 * b, words.data(), sizeof(words));
  }
#else
  // One block per 64-bit lane. A word lives in the low half of its lane; what is above does not
  // matter, for MulEven reads the low halves only.
  const hn::ScalableTag<uint64_t> d;
  const hn::RepartitionToNarrow<decltype(d)> d32;
  const auto low = hn::Set(d, 0xffffffffu);
  const auto m0 = hn::BitCast(d32, hn::Set(d, kPhiloxM0));
  const auto m1 = hn::BitCast(d32, hn::Set(d, kPhiloxM1));
  auto* words = reinterpret_cast<uint64_t*>(out);
  for (int64_t b = 0; b < blocks; b += static_cast<int64_t>(hn::Lanes(d))) {
    const auto block = hn::Iota(d, first + static_cast<uint64_t>(b));
    auto c0 = block, c1 = hn::ShiftRight<32>(block);
    auto c2 = hn::Set(d, uint64_t{stream}), c3 = hn::Zero(d);
    uint32_t k0 = key.seed, k1 = key.step;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const auto p0 = hn::MulEven(hn::BitCast(d32, c0), m0);
      const auto p1 = hn::MulEven(hn::BitCast(d32, c2), m1);
      c0 = hn::Xor3(hn::ShiftRight<32>(p1), c1, hn::Set(d, uint64_t{k0}));
      c1 = p1;
      c2 = hn::Xor3(hn::ShiftRight<32>(p0), c3, hn::Set(d, uint64_t{k1}));
      c3 = p0;
      k0 += kPhiloxW0;
      k1 += kPhiloxW1;
    }
    const auto w01 = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const auto w23 = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(w01, w23, d, words + 2 * b);
  }
#endif
}

template <typename Body>
HWY_INLINE void each_step(RngKey key, uint32_t stream, int64_t begin, int64_t n, Body&& body) {
  alignas(64) uint16_t drawn[kRandomStep] = {};
  for (int64_t i = 0; i < n; i += kRandomStep) {
    draw(key, stream, static_cast<uint64_t>(begin + i) / 8, kRandomStep / 8, drawn);
    body(i, std::min(kRandomStep, n - i), drawn);
  }
}

void bits(RngKey key, uint32_t stream, int64_t begin, int32_t* y, int64_t n) {
  each_step(key, stream, begin, n, [&](int64_t at, int64_t count, const uint16_t* drawn) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      hn::StoreU(hn::PromoteTo(DI(), hn::LoadU(D16(), drawn + i)), DI(), y + at + i);
    for (; i < count; ++i) y[at + i] = drawn[i];
  });
}

template <typename T>
void dropout(RngKey key, uint32_t stream, int64_t begin, uint32_t threshold, float scale,
             const void* from, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  const VF factor = splat(scale);
  const auto limit = hn::Set(DI(), static_cast<int32_t>(threshold));
  each_step(key, stream, begin, n, [&](int64_t at, int64_t count, const uint16_t* drawn) {
    each_vector(count, [&](auto w, int64_t i) BRRR_INLINE_BODY {
      const auto r = hn::PromoteTo(DI(), hn::LoadU(D16(), drawn + i));
      const auto drop = hn::RebindMask(DF(), hn::Lt(r, limit));
      w.store(hn::IfThenZeroElse(drop, hn::Mul(w.load(x + at + i), factor)), y + at + i);
    });
  });
}

constexpr RandomRows kTable[] = {{&draw, &bits, &dropout<float>}, {&draw, &bits, &dropout<Bf16>}};

}  // namespace

const RandomRows& random_table(bool bf16) { return kTable[bf16]; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(random_table);
const RandomRows& random_rows(bool bf16) { return HWY_DYNAMIC_DISPATCH(random_table)(bf16); }
}  // namespace brrr::cpu
#endif
