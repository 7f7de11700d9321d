#pragma once
// Op: the identity of every op, which passes and backends compare. A new op is a name here and an
// OpDef of that name (all_ops.cpp). A new element-wise op is a name here, a row of the table in
// elementwise.cpp and a row function of the CPU (backend/cpu/rows), by which it is fused, too.

#include <cstdint>
#include <string_view>

// clang-format off
// Element-wise ops, for each of which ops.h declares a function of the name.
#define BRRR_UNARY_OPS(X)                                                                       \
  X(neg) X(exp) X(log) X(sqrt) X(rsqrt) X(reciprocal) X(square) X(abs) X(tanh) X(erf)           \
  X(sigmoid) X(relu) X(sin) X(cos) X(floor) X(ceil) X(round) X(tan) X(asin) X(acos) X(atan)     \
  X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(log1p) X(expm1) X(logical_not)
#define BRRR_BINARY_OPS(X)                                                                      \
  X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(pow) X(fmod) X(bit_and) X(bit_or)         \
  X(bit_xor) X(shift_left) X(shift_right) X(equal) X(not_equal) X(less) X(less_equal)           \
  X(greater) X(greater_equal) X(logical_and) X(logical_or)
// The others; `_` ends the names that are keywords of C++.
#define BRRR_OTHER_OPS(X)                                                                       \
  X(full) X(iota) X(literal) X(random_bits) X(where) X(cast) X(gelu) X(gelu_grad) X(silu)       \
  X(silu_grad) X(dropout) X(quantize) X(quantize_scale) X(fake_quantize) X(scaled_matmul) X(fused)               \
  X(matmul) X(linear) X(attention) X(attention_grad) X(linear_cross_entropy)                    \
  X(linear_cross_entropy_grad) X(linear_cross_entropy_step) X(cross_entropy)                    \
  X(cross_entropy_grad) X(conv) X(conv_transpose) X(conv_weight_grad) X(winograd_weight) X(max_pool) X(max_pool_grad)  \
  X(sum_pool) X(batch_norm) X(batch_norm_grad) X(lstm) X(lstm_grad) X(gru) X(gru_grad)          \
  X(sum) X(max) X(min) X(product) X(softmax) X(softmax_grad) X(layer_norm) X(layer_norm_grad)   \
  X(rms_norm) X(rms_norm_grad) X(argmax) X(sort) X(cumsum) X(cumprod) X(rotary) X(reshape)      \
  X(transpose) X(slice) X(pad) X(concat) X(broadcast_to) X(update_slice) X(update_rows) X(bitcast) X(gather)   \
  X(gather_elements) X(segment_sum) X(segment_max) X(scatter) X(store) X(embedding) X(embedding_grad) X(after) X(global_norm) X(adamw) X(sgd)    \
  X(lion) X(adamw_8bit) X(adafactor) X(adafactor_vector) X(muon_momentum) X(newton_schulz)      \
  X(muon) X(all_reduce) X(reduce_scatter) X(all_gather) X(own_shard) X(block_squares) X(block_norm)         \
  X(if_) X(loop)
// clang-format on

namespace brrr {

enum class Op : uint16_t {
  none,  // an input, or an OpDef of a test's own
#define BRRR_NAME(name) name,
  BRRR_UNARY_OPS(BRRR_NAME) BRRR_BINARY_OPS(BRRR_NAME) BRRR_OTHER_OPS(BRRR_NAME)
#undef BRRR_NAME
};

/// The name that texts and reports have for it.
std::string_view name_of(Op op);

}  // namespace brrr
