#include "backend/cpu/spatial/winograd_transforms.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"
#include "ops/spatial/winograd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/winograd_transforms.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/simd/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// One axis of the transforms, for a tile of kTile results. `ops::winograd_matrices` has the same
/// numbers as matrices.
template <int kTile>
struct WinogradAxis;

template <>
struct WinogradAxis<2> {
  static constexpr int kSize = 4;
  /// v = B' d
  static HWY_INLINE void patch(const VF (&d)[4], VF (&v)[4]) {
    v[0] = hn::Sub(d[2], d[0]);
    v[1] = hn::Add(d[2], d[1]);
    v[2] = hn::Sub(d[2], d[1]);
    v[3] = hn::Sub(d[3], d[1]);
  }
  /// y = A' m
  static HWY_INLINE void results(const VF (&m)[4], VF (&y)[2]) {
    y[0] = hn::Add(m[0], hn::Add(m[1], m[2]));
    y[1] = hn::Add(hn::Sub(m[1], m[2]), m[3]);
  }
};

template <>
struct WinogradAxis<4> {
  static constexpr int kSize = 6;
  static constexpr double kA = ops::kWinogradNear, kB = ops::kWinogradFar;
  static HWY_INLINE VF number(double x) { return splat(static_cast<float>(x)); }

  static HWY_INLINE void patch(const VF (&d)[6], VF (&v)[6]) {
    const VF a = number(kA), b = number(kB), aa = number(kA * kA), bb = number(kB * kB);
    // The even and the odd part of the polynomials at the points +-a and +-b.
    const VF even_a = hn::NegMulAdd(bb, d[2], d[4]), odd_a = hn::NegMulAdd(bb, d[1], d[3]);
    const VF even_b = hn::NegMulAdd(aa, d[2], d[4]), odd_b = hn::NegMulAdd(aa, d[1], d[3]);
    v[1] = hn::MulAdd(a, odd_a, even_a);
    v[2] = hn::NegMulAdd(a, odd_a, even_a);
    v[3] = hn::MulAdd(b, odd_b, even_b);
    v[4] = hn::NegMulAdd(b, odd_b, even_b);
    const VF sum = number(kA * kA + kB * kB), product = number(kA * kA * kB * kB);
    v[0] = hn::MulAdd(product, d[0], hn::NegMulAdd(sum, d[2], d[4]));
    v[5] = hn::MulAdd(product, d[1], hn::NegMulAdd(sum, d[3], d[5]));
  }
  static HWY_INLINE void results(const VF (&m)[6], VF (&y)[4]) {
    const VF sum_a = hn::Add(m[1], m[2]), sum_b = hn::Add(m[3], m[4]);
    const VF difference_a = hn::Sub(m[1], m[2]), difference_b = hn::Sub(m[3], m[4]);
    y[0] = hn::Add(m[0], hn::Add(sum_a, sum_b));
    y[1] = hn::MulAdd(number(kA), difference_a, hn::Mul(number(kB), difference_b));
    y[2] = hn::MulAdd(number(kA * kA), sum_a, hn::Mul(number(kB * kB), sum_b));
    y[3] = hn::MulAdd(number(kA * kA * kA), difference_a,
                      hn::MulAdd(number(kB * kB * kB), difference_b, m[5]));
  }
};

/// Channels from c on; `read` loads a vector of them.
template <int kTile, typename Read>
HWY_INLINE void patch_vector(const float* const* pixels, int64_t c, float* v, int64_t place,
                             Read read) {
  using Axis = WinogradAxis<kTile>;
  constexpr int kSize = Axis::kSize;
  VF half[kSize][kSize];
#pragma GCC unroll 6
  for (int j = 0; j < kSize; ++j) {
    VF d[kSize], to[kSize];
#pragma GCC unroll 6
    for (int i = 0; i < kSize; ++i) d[i] = read(pixels[i * kSize + j] + c);
    Axis::patch(d, to);
#pragma GCC unroll 6
    for (int i = 0; i < kSize; ++i) half[i][j] = to[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kSize; ++i) {
    VF to[kSize];
    Axis::patch(half[i], to);
#pragma GCC unroll 6
    for (int j = 0; j < kSize; ++j) store(to[j], v + (i * kSize + j) * place + c);
  }
}

template <int kTile>
void patch_of(const float* const* pixels, int64_t channels, float* v, int64_t place) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes)
    patch_vector<kTile>(pixels, c, v, place, [](const float* p) { return load(p); });
  if (c < channels)
    patch_vector<kTile>(pixels, c, v, place,
                        [rest = channels - c](const float* p) { return load_part(p, rest); });
}

/// Columns from j on, of which `count` exist.
template <int kTile>
HWY_INLINE void results_vector(const float* p, int64_t place, const WinogradResults& to, int64_t j,
                               int64_t count) {
  using Axis = WinogradAxis<kTile>;
  constexpr int kSize = Axis::kSize;
  VF half[kTile][kSize];
#pragma GCC unroll 6
  for (int i = 0; i < kSize; ++i) {
    VF m[kSize], y[kTile];
#pragma GCC unroll 6
    for (int k = 0; k < kSize; ++k) m[k] = load(p + (k * kSize + i) * place + j);
    Axis::results(m, y);
#pragma GCC unroll 4
    for (int k = 0; k < kTile; ++k) half[k][i] = y[k];
  }
  const bool is_whole = count >= kLanes;
  const VF bias = to.bias == nullptr ? hn::Zero(DF())
                  : is_whole         ? load(to.bias + j)
                                     : load_part(to.bias + j, count);
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
    if (i >= to.high) break;
    VF y[kTile];
    Axis::results(half[i], y);
#pragma GCC unroll 4
    for (int k = 0; k < kTile; ++k) {
      if (k >= to.wide) break;
      const int64_t at = i * to.row + k * to.pixel + j;
      VF value = hn::Add(y[k], bias);
      if (to.residual != nullptr) {
        const float* const residual = to.residual + at;
        value = hn::Add(value, is_whole ? load(residual) : load_part(residual, count));
      }
      if (to.relu) value = f_relu(value);
      if (is_whole)
        store(value, to.y + at);
      else
        store_part(value, to.y + at, count);
    }
  }
}

template <int kTile>
void results_of(const float* p, int64_t place, const WinogradResults& to) {
  for (int64_t j = 0; j < to.columns; j += kLanes)
    results_vector<kTile>(p, place, to, j, to.columns - j);
}

void winograd_patch(int64_t tile, const float* const* pixels, int64_t channels, float* v,
                    int64_t place) {
  (tile == 2 ? &patch_of<2> : &patch_of<4>)(pixels, channels, v, place);
}
void winograd_results(int64_t tile, const float* p, int64_t place, const WinogradResults& to) {
  (tile == 2 ? &results_of<2> : &results_of<4>)(p, place, to);
}

constexpr WinogradTransforms kWinogradTable = {&winograd_patch, &winograd_results};

}  // namespace

const WinogradTransforms& winograd_transforms_table() { return kWinogradTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(winograd_transforms_table);
const WinogradTransforms& winograd_transforms() {
  return HWY_DYNAMIC_DISPATCH(winograd_transforms_table)();
}
}  // namespace brrr::cpu
#endif
