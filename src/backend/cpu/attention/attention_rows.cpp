#include "backend/cpu/attention/attention_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/isa.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

enum class Mask { none, added, boolean };

template <Mask kMask, bool kScale, typename W>
HWY_INLINE VF masked_score(const ScoreRow& row, W w, int64_t i) {
  VF x = w.load(row.scores + i);
  if constexpr (kScale) x = hn::Mul(x, splat(row.factor));
  if constexpr (kMask == Mask::none) return x;
  const VF m = w.load(row.mask + i);
  if constexpr (kMask == Mask::added) return hn::Add(x, m);
  return hn::IfThenElse(hn::Eq(m, hn::Zero(DF())), splat(row.masked), x);
}

/// Where a row of results goes: f32, or bf16 by the instruction or as it does it.
struct WideRow {
  static constexpr bool kNarrow = false;
  float* to;
  template <typename W>
  HWY_INLINE void put(W w, VF x, int64_t i) const {
    w.store(x, to + i);
  }
};
template <bool kInstruction>
struct NarrowRow {
  static constexpr bool kNarrow = true;
  uint16_t* to;
  HWY_INLINE void put(Whole, VF x, int64_t i) const { store_narrow(x, to + i); }
  HWY_INLINE void put(Part w, VF x, int64_t i) const {
    uint16_t buffer[kLanes];
    store_narrow(x, buffer);
    std::memcpy(to + i, buffer, static_cast<size_t>(w.count) * sizeof(uint16_t));
  }

 private:
  static HWY_INLINE void store_narrow(VF x, uint16_t* p) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    if constexpr (kInstruction) {
      __m256i words;
      asm("vcvtneps2bf16 %1, %0" : "=v"(words) : "v"(x.raw));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
      return;
    }
#endif
    const VF least = splat(std::numeric_limits<float>::min());
    const VF flushed =
        hn::IfThenElse(hn::Lt(hn::Abs(x), least), hn::CopySign(hn::Zero(DF()), x), x);
    store(flushed, reinterpret_cast<Bf16*>(p));
  }
};

/// x, and `other` in the lanes beyond the end of the row.
HWY_INLINE VF beyond_end(Whole, VF x, VF) { return x; }
HWY_INLINE VF beyond_end(Part w, VF x, VF other) {
  return hn::IfThenElse(hn::FirstN(DF(), static_cast<size_t>(w.count)), x, other);
}

/// Which of the elements at i are dropped.
HWY_INLINE auto dropped_at(const ScoreRow& row, int64_t i) {
  // The bits stand in a buffer with room for a whole vector.
  const auto r = hn::PromoteTo(DI(), hn::LoadU(D16(), row.bits + i));
  return hn::RebindMask(DF(), hn::Lt(r, hn::Set(DI(), static_cast<int32_t>(row.threshold))));
}

template <typename T>
void zero_hidden(T* x, int64_t visible, int64_t n) {
  if (visible < n) std::memset(x + visible, 0, static_cast<size_t>(n - visible) * sizeof(T));
}

template <Mask kMask, bool kDrop, class Out>
float forward_row(const ScoreRow& row, RowState& state, Out out) {
  const int64_t n = row.visible;
  float* s = row.scores;
  const VF lowest = splat(-kInfinity);
  VF top[4] = {lowest, lowest, lowest, lowest};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    const VF x = masked_score<kMask, Out::kNarrow>(row, w, i);
    if constexpr (kMask != Mask::none) w.store(x, s + i);
    top[slot] = hn::Max(top[slot], beyond_end(w, x, lowest));
  });
  const float before = state.top;
  state.top = std::max(before, max_4(top));
  // While nothing is visible the top is -inf; every e^(s - 0) is then 0.
  const float base = state.top == -kInfinity ? 0.0f : state.top;
  const VF largest = splat(base);
  const VF zero = hn::Zero(DF());
  VF total[4] = {zero, zero, zero, zero};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    VF x = w.load(s + i);
    if constexpr (kMask == Mask::none && Out::kNarrow) x = hn::Mul(x, splat(row.factor));
    const VF e = exp_nonpositive(hn::Sub(x, largest));
    total[slot] = hn::Add(total[slot], w.keep(e));
    if constexpr (kDrop) {
      out.put(w, hn::IfThenZeroElse(dropped_at(row, i), hn::Mul(e, splat(row.keep_scale))), i);
    } else {
      out.put(w, e, i);
    }
  });
  zero_hidden(out.to, n, row.n);
  // e^0 is exactly 1.
  const float factor =
      before == state.top ? 1.0f : hn::GetLane(exp_nonpositive(splat(before - base)));
  state.total = state.total * factor + sum_4(total);
  return factor;
}

