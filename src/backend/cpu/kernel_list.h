#pragma once
// What the CPU can run: one function per file of kernels, joined in the order of kernel_list.cpp.
// Each kernel computes in f32 (f64 where noted), gives the same bits for any number of threads and
// any alignment, and is compiled for every instruction set that isa.h may choose.
//
// Rows are independent: the bits of a row (of a product's left operand, of what is normalised, of a
// loss, of element-wise ops) depend neither on the number of rows that are computed with it nor on
// its place among them, fused or not, so a token that is decoded alone or beside other requests
// gets the bits that it gets in a batch (tests/backend/row_independence_test.cpp). Exceptions: sums
// over rows (gradients of weights and biases), scales of whole tensors (fp8), dropout, whose random
// bits belong to an element's place, and oneDNN's products, which run only where ours are disabled.
// Other devices promise nothing.

#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

std::vector<KernelEntry> matmul_kernels();          // matmul, linear
std::vector<KernelEntry> integer_matmul_kernels();  // matmul with quantised weights
std::vector<KernelEntry> exact_matmul_kernels();    // matmul of i8 with weights in panels
std::vector<KernelEntry> attention_kernels();       // attention, attention_grad
std::vector<KernelEntry> elementwise_kernels();     // the table of src/ops/elementwise.cpp, gelu
std::vector<KernelEntry> cast_kernels();
std::vector<KernelEntry> quantize_kernels();              // quantize, quantize_scale
std::vector<KernelEntry> random_kernels();                // random_bits, dropout
std::vector<KernelEntry> softmax_kernels();               // softmax, softmax_grad
std::vector<KernelEntry> norm_kernels();                  // layer_norm, rms_norm, their derivatives
std::vector<KernelEntry> rotary_kernels();                // rotary
std::vector<KernelEntry> cross_entropy_kernels();         // cross_entropy, cross_entropy_grad
std::vector<KernelEntry> loss_head_kernels();             // linear_cross_entropy, _grad, _step
std::vector<KernelEntry> reduction_kernels();             // sum, max, min, product
std::vector<KernelEntry> movement_kernels();              // transpose, slice, pad, concat, ...
std::vector<KernelEntry> store_kernels();                 // store
std::vector<KernelEntry> store_integer_kernels();         // store
std::vector<KernelEntry> embedding_kernels();             // embedding, embedding_grad
std::vector<KernelEntry> gather_kernels();                // gather, gather_elements
std::vector<KernelEntry> segment_kernels();               // segment_sum, segment_max
std::vector<KernelEntry> line_kernels();                  // sort, argmax, cumsum, cumprod, scatter
std::vector<KernelEntry> optimizer_kernels();             // adamw, sgd, lion, muon, global_norm
std::vector<KernelEntry> block_norm_kernels();            // block_squares, block_norm
std::vector<KernelEntry> optimizer_8bit_kernels();        // adamw_8bit
std::vector<KernelEntry> adafactor_kernels();             // adafactor, adafactor_vector
std::vector<KernelEntry> leaf_kernels();                  // full, iota
std::vector<KernelEntry> fused_kernels();                 // fused: tiles, gemm and tiles
std::vector<KernelEntry> channels_last_window_kernels();  // pools, depthwise convolutions
std::vector<KernelEntry> conv_kernels();                  // conv, conv_transpose, conv_weight_grad
std::vector<KernelEntry> pool_kernels();                  // max_pool, sum_pool
std::vector<KernelEntry> scalar_pool_kernels();           // the same of integers and f64
std::vector<KernelEntry> max_pool_grad_kernels();         // of pictures with channels first
std::vector<KernelEntry> recurrent_kernels();             // lstm, gru, their derivatives
std::vector<KernelEntry> control_kernels();               // if, loop

/// All of them; for one op the earlier entry is tried first.
std::vector<KernelEntry> cpu_kernels();

}  // namespace brrr::cpu
