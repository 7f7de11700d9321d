#include "backend/cpu/recurrent/recurrent_rows.h"

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/recurrent/recurrent_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// 1 - x
HWY_INLINE VF complement(VF x) { return hn::Sub(splat(1.0f), x); }
/// x (1 - x), the derivative of a logistic function whose value is x.
HWY_INLINE VF logistic_slope(VF x) { return hn::Mul(x, complement(x)); }
/// 1 - x^2, the derivative of a hyperbolic tangent whose value is x.
HWY_INLINE VF tanh_slope(VF x) { return hn::NegMulAdd(x, x, splat(1.0f)); }

void lstm_forward(float* sums, const float* before, float* cell, float* hidden, int64_t rows,
                  int64_t h) {
  for (int64_t r = 0; r < rows; ++r, sums += 4 * h, before += h, cell += h, hidden += h)
    each_vector(h, [&](auto w, int64_t j) BRRR_INLINE_BODY {
      const VF in = sigmoid(w.load(sums + j)), forget = sigmoid(w.load(sums + h + j)),
               candidate = tanh(w.load(sums + 2 * h + j)), out = sigmoid(w.load(sums + 3 * h + j));
      const VF next = hn::MulAdd(forget, w.load(before + j), hn::Mul(in, candidate));
      w.store(in, sums + j);
      w.store(forget, sums + h + j);
      w.store(candidate, sums + 2 * h + j);
      w.store(out, sums + 3 * h + j);
      w.store(next, cell + j);
      w.store(hn::Mul(out, tanh(next)), hidden + j);
    });
}

void lstm_backward(const RecurrentRows::LstmGrad& s, int64_t rows, int64_t h) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = s.activations + r * 4 * h;
    float* d = s.d_gates + r * 4 * h;
    const int64_t at = r * h;
    each_vector(h, [&](auto w, int64_t j) BRRR_INLINE_BODY {
      const VF in = w.load(a + j), forget = w.load(a + h + j), candidate = w.load(a + 2 * h + j),
               out = w.load(a + 3 * h + j);
      const VF bent = tanh(w.load(s.cells + at + j));
      const VF dh = hn::Add(w.load(s.d_hidden + at + j), w.load(s.d_outputs + at + j));
      const VF dc = hn::MulAdd(hn::Mul(dh, out), tanh_slope(bent), w.load(s.d_cell + at + j));
      w.store(hn::Mul(hn::Mul(dc, candidate), logistic_slope(in)), d + j);
      w.store(hn::Mul(hn::Mul(dc, w.load(s.before + at + j)), logistic_slope(forget)), d + h + j);
      w.store(hn::Mul(hn::Mul(dc, in), tanh_slope(candidate)), d + 2 * h + j);
      w.store(hn::Mul(hn::Mul(dh, bent), logistic_slope(out)), d + 3 * h + j);
      w.store(hn::Mul(dc, forget), s.d_cell + at + j);
    });
  }
}

void gru_forward(const float* gates, const float* product, const float* bias, const float* before,
                 float* a, float* hidden, int64_t rows, int64_t h) {
  for (int64_t r = 0; r < rows;
       ++r, gates += 3 * h, product += 3 * h, before += h, a += 4 * h, hidden += h)
    each_vector(h, [&](auto w, int64_t j) BRRR_INLINE_BODY {
      const VF reset = sigmoid(hn::Add(w.load(gates + j), w.load(product + j))),
               update = sigmoid(hn::Add(w.load(gates + h + j), w.load(product + h + j))),
               seen = hn::Add(w.load(product + 2 * h + j), w.load(bias + j));
      const VF candidate = tanh(hn::MulAdd(reset, seen, w.load(gates + 2 * h + j)));
      w.store(reset, a + j);
      w.store(update, a + h + j);
      w.store(candidate, a + 2 * h + j);
      w.store(seen, a + 3 * h + j);
      w.store(hn::MulAdd(update, hn::Sub(w.load(before + j), candidate), candidate), hidden + j);
    });
}

void gru_backward(const RecurrentRows::GruGrad& s, int64_t rows, int64_t h) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = s.activations + r * 4 * h;
    float *d = s.d_gates + r * 3 * h, *p = s.d_product + r * 3 * h;
    const int64_t at = r * h;
    each_vector(h, [&](auto w, int64_t j) BRRR_INLINE_BODY {
      const VF reset = w.load(a + j), update = w.load(a + h + j), candidate = w.load(a + 2 * h + j),
               seen = w.load(a + 3 * h + j);
      const VF dh = hn::Add(w.load(s.d_hidden + at + j), w.load(s.d_outputs + at + j));
      const VF dn = hn::Mul(hn::Mul(dh, complement(update)), tanh_slope(candidate));
      const VF dr = hn::Mul(hn::Mul(dn, seen), logistic_slope(reset));
      const VF dz = hn::Mul(hn::Mul(dh, hn::Sub(w.load(s.before + at + j), candidate)),
                            logistic_slope(update));
      w.store(dr, d + j);
      w.store(dz, d + h + j);
      w.store(dn, d + 2 * h + j);
      w.store(dr, p + j);
      w.store(dz, p + h + j);
      w.store(hn::Mul(dn, reset), p + 2 * h + j);
      w.store(hn::Mul(dh, update), s.d_hidden + at + j);
    });
  }
}

constexpr RecurrentRows kRecurrentRows = {&lstm_forward, &lstm_backward, &gru_forward,
                                          &gru_backward};

}  // namespace

const RecurrentRows& recurrent_table() { return kRecurrentRows; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(recurrent_table);
const RecurrentRows& recurrent_rows() { return HWY_DYNAMIC_DISPATCH(recurrent_table)(); }
}  // namespace brrr::cpu
#endif
