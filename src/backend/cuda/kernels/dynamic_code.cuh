// Moments in 8 bits (ops/quantized/dynamic_code.h): a warp works on a block of 256 codes, 8 to a
// lane.

/// The code of the number nearest to x; halfway the lower one. codes: [256] ascending.
BRRR_DEVICE u8 nearest_code(const float* codes, float x) {
  u32 low = 0, high = 255;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const u32 middle = (low + high) / 2;
    const bool above = low < high && (codes[middle] + codes[middle + 1]) / 2.0f < x;
    const bool below = low < high && !above;
    low = above ? middle + 1 : low;
    high = below ? middle : high;
  }
  return static_cast<u8>(low);
}
/// The block's new scale, and its codes.
BRRR_DEVICE float encode(const float* codes, const float (&x)[8], int (&to)[8], int n) {
  float scale = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (e < n) scale = op_maximum(scale, fabsf(x[e]));
  scale = warp_fold<Larger>(scale);
  const float divisor = op_maximum(scale, 1e-38f);
#pragma unroll
  for (int e = 0; e < 8; ++e) to[e] = e < n ? nearest_code(codes, x[e] / divisor) : 0;
  return scale;
}
