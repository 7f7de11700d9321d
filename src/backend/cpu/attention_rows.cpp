#include "backend/cpu/attention_rows.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

enum class Mask { none, added, boolean };

template <Mask kMask, typename W>
HWY_INLINE VF masked_score(const ScoreRow& row, W w, int64_t i) {
  const VF x = w.load(row.scores + i);
  if constexpr (kMask == Mask::none) return x;
  const VF m = w.load(row.mask + i);
  if constexpr (kMask == Mask::added) return hn::Add(x, m);
  return hn::IfThenElse(hn::Eq(m, hn::Zero(DF())), splat(row.masked), x);
}

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

void zero_hidden(float* x, int64_t visible, int64_t n) {
  if (visible < n) std::memset(x + visible, 0, static_cast<size_t>(n - visible) * sizeof(float));
}

template <Mask kMask, bool kDrop>
float forward_row(const ScoreRow& row, RowState& state) {
  const int64_t n = row.visible;
  float* s = row.scores;
  const VF lowest = splat(-kInfinity);
  VF top[4] = {lowest, lowest, lowest, lowest};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    const VF x = masked_score<kMask>(row, w, i);
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
    const VF e = exp_nonpositive(hn::Sub(w.load(s + i), largest));
    total[slot] = hn::Add(total[slot], w.keep(e));
    if constexpr (kDrop) {
      w.store(hn::IfThenZeroElse(dropped_at(row, i), hn::Mul(e, splat(row.keep_scale))), s + i);
    } else {
      w.store(e, s + i);
    }
  });
  zero_hidden(s, n, row.n);
  // e^0 is exactly 1.
  const float factor =
      before == state.top ? 1.0f : hn::GetLane(exp_nonpositive(splat(before - base)));
  state.total = state.total * factor + sum_4(total);
  return factor;
}

template <Mask kMask, bool kDrop>
void backward_row(const ScoreRow& row, float lse, float delta, float* dp) {
  const int64_t n = row.visible;
  float* s = row.scores;
  const VF log_total = splat(lse), shift = splat(delta), keep_scale = splat(row.keep_scale);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    VF p = exp_nonpositive(hn::Sub(masked_score<kMask>(row, w, i), log_total));
    VF g = w.load(dp + i), dropped = p;
    if constexpr (kDrop) {
      const auto drop = dropped_at(row, i);
      g = hn::IfThenZeroElse(drop, hn::Mul(g, keep_scale));
      dropped = hn::IfThenZeroElse(drop, hn::Mul(p, keep_scale));
    }
    VF ds = hn::Mul(p, hn::Sub(g, shift));
    if constexpr (kMask == Mask::boolean)
      ds = hn::IfThenZeroElse(hn::Eq(w.load(row.mask + i), hn::Zero(DF())), ds);
    w.store(dropped, s + i);
    w.store(ds, dp + i);
  });
  zero_hidden(s, n, row.n);
  zero_hidden(dp, n, row.n);
}

/// f<mask, drop> by what the row has.
#define BRRR_BY_ROW(function, row, ...)                             \
  const bool drop = (row).bits != nullptr;                          \
  if ((row).mask == nullptr)                                        \
    return drop ? function<Mask::none, true>(row, __VA_ARGS__)      \
                : function<Mask::none, false>(row, __VA_ARGS__);    \
  if ((row).boolean)                                                \
    return drop ? function<Mask::boolean, true>(row, __VA_ARGS__)   \
                : function<Mask::boolean, false>(row, __VA_ARGS__); \
  return drop ? function<Mask::added, true>(row, __VA_ARGS__)       \
              : function<Mask::added, false>(row, __VA_ARGS__)

float forward(const ScoreRow& row, RowState& state) { BRRR_BY_ROW(forward_row, row, state); }
void backward(const ScoreRow& row, float lse, float delta, float* dp) {
  BRRR_BY_ROW(backward_row, row, lse, delta, dp);
}
#undef BRRR_BY_ROW

void scale(float* y, float factor, int64_t n) {
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { w.store(hn::Mul(w.load(y + i), splat(factor)), y + i); });
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
void widen(const void* from, int64_t cols, int64_t rows, float* to, int64_t to_ld) {
  const T* x = static_cast<const T*>(from);
  for (int64_t r = 0; r < rows; ++r, x += cols, to += to_ld) {
    each_vector(cols, [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(x + i), to + i); });
    zero_hidden(to, cols, to_ld);
  }
}

template <typename T>
void narrow(const float* from, int64_t from_ld, int64_t cols, int64_t rows, void* to) {
  T* y = static_cast<T*>(to);
  for (int64_t r = 0; r < rows; ++r, from += from_ld, y += cols)
    each_vector(cols,
                [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(from + i), y + i); });
}

constexpr AttentionRows kRows = {kLanes, &forward, &backward, &scale, &dot};
constexpr RowCopies kCopies[] = {
    {&widen<float>, &narrow<float>}, {&widen<Bf16>, &narrow<Bf16>}, {&widen<F16>, &narrow<F16>}};

}  // namespace

const AttentionRows& rows_table() { return kRows; }
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
