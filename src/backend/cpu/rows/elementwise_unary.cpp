// Rows of one operand.

#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/elementwise_unary.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/functions-inl.h"
#include "backend/cpu/simd/trig-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

template <VF (*kFunction)(VF)>
void unary(const Row& row) {
  const auto* x = static_cast<const float*>(row.in[0]);
  auto* y = static_cast<float*>(row.out);
  each_vector(
      row.n, [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(kFunction(w.load(x + i)), y + i); });
}

void logical_not(const Row& row) {
  const auto* x = static_cast<const uint8_t*>(row.in[0]);
  auto* y = static_cast<uint8_t*>(row.out);
  const hn::ScalableTag<uint8_t> d;
  const auto n8 = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + n8 <= row.n; i += n8) {
    const auto zero = hn::Eq(hn::LoadU(d, x + i), hn::Zero(d));
    hn::StoreU(hn::IfThenElseZero(zero, hn::Set(d, uint8_t{1})), d, y + i);
  }
  for (; i < row.n; ++i) y[i] = x[i] == 0;
}

constexpr RowEntry kRows[] = {
    {Op::neg, DType::f32, &unary<f_neg>},
    {Op::exp, DType::f32, &unary<f_exp>},
    {Op::log, DType::f32, &unary<f_log>},
    {Op::sqrt, DType::f32, &unary<f_sqrt>},
    {Op::rsqrt, DType::f32, &unary<f_rsqrt>},
    {Op::reciprocal, DType::f32, &unary<f_reciprocal>},
    {Op::square, DType::f32, &unary<f_square>},
    {Op::abs, DType::f32, &unary<f_abs>},
    {Op::tanh, DType::f32, &unary<f_tanh>},
    {Op::erf, DType::f32, &unary<f_erf>},
    {Op::sigmoid, DType::f32, &unary<f_sigmoid>},
    {Op::floor, DType::f32, &unary<f_floor>},
    {Op::ceil, DType::f32, &unary<f_ceil>},
    {Op::round, DType::f32, &unary<f_round>},
    {Op::relu, DType::f32, &unary<f_relu>},
    {Op::sin, DType::f32, &unary<f_sin>},
    {Op::cos, DType::f32, &unary<f_cos>},
    {Op::asin, DType::f32, &unary<f_asin>},
    {Op::acos, DType::f32, &unary<f_acos>},
    {Op::atan, DType::f32, &unary<f_atan>},
    {Op::silu, DType::f32, &unary<f_silu>},
    {Op::gelu, DType::f32, &unary<f_gelu_tanh>, "tanh"},
    {Op::gelu, DType::f32, &unary<f_gelu_erf>, "none"},
    {Op::logical_not, DType::boolean, &logical_not},
};

}  // namespace

std::span<const RowEntry> unary_row_table() { return kRows; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(unary_row_table);
std::span<const RowEntry> unary_rows() { return HWY_DYNAMIC_DISPATCH(unary_row_table)(); }
}  // namespace brrr::cpu
#endif
