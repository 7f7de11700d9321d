#pragma once
// fused, where the body begins with a product or a convolution: the rest of the body is computed on
// every block of it when gemm() or the direct convolution has finished the block. A sum over the
// terms of an operand is made while that is packed, in the chunks and the order of the op alone:
// the same bits.

#include "runtime/backend.h"

namespace brrr::cpu {

std::string fused_product_refusal(const NodeView& node);
std::unique_ptr<Kernel> fused_product(const NodeView& node);

/// Matrix units finish a product so soon that a second pass over it would cost a good part of it,
/// and so do products of integers. f32 multiply-adds take an order of magnitude longer, the tiles'
/// own pass hides its memory behind its arithmetic, and the product loses more (its sums may not
/// grow in C) than the pass takes. The sums of a direct convolution lie in a cache of their own
/// anyway.
bool gains_by_epilogue(const NodeView& product, const NodeView& reader);
/// The same goes for the sum over the terms of an operand in bf16, which is packed anyway.
bool gains_by_bias_gradient(const NodeView& product, const NodeView& sum);

}  // namespace brrr::cpu
