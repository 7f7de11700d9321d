#pragma once
// The block formats of ggml as loops: each function writes the f32 values of `count` blocks, which
// may lie at any address. The order of the operations is that of gguf-py's NumPy code, so that the
// results have the same bits; products and sums must not be contracted (-ffp-contract=off).

#include <cstddef>
#include <cstdint>

namespace brrr::blocks {

void dequantise_f32(const std::byte* blocks, int64_t count, float* out);
void dequantise_f16(const std::byte* blocks, int64_t count, float* out);
void dequantise_bf16(const std::byte* blocks, int64_t count, float* out);

// Blocks of 32 values.
void dequantise_q4_0(const std::byte* blocks, int64_t count, float* out);
void dequantise_q4_1(const std::byte* blocks, int64_t count, float* out);
void dequantise_q5_0(const std::byte* blocks, int64_t count, float* out);
void dequantise_q5_1(const std::byte* blocks, int64_t count, float* out);
void dequantise_q8_0(const std::byte* blocks, int64_t count, float* out);
void dequantise_iq4_nl(const std::byte* blocks, int64_t count, float* out);
void dequantise_mxfp4(const std::byte* blocks, int64_t count, float* out);

// Blocks of 256 values.
void dequantise_q2_k(const std::byte* blocks, int64_t count, float* out);
void dequantise_q3_k(const std::byte* blocks, int64_t count, float* out);
void dequantise_q4_k(const std::byte* blocks, int64_t count, float* out);
void dequantise_q5_k(const std::byte* blocks, int64_t count, float* out);
void dequantise_q6_k(const std::byte* blocks, int64_t count, float* out);
void dequantise_iq4_xs(const std::byte* blocks, int64_t count, float* out);

}  // namespace brrr::blocks