template <Mask kMask, bool kDrop, class Out>
void backward_row(const ScoreRow& row, float lse, float delta, const float* dp, Out weights,
                  Out gradient) {
  const int64_t n = row.visible;
  const VF log_total = splat(lse), shift = splat(delta), keep_scale = splat(row.keep_scale);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    VF p = exp_nonpositive(hn::Sub(masked_score<kMask, Out::kNarrow>(row, w, i), log_total));
    VF g = w.load(dp + i), dropped = p;
    if constexpr (kDrop) {
      const auto drop = dropped_at(row, i);
      g = hn::IfThenZeroElse(drop, hn::Mul(g, keep_scale));
      dropped = hn::IfThenZeroElse(drop, hn::Mul(p, keep_scale));
    }
    VF ds = hn::Mul(p, hn::Sub(g, shift));
    if constexpr (kMask == Mask::boolean)
      ds = hn::IfThenZeroElse(hn::Eq(w.load(row.mask + i), hn::Zero(DF())), ds);
    weights.put(w, dropped, i);
    gradient.put(w, ds, i);
  });
  zero_hidden(weights.to, n, row.n);
  zero_hidden(gradient.to, n, row.n);
}

/// function(mask, drop) by what the row has, as constants.
template <typename F>
HWY_INLINE auto by_row(const ScoreRow& row, F&& function) {
  const auto with_mask = [&](auto mask) {
    return row.bits != nullptr ? function(mask, std::true_type())
                               : function(mask, std::false_type());
  };
  if (row.mask == nullptr) return with_mask(std::integral_constant<Mask, Mask::none>());
  if (row.boolean) return with_mask(std::integral_constant<Mask, Mask::boolean>());
  return with_mask(std::integral_constant<Mask, Mask::added>());
}
/// The row from its first visible element on.
ScoreRow shifted(ScoreRow row) {
  row.scores += row.first;
  if (row.mask != nullptr) row.mask += row.first;
  if (row.bits != nullptr) row.bits += row.first;
  row.n -= row.first;
  row.visible -= row.first;
  row.first = 0;
  return row;
}
/// The results from there on; those before are zero.
template <class Out>
Out shifted(Out out, int64_t first) {
  zero_hidden(out.to, 0, first);
  out.to += first;
  return out;
}

template <class Out>
float forward_to(const ScoreRow& row, RowState& state, Out out) {
  if (row.first > 0) return forward_to(shifted(row), state, shifted(out, row.first));
  return by_row(row,
                [&](auto mask, auto drop) { return forward_row<mask, drop>(row, state, out); });
}
template <class Out>
void backward_to(const ScoreRow& row, float lse, float delta, const float* dp, Out weights,
                 Out gradient) {
  if (row.first > 0)
    return backward_to(shifted(row), lse, delta, dp + row.first, shifted(weights, row.first),
                       shifted(gradient, row.first));
  by_row(row, [&](auto mask, auto drop) {
    backward_row<mask, drop>(row, lse, delta, dp, weights, gradient);
  });
}

