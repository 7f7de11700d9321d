#include "backend/cpu/updates/optimizer_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"
#include "ops/update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/updates/optimizer_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

// Four streams are more than the hardware prefetcher follows well.
HWY_INLINE void prefetch(const UpdateRun& run, int64_t i, int states) {
  constexpr int64_t kAhead = 512;
  __builtin_prefetch(run.param + i + kAhead, 1, 3);
  __builtin_prefetch(run.grad + i + kAhead, 0, 3);
  for (int k = 0; k < states; ++k) __builtin_prefetch(run.state[k] + i + kAhead, 1, 3);
}

template <typename Access>
HWY_INLINE void put_narrow(Access w, VF x, bool is_f16, uint16_t* to) {
  if (is_f16)
    w.store(x, reinterpret_cast<F16*>(to));
  else
    w.store(x, reinterpret_cast<Bf16*>(to));
}

// The new parameter, and its copy while it is in a register.
template <typename Access>
HWY_INLINE void put_param(const UpdateRun& run, Access w, VF p, int64_t i) {
  w.store(p, run.new_param + i);
  if (run.copy != nullptr) put_narrow(w, p, run.copy_is_f16, run.copy + i);
}

void adamw(const AdamwStep& s, const UpdateRun& run) {
  const VF beta1 = splat(s.beta1), rest1 = splat(s.one_minus_beta1), beta2 = splat(s.beta2);
  const VF rest2 = splat(s.one_minus_beta2), scale = splat(s.scale), keep = splat(s.keep);
  const VF step_size = splat(s.step_size), correction = splat(s.correction), eps = splat(s.eps);
  each_vector(run.n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    prefetch(run, i, 2);
    const VF g = hn::Mul(scale, w.load(run.grad + i));
    const VF m = hn::MulAdd(beta1, w.load(run.state[0] + i), hn::Mul(rest1, g));
    const VF v = hn::MulAdd(beta2, w.load(run.state[1] + i), hn::Mul(hn::Mul(rest2, g), g));
    const VF below = hn::MulAdd(hn::Sqrt(v), correction, eps);
    const VF step = hn::Div(hn::Mul(step_size, m), below);
    put_param(run, w, hn::MulSub(w.load(run.param + i), keep, step), i);
    w.store(m, run.new_state[0] + i);
    w.store(v, run.new_state[1] + i);
  });
}

void sgd(const SgdStep& s, const UpdateRun& run) {
  const VF momentum = splat(s.momentum), scale = splat(s.scale), decay = splat(s.decay);
  const VF lr = splat(s.lr);
  each_vector(run.n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    prefetch(run, i, 1);
    const VF p = w.load(run.param + i);
    const VF g = hn::MulAdd(decay, p, hn::Mul(scale, w.load(run.grad + i)));
    const VF m = hn::MulAdd(momentum, w.load(run.state[0] + i), g);
    put_param(run, w, hn::NegMulAdd(lr, m, p), i);
    w.store(m, run.new_state[0] + i);
  });
}

void lion(const LionStep& s, const UpdateRun& run) {
  const VF beta1 = splat(s.beta1), rest1 = splat(s.one_minus_beta1), beta2 = splat(s.beta2);
  const VF rest2 = splat(s.one_minus_beta2), scale = splat(s.scale), keep = splat(s.keep);
  const VF lr = splat(s.lr), zero = hn::Zero(DF());
  each_vector(run.n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    prefetch(run, i, 1);
    const VF g = hn::Mul(scale, w.load(run.grad + i)), m = w.load(run.state[0] + i);
    const VF c = hn::MulAdd(beta1, m, hn::Mul(rest1, g));
    const VF step = hn::IfThenElse(hn::Eq(c, zero), zero, hn::CopySign(lr, c));
    put_param(run, w, hn::MulSub(w.load(run.param + i), keep, step), i);
    w.store(hn::MulAdd(beta2, m, hn::Mul(rest2, g)), run.new_state[0] + i);
  });
}

void muon(const MuonStep& s, const UpdateRun& run) {
  const VF keep = splat(s.keep), step = splat(s.step_size);
  each_vector(run.n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF u = hn::Mul(step, w.load(run.grad + i));
    put_param(run, w, hn::MulSub(w.load(run.param + i), keep, u), i);
  });
}

void muon_momentum(const SgdStep& s, const UpdateRun& run) {
  const VF momentum = splat(s.momentum), rest = splat(s.decay * s.scale);
  each_vector(run.n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF g = hn::Mul(rest, w.load(run.grad + i));
    const VF m = hn::MulAdd(momentum, w.load(run.state[0] + i), g);
    w.store(hn::MulAdd(momentum, m, g), run.new_param + i);
    w.store(m, run.new_state[0] + i);
  });
}

/// f32 within blocks, f64 between them.
template <typename T>
double sum_of_squares(const void* data, int64_t n) {
  constexpr int64_t kBlock = 1024;
  const T* x = static_cast<const T*>(data);
  const VF zero = hn::Zero(DF());
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    VF s[4] = {zero, zero, zero, zero};
    each_vector_4(std::min(kBlock, n - begin), [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      __builtin_prefetch(block + i + 1024, 0, 3);
      const VF value = w.load(block + i);
      s[slot] = hn::MulAdd(value, value, s[slot]);
    });
    total += static_cast<double>(sum_4(s));
  }
  return total;
}

void add_to(const float* x, float* y, int64_t n) {
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { w.store(hn::Add(w.load(y + i), w.load(x + i)), y + i); });
}

void widen(const uint16_t* x, float* y, int64_t n) {
  const auto* from = reinterpret_cast<const Bf16*>(x);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(from + i), y + i); });
}

void narrow(const float* x, bool is_f16, uint16_t* y, int64_t n) {
  each_vector(
      n, [&](auto w, int64_t i) BRRR_INLINE_BODY { put_narrow(w, w.load(x + i), is_f16, y + i); });
}

void round_at_random(const float* x, const uint16_t* random, uint16_t* y, int64_t n) {
  const DU du;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = load(x + i);
    const auto bits = hn::BitCast(du, v);
    const auto sum = hn::Add(bits, hn::PromoteTo(du, hn::LoadU(D16(), random + i)));
    const auto exponent = hn::Set(du, 0x7f800000u);
    const auto special = hn::Eq(hn::And(bits, exponent), exponent);
    const auto rounded = hn::IfThenElse(special, bf16_bits(v), hn::ShiftRight<16>(sum));
    hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(DI(), rounded)), D16(), y + i);
  }
  for (; i < n; ++i) y[i] = ops::bf16_at_random(x[i], random[i]);
}

constexpr OptimizerRows kTable = {&adamw,
                                  &sgd,
                                  &lion,
                                  &muon,
                                  &muon_momentum,
                                  &sum_of_squares<float>,
                                  &sum_of_squares<Bf16>,
                                  &add_to,
                                  &widen,
                                  &narrow,
                                  &round_at_random};

}  // namespace

const OptimizerRows& optimizer_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(optimizer_table);
const OptimizerRows& optimizer_rows() { return HWY_DYNAMIC_DISPATCH(optimizer_table)(); }
}  // namespace brrr::cpu
#endif
