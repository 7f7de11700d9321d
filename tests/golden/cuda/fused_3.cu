BRRR_KERNEL(128) fused_kernel(const bf16* a0, const bf16* a1, bf16* y0, f32* y1, f32* partials) {
  const int lane = threadIdx.x % 128, group = threadIdx.x / 128;
  const int column = blockIdx.y * 1024;
  float sum5[8] = {};
  const u32 first = blockIdx.x * static_cast<u32>(16);
  const u32 last = first + 16u < 8192u ? first + 16u : 8192u;
  for (u32 row = first + group; row < last; row += 1) {
#pragma unroll
    for (int c = 0; c < 1; ++c) {
      const int col = column + (c * 128 + lane) * 8;
      const u32 i = row * static_cast<u32>(3072) + static_cast<u32>(col);
      float o0[8];
      float x0[8];
      load(x0, a0 + row * 3072u + col);
      float x1[8];
      load(x1, a1 + row * 3072u + col);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int j = c * 8 + e;
        const float v2 = rounded<bf16>(gelu_grad_tanh(x0[e], x1[e]));
        o0[e] = v2;
        const float v3 = static_cast<float>(v2);
        sum5[j] += v3;
      }
      store(y0 + i, o0);
    }
  }
#pragma unroll
  for (int c = 0; c < 1; ++c) {
    const int col = column + (c * 128 + lane) * 8;
    float o[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) o[e] = sum5[c * 8 + e];
    store(partials + (0u + blockIdx.x) * 3072ull + col, o);
  }
}
BRRR_KERNEL(1024) fused_kernel_sums(const f32* partials, f32* y1) {
  __shared__ float slices[32][33];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
  float total = 0.0f;
  if (col < 3072)
    for (u32 p = slice; p < 512u; p += 32)
      total += partials[(blockIdx.y * 512u + p) * 3072ull + col];
  slices[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || col >= 3072) return;
  for (int k = 1; k < 32; ++k) total += slices[k][lane];
  if (blockIdx.y == 0) y1[col] = narrow<f32>(total);
}
