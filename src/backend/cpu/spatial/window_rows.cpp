#include "backend/cpu/spatial/window_rows.h"

#include <cmath>
#include <type_traits>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/window_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// kVectors vectors of windows, the last one by `last`: their sums do not wait for each other.
template <int kVectors, typename Last>
HWY_INLINE void add_vectors(const float* plane, const int64_t* offsets, const float* weights,
                            int64_t taps, float start, Last last, float* y) {
  VF sums[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sums[v] = splat(start);
  for (int64_t t = 0; t < taps; ++t) {
    const float* const x = plane + offsets[t];
    const VF w = splat(weights[t]);
#pragma GCC unroll 8
    for (int v = 0; v + 1 < kVectors; ++v) sums[v] = hn::MulAdd(w, load(x + v * kLanes), sums[v]);
    sums[kVectors - 1] = hn::MulAdd(w, last.load(x + (kVectors - 1) * kLanes), sums[kVectors - 1]);
  }
#pragma GCC unroll 8
  for (int v = 0; v + 1 < kVectors; ++v) store(sums[v], y + v * kLanes);
  last.store(sums[kVectors - 1], y + (kVectors - 1) * kLanes);
}

constexpr int kMostVectors = 8;

template <typename Last>
void add_up_to_eight(int64_t vectors, const float* plane, const int64_t* offsets,
                     const float* weights, int64_t taps, float start, Last last, float* y) {
  const auto add = [&]<int kVectors>(std::integral_constant<int, kVectors>) HWY_ATTR {
    add_vectors<kVectors>(plane, offsets, weights, taps, start, last, y);
  };
  switch (vectors) {
    case 1:
      return add(std::integral_constant<int, 1>());
    case 2:
      return add(std::integral_constant<int, 2>());
    case 3:
      return add(std::integral_constant<int, 3>());
    case 4:
      return add(std::integral_constant<int, 4>());
    case 5:
      return add(std::integral_constant<int, 5>());
    case 6:
      return add(std::integral_constant<int, 6>());
    case 7:
      return add(std::integral_constant<int, 7>());
    default:
      return add(std::integral_constant<int, kMostVectors>());
  }
}

void add_windows(const float* plane, const int64_t* offsets, const float* weights, int64_t taps,
                 float start, int64_t n, float* y) {
  // Runs of equal length: a short one at the end would wait for its own sums.
  for (int64_t o = 0; o < n;) {
    const int64_t vectors = (n - o + kLanes - 1) / kLanes,
                  runs = (vectors + kMostVectors - 1) / kMostVectors,
                  now = (vectors + runs - 1) / runs, rest = n - o - (now - 1) * kLanes;
    if (rest >= kLanes)
      add_up_to_eight(now, plane + o, offsets, weights, taps, start, Whole{}, y + o);
    else
      add_up_to_eight(now, plane + o, offsets, weights, taps, start, Part{rest}, y + o);
    o += now * kLanes;
  }
}

void largest_windows(const float* plane, const int64_t* offsets, int64_t taps, int64_t n, float* y,
                     float* tap) {
  each_vector(n, [&](auto v, int64_t i) BRRR_INLINE_BODY {
    VF best = v.load(plane + offsets[0] + i), at = hn::Zero(DF());
    for (int64_t t = 1; t < taps; ++t) {
      const VF x = v.load(plane + offsets[t] + i);
      const auto first_nan = hn::AndNot(hn::Ne(best, best), hn::Ne(x, x));
      const auto beats = hn::Or(hn::Gt(x, best), first_nan);
      best = hn::IfThenElse(beats, x, best);
      at = hn::IfThenElse(beats, splat(static_cast<float>(t)), at);
    }
    v.store(best, y + i);
    v.store(at, tap + i);
  });
}

HWY_INLINE VF larger(VF best, VF x) {
  return hn::IfThenElse(hn::Or(hn::Ge(best, x), hn::Ne(best, best)), best, x);
}

/// body(access, i) for vectors that cover [0, n), the last of which may overlap the one before it.
template <typename Body>
HWY_INLINE void each_vector_once_or_twice(int64_t n, Body&& body) {
  if (n < kLanes) return body(Part{n}, 0);
  for (int64_t i = 0; i + kLanes <= n; i += kLanes) body(Whole{}, i);
  if (n % kLanes != 0) body(Whole{}, n - kLanes);
}

void largest_of_rows(const float* const* rows, int64_t count, int64_t n, float* y) {
  each_vector_once_or_twice(n, [&](auto v, int64_t i) BRRR_INLINE_BODY {
    VF best = v.load(rows[0] + i);
    for (int64_t r = 1; r < count; ++r) best = larger(best, v.load(rows[r] + i));
    v.store(best, y + i);
  });
}

void largest_of_pairs(const float* const* rows, int64_t count, int64_t n, float* y) {
  const auto pairs = [&](int64_t i) BRRR_INLINE_BODY {
    VF best, odd;
    hn::LoadInterleaved2(DF(), rows[0] + 2 * i, best, odd);
    best = larger(best, odd);
    for (int64_t r = 1; r < count; ++r) {
      VF even;
      hn::LoadInterleaved2(DF(), rows[r] + 2 * i, even, odd);
      best = larger(best, larger(even, odd));
    }
    return best;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(pairs(i), y + i);
  if (i < n && n >= kLanes) {
    store(pairs(n - kLanes), y + n - kLanes);
    return;
  }
  const auto larger_number = [](float best, float x) {
    return best >= x || std::isnan(best) ? best : x;
  };
  for (; i < n; ++i) {
    float best = rows[0][2 * i];
    for (int64_t r = 0; r < count; ++r)
      best = larger_number(larger_number(best, rows[r][2 * i]), rows[r][2 * i + 1]);
    y[i] = best;
  }
}

void largest_of_taps(const float* plane, const int64_t* offsets, int64_t taps, int64_t n,
                     float* y) {
  each_vector_once_or_twice(n, [&](auto v, int64_t i) BRRR_INLINE_BODY {
    VF best = v.load(plane + offsets[0] + i);
    for (int64_t t = 1; t < taps; ++t) best = larger(best, v.load(plane + offsets[t] + i));
    v.store(best, y + i);
  });
}

void add_to_row(float number, int64_t n, float* x) {
  const VF b = splat(number);
  each_vector(
      n, [&](auto v, int64_t i) BRRR_INLINE_BODY { v.store(hn::Add(v.load(x + i), b), x + i); });
}

void add_multiple_of_row(int32_t factor, const int32_t* x, int64_t n, int32_t* y) {
  const DI d;
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Add(hn::Mul(f, hn::LoadU(d, x + i)), hn::LoadU(d, y + i)), d, y + i);
  for (; i < n; ++i)
    y[i] = static_cast<int32_t>(static_cast<uint32_t>(y[i]) +
                                static_cast<uint32_t>(factor) * static_cast<uint32_t>(x[i]));
}

void split_pairs_of_row(const float* x, int64_t n, float* even, float* odd) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VF a, b;
    hn::LoadInterleaved2(DF(), x + 2 * i, a, b);
    store(a, even + i);
    store(b, odd + i);
  }
  for (; i < n; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
}

