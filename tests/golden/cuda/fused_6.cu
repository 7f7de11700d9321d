BRRR_KERNEL(256) fused_kernel(const f32* a0, const f32* a1, const f32* a2, const f32* a3, const f32* a4, const f32* a5, const i32* a6, f32* y0, f32* y1, f32* y2, u32 stream0, f32* partials) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  float sum5_1[24] = {};
  float sum5_2[24] = {};
  const u32 first = blockIdx.x * static_cast<u32>(32);
  const u32 last = first + 32u < 8192u ? first + 32u : 8192u;
  for (u32 row = first + group; row < last; row += 8) {
    const float mean5 = widen(a3[row]), rstd5 = widen(a4[row]);
    float g5 = 0.0f, gh5 = 0.0f;
    float h0[24];
    float h1[24];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const int col = (c * 32 + lane) * 8;
      float x0[8];
      load(x0, a0 + row * 768u + col);
      float x1[8];
      load(x1, a1 + row * 768u + col);
      float x2[8];
      load(x2, a2 + col);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int j = c * 8 + e;
        h1[j] = x1[e];
        h0[j] = x0[e];
        g5 += x0[e] * x2[e];
        gh5 += x0[e] * x2[e] * ((x1[e] - mean5) * rstd5);
      }
    }
    g5 = fold<Add, 32>(g5) / 768.0f;
    gh5 = fold<Add, 32>(gh5) / 768.0f;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const int col = (c * 32 + lane) * 8;
      const u32 i = row * static_cast<u32>(768) + static_cast<u32>(col);
      int r6_0[8];
      draw(r6_0, a6, stream0, i);
      float o2[8];
      float x2[8];
      load(x2, a2 + col);
      float x3[8];
      load(x3, a5 + row * 768u + col);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int j = c * 8 + e;
        const float n5 = (h1[j] - mean5) * rstd5;
        sum5_1[j] += h0[j] * n5;
        sum5_2[j] += h0[j];
        const float v5 = rstd5 * (h0[j] * x2[e] - g5 - n5 * gh5);
        const float v7 = x3[e] + v5;
        const float v9 = (r6_0[e] >= 6554 ? v7 * (1.11111867f) : (0.00000000f));
        o2[e] = v9;
      }
      store(y2 + i, o2);
    }
  }
  __shared__ float columns[768];
  for (int g = 0; g < 8; ++g) {
    __syncthreads();
    if (group == g) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int col = (c * 32 + lane) * 8;
        float o[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int k = col + e;
          o[e] = g == 0 ? sum5_1[c * 8 + e] : columns[k] + sum5_1[c * 8 + e];
          columns[k] = o[e];
        }
        if (g == 7) store(partials + (0u + blockIdx.x) * 768ull + col, o);
      }
    }
  }
  for (int g = 0; g < 8; ++g) {
    __syncthreads();
    if (group == g) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int col = (c * 32 + lane) * 8;
        float o[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int k = col + e;
          o[e] = g == 0 ? sum5_2[c * 8 + e] : columns[k] + sum5_2[c * 8 + e];
          columns[k] = o[e];
        }
        if (g == 7) store(partials + (256u + blockIdx.x) * 768ull + col, o);
      }
    }
  }
}
BRRR_KERNEL(1024) fused_kernel_sums(const f32* partials, f32* y0, f32* y1) {
  __shared__ float slices[32][33];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
  float total = 0.0f;
  if (col < 768)
    for (u32 p = slice; p < 256u; p += 32)
      total += partials[(blockIdx.y * 256u + p) * 768ull + col];
  slices[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || col >= 768) return;
  for (int k = 1; k < 32; ++k) total += slices[k][lane];
  if (blockIdx.y == 0) y0[col] = narrow<f32>(total);
  if (blockIdx.y == 1) y1[col] = narrow<f32>(total);
}
