BRRR_KERNEL(256) gelu_kernel(const bf16* a0, bf16* y0) {
  const u32 i = (blockIdx.x * static_cast<u32>(256) + threadIdx.x) * 8;
  if (i >= 25165824u) return;
  float o0[8];
  float x0[8];
  load(x0, a0 + i);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float v1 = rounded<bf16>(gelu_tanh(x0[e]));
    o0[e] = v1;
  }
  store(y0 + i, o0);
}