template <typename T>
void read_as(const void* x, int64_t n, float* y) {
  each_vector(n, [&](auto v, int64_t i)
                     BRRR_INLINE_BODY { v.store(v.load(static_cast<const T*>(x) + i), y + i); });
}
template <typename T>
void write_as(const float* x, int64_t n, void* y) {
  each_vector(n, [&](auto v, int64_t i)
                     BRRR_INLINE_BODY { v.store(v.load(x + i), static_cast<T*>(y) + i); });
}

void read_row(DType from, const void* x, int64_t n, float* y) {
  if (from == DType::f32) return read_as<float>(x, n, y);
  return from == DType::bf16 ? read_as<Bf16>(x, n, y) : read_as<F16>(x, n, y);
}
void write_row(DType to, const float* x, int64_t n, void* y) {
  if (to == DType::f32) return write_as<float>(x, n, y);
  return to == DType::bf16 ? write_as<Bf16>(x, n, y) : write_as<F16>(x, n, y);
}

constexpr WindowRows kTable = {
    &add_windows, &largest_windows,     &largest_of_rows,    &largest_of_pairs, &largest_of_taps,
    &add_to_row,  &add_multiple_of_row, &split_pairs_of_row, &read_row,         &write_row};

}  // namespace

const WindowRows& window_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(window_table);
const WindowRows& window_rows() { return HWY_DYNAMIC_DISPATCH(window_table)(); }
}  // namespace brrr::cpu
#endif
