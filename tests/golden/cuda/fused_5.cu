BRRR_KERNEL(128) fused_kernel(const bf16* a0, f32* y0, f32* partials) {
  const int lane = threadIdx.x % 128, group = threadIdx.x / 128;
  const int column = blockIdx.y * 1024;
  float sum3[8] = {};
  const u32 first = blockIdx.x * static_cast<u32>(16);
  const u32 last = first + 16u < 8192u ? first + 16u : 8192u;
  for (u32 row = first + group; row < last; row += 1) {
#pragma unroll
    for (int c = 0; c < 1; ++c) {
      if (column + (c * 128 + lane) * 8 < 2304) {
        const int col = column + (c * 128 + lane) * 8;
        float x0[8];
        load(x0, a0 + row * 2304u + col);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int j = c * 8 + e;
          const float v1 = static_cast<float>(x0[e]);
          sum3[j] += v1;
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 1; ++c) {
    if (column + (c * 128 + lane) * 8 < 2304) {
      const int col = column + (c * 128 + lane) * 8;
      float o[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) o[e] = sum3[c * 8 + e];
      store(partials + (0u + blockIdx.x) * 2304ull + col, o);
    }
  }
}
BRRR_KERNEL(1024) fused_kernel_sums(const f32* partials, f32* y0) {
  __shared__ float slices[32][33];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
  float total = 0.0f;
  if (col < 2304)
    for (u32 p = slice; p < 512u; p += 32)
      total += partials[(blockIdx.y * 512u + p) * 2304ull + col];
  slices[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || col >= 2304) return;
  for (int k = 1; k < 32; ++k) total += slices[k][lane];
  if (blockIdx.y == 0) y0[col] = narrow<f32>(total);
}