float forward(const ScoreRow& row, RowState& state) {
  return forward_to(row, state, WideRow{row.scores});
}
void backward(const ScoreRow& row, float lse, float delta, float* dp) {
  backward_to(row, lse, delta, dp, WideRow{row.scores}, WideRow{dp});
}
template <bool kInstruction>
float forward_narrow(const ScoreRow& row, RowState& state, uint16_t* weights) {
  return forward_to(row, state, NarrowRow<kInstruction>{weights});
}
template <bool kInstruction>
void backward_narrow(const ScoreRow& row, float lse, float delta, const float* dp,
                     uint16_t* weights, uint16_t* ds) {
  using Row = NarrowRow<kInstruction>;
  backward_to(row, lse, delta, dp, Row{weights}, Row{ds});
}

void scale(float* y, float factor, int64_t n) {
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { w.store(hn::Mul(w.load(y + i), splat(factor)), y + i); });
}

void divide(float* y, float total, int64_t n) {
  const VF factor = splat(1 / total), zero = hn::Zero(DF());
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { w.store(hn::MulAdd(w.load(y + i), factor, zero), y + i); });
}

float dot(const float* a, const float* b, int64_t n) {
  const VF zero = hn::Zero(DF());
  VF total[4] = {zero, zero, zero, zero};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    total[slot] = hn::MulAdd(w.load(a + i), w.load(b + i), total[slot]);
  });
  return sum_4(total);
}

template <typename T>
void widen(const void* from, int64_t from_ld, int64_t cols, int64_t rows, float* to,
           int64_t to_ld) {
  const T* x = static_cast<const T*>(from);
  for (int64_t r = 0; r < rows; ++r, x += from_ld, to += to_ld) {
    each_vector(cols, [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(x + i), to + i); });
    zero_hidden(to, cols, to_ld);
  }
}

HWY_INLINE VF load_integers(const int8_t* p) {
  const hn::Rebind<int8_t, DF> d;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d, p)));
}

void widen_integers(const IntegerRows& from, int64_t cols, int64_t rows, float* to, int64_t to_ld) {
  // Rows of several heads side by side are too far apart for the hardware prefetcher.
  constexpr int64_t kRowsAhead = 16;
  const int8_t* x = from.integers;
  for (int64_t r = 0; r < rows; ++r, x += from.ld, to += to_ld) {
    for (int64_t c = 0; c < cols; c += 64) __builtin_prefetch(x + kRowsAhead * from.ld + c, 0, 3);
    const VF scale = splat(from.scales[r * from.scales_ld]);
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) store(hn::Mul(scale, load_integers(x + i)), to + i);
    if (i < cols) {
      int8_t rest[kLanes] = {};
      std::memcpy(rest, x + i, static_cast<size_t>(cols - i));
      store_part(hn::Mul(scale, load_integers(rest)), to + i, cols - i);
    }
    zero_hidden(to, cols, to_ld);
  }
}

template <typename T>
void narrow(const float* from, int64_t from_ld, int64_t cols, int64_t rows, void* to,
            int64_t to_ld) {
  T* y = static_cast<T*>(to);
  for (int64_t r = 0; r < rows; ++r, from += from_ld, y += to_ld)
    each_vector(cols,
                [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(from + i), y + i); });
}

template <bool kInstruction>
constexpr AttentionRows kRows = {kLanes,
                                 &forward,
                                 &backward,
                                 &forward_narrow<kInstruction>,
                                 &backward_narrow<kInstruction>,
                                 &scale,
                                 &divide,
                                 &dot,
                                 &widen_integers};
constexpr RowCopies kCopies[] = {
    {&widen<float>, &narrow<float>}, {&widen<Bf16>, &narrow<Bf16>}, {&widen<F16>, &narrow<F16>}};

}  // namespace

const AttentionRows& rows_table() {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (has_bf16_pairs()) return kRows<true>;
#endif
  return kRows<false>;
}
const RowCopies& copies_table(DType dtype) {
  return kCopies[dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2];
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(rows_table);
HWY_EXPORT(copies_table);
const AttentionRows& attention_rows() { return HWY_DYNAMIC_DISPATCH(rows_table)(); }
const RowCopies& row_copies(DType dtype) { return HWY_DYNAMIC_DISPATCH(copies_table)(dtype); }
}  // namespace brrr::cpu
#endif
