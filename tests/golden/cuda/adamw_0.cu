struct Tensor {
  const f32* a0;
  const f32* a1;
  const f32* a2;
  const f32* a3;
  f32* y0;
  f32* y1;
  f32* y2;
  i64 n, first;
  i64 n0;
  i64 n1;
  i64 n2;
};
struct Tensors {
  Tensor of[41];
};
BRRR_KERNEL(256) adamw(BRRR_GRID_CONSTANT const Tensors tensors, i64 count, i64 first_block, const f32* lr, const i32* t, const f32* scale) {
  __shared__ float prepared[2];
  if (threadIdx.x == 0) {
    prepared[0] = static_cast<float>(1.0 - pow((0.90000000000000002), static_cast<double>(*t)));
    prepared[1] = static_cast<float>(1.0 - pow((0.94999999999999996), static_cast<double>(*t)));
  }
  __syncthreads();
  const float rate = *lr, factor = *scale;
  (void)prepared;
  int k = 0;
  while (k + 1 < count && blockIdx.x >= tensors.of[k + 1].first) ++k;
  const Tensor& x = tensors.of[k];
  const i64 block = blockIdx.x + first_block, begin = (blockIdx.x - x.first) * 4096ll;
  for (i64 i = begin + threadIdx.x * 4; i < begin + 4096 && i < x.n; i += 256 * 4) {
    const int n = x.n - i < 4 ? static_cast<int>(x.n - i) : 4;
    float v0[4];
    load_some(v0, x.a0 + i, n);
    float v1[4];
    load_some(v1, x.a1 + i, n);
    float v2[4];
    load_some(v2, x.a2 + i, n);
    float v3[4];
    load_some(v3, x.a3 + i, n);
    float w0[4];
    float w1[4];
    float w2[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
float p = v0[e];
float s0 = v2[e];
float s1 = v3[e];
if (factor == factor) {
const float g = factor * v1[e], decay = x.n0 != 0 ? (0.100000001f) : 0.0f;
const float shape_rate = static_cast<float>(__longlong_as_double(x.n2));
(void)shape_rate;
(void)decay;
s0 = (0.899999976f) * s0 + (0.100000001f) * g;
s1 = (0.949999988f) * s1 + (0.0500000007f) * g * g;
p = p - rate * decay * p - rate * (s0 / prepared[0]) / (sqrtf(s1 / prepared[1]) + (9.99999994e-09f));
}
w0[e] = p;
w1[e] = s0;
w2[e] = s1;
    }
    store_some(x.y0 + i, w0, n);
    store_some(x.y1 + i, w1, n);
    store_some(x.y2 + i, w2, n);
  }
  (void)block;
}
