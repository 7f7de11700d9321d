// A matrix product in tiles of 64 x 64, f32 or wider, for any sizes and strides: what runs where no
// library does. Sums go by k, in order.

template <typename W>
struct MatmulTiles {
  W a[16][68], b[16][68];
};

/// y[m, n] = scale op(a) op(b) + bias, or y += that. a: [m, k] or transposed; rows are row_a apart.
template <typename In, typename Out, typename Bias, typename W, bool kTransposeA, bool kTransposeB,
          bool kAccumulate, typename InB>
BRRR_DEVICE void matmul_block(const In* a, const InB* b, Out* y, const Bias* bias, i64 m, i64 n,
                              i64 k, i64 row_a, i64 row_b, i64 row_y, W scale = 1) {
  __shared__ MatmulTiles<W> tiles;
  const int thread = threadIdx.x;
  const i64 first_m = static_cast<i64>(blockIdx.y) * 64,
            first_n = static_cast<i64>(blockIdx.x) * 64;
  const int my_m = thread / 16 * 4, my_n = thread % 16 * 4;
  W sum[4][4] = {};
  for (i64 first_k = 0; first_k < k; first_k += 16) {
    __syncthreads();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int at = thread + step * 256;
      // Neighbouring threads read neighbouring elements, as the operand lies.
      const int mm = kTransposeA ? at % 64 : at / 16, ka = kTransposeA ? at / 64 : at % 16;
      const i64 i = first_m + mm, l = first_k + ka;
      tiles.a[ka][mm] = i < m && l < k
                            ? static_cast<W>(widen(a[kTransposeA ? l * row_a + i : i * row_a + l]))
                            : static_cast<W>(0);
      const int nn = kTransposeB ? at / 16 : at % 64, kb = kTransposeB ? at % 16 : at / 64;
      const i64 j = first_n + nn, lb = first_k + kb;
      tiles.b[kb][nn] =
          j < n && lb < k ? static_cast<W>(widen(b[kTransposeB ? j * row_b + lb : lb * row_b + j]))
                          : static_cast<W>(0);
    }
    __syncthreads();
    for (int l = 0; l < 16; ++l) {
      W x[4], w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = tiles.a[l][my_m + e];
        w[e] = tiles.b[l][my_n + e];
      }
#pragma unroll
      for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int q = 0; q < 4; ++q) sum[p][q] = multiply_add(x[p], w[q], sum[p][q]);
    }
  }
#pragma unroll
  for (int p = 0; p < 4; ++p)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const i64 i = first_m + my_m + p, j = first_n + my_n + q;
      if (i >= m || j >= n) continue;
      W total = sum[p][q] * scale;
      if (bias != nullptr) total += static_cast<W>(widen(bias[j]));
      Out& to = y[i * row_y + j];
      if (kAccumulate) total += static_cast<W>(widen(to));
      to = narrow<Out>(total);
    }
}
