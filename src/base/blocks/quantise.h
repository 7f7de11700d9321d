#pragma once
// Floats to the block formats of ggml: each function writes `count` blocks of finite values. Those
// of 32 values and plain floats have the bytes of gguf-py's NumPy code (and of ggml's reference
// code); those of 256 values search for the scales with the least error.

#include <cstddef>
#include <cstdint>

namespace brrr::blocks {

void quantise_f32(const float* values, int64_t count, std::byte* out);
void quantise_f16(const float* values, int64_t count, std::byte* out);
void quantise_bf16(const float* values, int64_t count, std::byte* out);

// Blocks of 32 values.
void quantise_q4_0(const float* values, int64_t count, std::byte* out);
void quantise_q5_0(const float* values, int64_t count, std::byte* out);
void quantise_q5_1(const float* values, int64_t count, std::byte* out);
void quantise_q8_0(const float* values, int64_t count, std::byte* out);

// Blocks of 256 values.
void quantise_q4_k(const float* values, int64_t count, std::byte* out);
void quantise_q5_k(const float* values, int64_t count, std::byte* out);
void quantise_q6_k(const float* values, int64_t count, std::byte* out);

}  // namespace brrr::blocks
