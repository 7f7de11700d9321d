// Attention on the matrix unit, for bf16 and f16 and heads of 64 or 128: 64 queries (or keys) to a
// block, 16 to a warp, the other side in tiles that are copied while the last ones are worked on
// (Dao 2023, "FlashAttention-2"). Scores, probabilities and their gradients never leave registers.
// The backward pass goes once by queries (dq) and once by keys (dk, dv): no sum has two owners.
// Shapes as in attention.cuh.

#define BRRR_LOG2E 1.4426950408889634f
enum { kBlockRows = 64 };

/// Whether a tile of rows [i, i + 64) and keys [j, j + n) needs a look at every element.
template <typename Options>
BRRR_DEVICE bool needs_mask(int i, int j, int n, int keys_end_for_first) {
  if (!Options::kPlain) return true;
  if (j + n > Options::kKeys || i + kBlockRows > Options::kQueries) return true;
  return Options::kCausal && j + n > keys_end_for_first;
}
/// The score of (i, j) in units of log2, -inf outside.
template <typename Options, typename Extra>
BRRR_DEVICE float masked_score(float product, const Extra& extra, u64 head, int i, int j) {
  if (i >= Options::kQueries || j >= Options::kKeys) return -BRRR_INFINITY;
  return Options::score(product * Options::scale(), extra, head, i, j) * BRRR_LOG2E;
}

template <typename Options, typename T, int kKeys, typename Extra>
BRRR_DEVICE void attention_mma_forward(const T* q, const T* k, const T* v, T* y, float* lse,
                                       const Extra& extra) {
  constexpr int D = Options::kWidth;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D> qs{shared};
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;  // the longest first
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + warp * 16 + g;  // and row + 8
  const T* const head_k = k + head * Options::kKeys * D;
  const T* const head_v = v + head * Options::kKeys * D;
  auto key_tile = [&](int n) {
    return Tile<T, D>{shared + (kBlockRows + (n % 2) * 2 * kKeys) * D};
  };
  auto value_tile = [&](int n) {
    return Tile<T, D>{shared + (kBlockRows + (n % 2) * 2 * kKeys + kKeys) * D};
  };
  const int end = Options::last_key(extra, first + kBlockRows - 1 < Options::kQueries - 1
                                               ? first + kBlockRows - 1
                                               : Options::kQueries - 1);
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end + kKeys - 1) / kKeys;
  qs.template copy<kBlockRows, 128>(q + head * Options::kQueries * D, first, Options::kQueries);
  if (tiles > 0) {
    key_tile(0).template copy<kKeys, 128>(head_k, 0, Options::kKeys);
    value_tile(0).template copy<kKeys, 128>(head_v, 0, Options::kKeys);
  }
  commit_copies();
  u32 query[D / 16][4];
  float sum[D / 8][4] = {};
  float top[2] = {-BRRR_INFINITY, -BRRR_INFINITY}, total[2] = {0.0f, 0.0f};
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    __syncthreads();
    if (n == 0)
#pragma unroll
      for (int d = 0; d < D / 16; ++d) qs.left(query[d], warp * 16, d * 16);
    if (n + 1 < tiles) {
      key_tile(n + 1).template copy<kKeys, 128>(head_k, (n + 1) * kKeys, Options::kKeys);
      value_tile(n + 1).template copy<kKeys, 128>(head_v, (n + 1) * kKeys, Options::kKeys);
    }
    commit_copies();
    const Tile<T, D> ks = key_tile(n), vs = value_tile(n);
    float s[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
#pragma unroll
      for (int c = 0; c < kKeys / 16; ++c) {
        u32 b[4];
        ks.right(b, c * 16, d * 16);
        multiply<T>(s[2 * c], query[d], b[0], b[1]);
        multiply<T>(s[2 * c + 1], query[d], b[2], b[3]);
      }
    if (needs_mask<Options>(first, n * kKeys, kKeys, end_of_first)) {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[c][e] = masked_score<Options>(s[c][e], extra, head, row + (e / 2) * 8,
                                          n * kKeys + c * 8 + 2 * t + e % 2);
    } else {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[c][e] *= Options::scale() * BRRR_LOG2E;
    }
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = top[h];
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
        most = op_maximum(most, op_maximum(s[c][2 * h], s[c][2 * h + 1]));
      most = op_maximum(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = op_maximum(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == -BRRR_INFINITY ? 0.0f : most;
      shrink[h] = power_of_two(top[h] - base);
      top[h] = most;
      float added = 0.0f;
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          s[c][e] = power_of_two(s[c][e] - base);
          added += s[c][e];
        }
      total[h] = total[h] * shrink[h] + added;
    }
    if (Options::kDrops) {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[c][e] = Options::kept(s[c][e], extra, head, row + (e / 2) * 8,
                                  n * kKeys + c * 8 + 2 * t + e % 2);
    }
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[d][e] *= shrink[e / 2];
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      const u32 p[4] = {packed<T>(s[2 * c][0], s[2 * c][1]), packed<T>(s[2 * c][2], s[2 * c][3]),
                        packed<T>(s[2 * c + 1][0], s[2 * c + 1][1]),
                        packed<T>(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        u32 b[4];
        vs.right_transposed(b, c * 16, d * 16);
        multiply<T>(sum[2 * d], p, b[0], b[1]);
        multiply<T>(sum[2 * d + 1], p, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float all = total[h] + __shfl_xor_sync(0xffffffffu, total[h], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    const int i = row + h * 8;
    if (i >= Options::kQueries) continue;
    const u64 at = head * Options::kQueries + i;
    const float inverse = all == 0.0f ? BRRR_NAN : 1.0f / all;  // a query that sees no key
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
      *reinterpret_cast<u32*>(y + at * D + d * 8 + 2 * t) =
          packed<T>(sum[d][2 * h] * inverse, sum[d][2 * h + 1] * inverse);
    if (t == 0) lse[at] = all == 0.0f ? BRRR_NAN : (top[h] + log2f(all)) * 0.69314718055994531f;
  }
}

/// delta = sum(dy y) - dlse, a warp to a query.
template <typename Options, typename T>
BRRR_DEVICE void attention_mma_delta(const T* y, const T* dy, const float* dlse, float* delta,
                                     u64 rows) {
  constexpr int D = Options::kWidth, V = D / 32;
  const u64 row = blockIdx.x * 8ull + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float part = 0.0f;
  if (row < rows) {
    float a[V], b[V];
    load(a, y + row * D + lane * V);
    load(b, dy + row * D + lane * V);
#pragma unroll
    for (int e = 0; e < V; ++e) part += a[e] * b[e];
  }
  part = warp_fold<Add>(part);
  if (row < rows && lane == 0) delta[row] = part - (dlse != nullptr ? dlse[row] : 0.0f);
}

/// p and ds from a score and from dy v.
template <typename Options, typename Extra>
BRRR_DEVICE void score_gradient(float& p, float& g, float lse, float delta, bool look,
                                const Extra& extra, u64 head, int i, int j) {
  if (look) {
    const float s = masked_score<Options>(p, extra, head, i, j);
    const bool inside = i < Options::kQueries && j < Options::kKeys;
    p = inside ? power_of_two(s - lse * BRRR_LOG2E) : 0.0f;
    if (Options::kDrops && inside) g = Options::kept(g, extra, head, i, j);
    g = inside && Options::passes(extra, head, i, j) ? p * (g - delta) : 0.0f;
    if (Options::kDrops && inside) p = Options::kept(p, extra, head, i, j);
  } else {
    p = power_of_two(p * (Options::scale() * BRRR_LOG2E) - lse * BRRR_LOG2E);
    g = p * (g - delta);
  }
}

template <typename Options, typename T, int kKeys, typename Extra>
BRRR_DEVICE void attention_mma_queries(const T* q, const T* k, const T* v, const float* lse,
                                       const T* dy, const float* delta, T* dq, const Extra& extra) {
  constexpr int D = Options::kWidth;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D> qs{shared}, dys{shared + kBlockRows * D};
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + warp * 16 + g;
  const T* const head_k = k + head * Options::kKeys * D;
  const T* const head_v = v + head * Options::kKeys * D;
  auto key_tile = [&](int n) {
    return Tile<T, D>{shared + (2 * kBlockRows + (n % 2) * 2 * kKeys) * D};
  };
  auto value_tile = [&](int n) {
    return Tile<T, D>{shared + (2 * kBlockRows + (n % 2) * 2 * kKeys + kKeys) * D};
  };
  const int end = Options::last_key(extra, first + kBlockRows - 1 < Options::kQueries - 1
                                               ? first + kBlockRows - 1
                                               : Options::kQueries - 1);
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end + kKeys - 1) / kKeys;
  qs.template copy<kBlockRows, 128>(q + head * Options::kQueries * D, first, Options::kQueries);
  dys.template copy<kBlockRows, 128>(dy + head * Options::kQueries * D, first, Options::kQueries);
  if (tiles > 0) {
    key_tile(0).template copy<kKeys, 128>(head_k, 0, Options::kKeys);
    value_tile(0).template copy<kKeys, 128>(head_v, 0, Options::kKeys);
  }
  commit_copies();
  float row_lse[2], row_delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + h * 8;
    const u64 at = head * Options::kQueries + i;
    row_lse[h] = i < Options::kQueries ? lse[at] : 0.0f;
    row_delta[h] = i < Options::kQueries ? delta[at] : 0.0f;
  }
  float sum[D / 8][4] = {};
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    __syncthreads();
    if (n + 1 < tiles) {
      key_tile(n + 1).template copy<kKeys, 128>(head_k, (n + 1) * kKeys, Options::kKeys);
      value_tile(n + 1).template copy<kKeys, 128>(head_v, (n + 1) * kKeys, Options::kKeys);
    }
    commit_copies();
    const Tile<T, D> ks = key_tile(n), vs = value_tile(n);
    float s[kKeys / 8][4] = {}, ds[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      u32 a[4], x[4];
      qs.left(a, warp * 16, d * 16);
      dys.left(x, warp * 16, d * 16);
#pragma unroll
      for (int c = 0; c < kKeys / 16; ++c) {
        u32 b[4];
        ks.right(b, c * 16, d * 16);
        multiply<T>(s[2 * c], a, b[0], b[1]);
        multiply<T>(s[2 * c + 1], a, b[2], b[3]);
        vs.right(b, c * 16, d * 16);
        multiply<T>(ds[2 * c], x, b[0], b[1]);
        multiply<T>(ds[2 * c + 1], x, b[2], b[3]);
      }
    }
    const bool look = needs_mask<Options>(first, n * kKeys, kKeys, end_of_first);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        score_gradient<Options>(s[c][e], ds[c][e], row_lse[e / 2], row_delta[e / 2], look, extra,
                                head, row + (e / 2) * 8, n * kKeys + c * 8 + 2 * t + e % 2);
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      const u32 p[4] = {packed<T>(ds[2 * c][0], ds[2 * c][1]),
                        packed<T>(ds[2 * c][2], ds[2 * c][3]),
                        packed<T>(ds[2 * c + 1][0], ds[2 * c + 1][1]),
                        packed<T>(ds[2 * c + 1][2], ds[2 * c + 1][3])};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        u32 b[4];
        ks.right_transposed(b, c * 16, d * 16);
        multiply<T>(sum[2 * d], p, b[0], b[1]);
        multiply<T>(sum[2 * d + 1], p, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + h * 8;
    if (i >= Options::kQueries) continue;
    const u64 at = head * Options::kQueries + i;
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
      *reinterpret_cast<u32*>(dq + at * D + d * 8 + 2 * t) =
          packed<T>(sum[d][2 * h] * Options::scale(), sum[d][2 * h + 1] * Options::scale());
  }
}

template <typename Options, typename T, int kRows, typename Extra>
BRRR_DEVICE void attention_mma_keys(const T* q, const T* k, const T* v, const float* lse,
                                    const T* dy, const float* delta, T* dk, T* dv,
                                    const Extra& extra) {
  constexpr int D = Options::kWidth;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D> ks{shared}, vs{shared + kBlockRows * D};
  float* const statistics = reinterpret_cast<float*>(shared + (2 * kBlockRows + 4 * kRows) * D);
  const u64 head = blockIdx.y;
  const int first =
      static_cast<int>(blockIdx.x) * kBlockRows;  // the longest come first by themselves
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + warp * 16 + g;
  const T* const head_q = q + head * Options::kQueries * D;
  const T* const head_dy = dy + head * Options::kQueries * D;
  auto query_tile = [&](int n) {
    return Tile<T, D>{shared + (2 * kBlockRows + (n % 2) * 2 * kRows) * D};
  };
  auto dy_tile = [&](int n) {
    return Tile<T, D>{shared + (2 * kBlockRows + (n % 2) * 2 * kRows + kRows) * D};
  };
  const int begin = Options::first_query(extra, first) / kRows;
  const int tiles = (Options::kQueries + kRows - 1) / kRows;
  ks.template copy<kBlockRows, 128>(k + head * Options::kKeys * D, first, Options::kKeys);
  vs.template copy<kBlockRows, 128>(v + head * Options::kKeys * D, first, Options::kKeys);
  if (begin < tiles) {
    query_tile(begin).template copy<kRows, 128>(head_q, begin * kRows, Options::kQueries);
    dy_tile(begin).template copy<kRows, 128>(head_dy, begin * kRows, Options::kQueries);
  }
  commit_copies();
  float sum[D / 8][4] = {}, sum_v[D / 8][4] = {};
  for (int n = begin; n < tiles; ++n) {
    for (int r = threadIdx.x; r < kRows; r += 128) {
      const int i = n * kRows + r;
      const u64 at = head * Options::kQueries + i;
      statistics[r] = i < Options::kQueries ? lse[at] : 0.0f;
      statistics[kRows + r] = i < Options::kQueries ? delta[at] : 0.0f;
    }
    wait_copies<0>();
    __syncthreads();
    if (n + 1 < tiles) {
      query_tile(n + 1).template copy<kRows, 128>(head_q, (n + 1) * kRows, Options::kQueries);
      dy_tile(n + 1).template copy<kRows, 128>(head_dy, (n + 1) * kRows, Options::kQueries);
    }
    commit_copies();
    const Tile<T, D> qs = query_tile(n), dys = dy_tile(n);
    float s[kRows / 8][4] = {}, ds[kRows / 8][4] = {};  // keys by queries
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      u32 a[4], x[4];
      ks.left(a, warp * 16, d * 16);
      vs.left(x, warp * 16, d * 16);
#pragma unroll
      for (int c = 0; c < kRows / 16; ++c) {
        u32 b[4];
        qs.right(b, c * 16, d * 16);
        multiply<T>(s[2 * c], a, b[0], b[1]);
        multiply<T>(s[2 * c + 1], a, b[2], b[3]);
        dys.right(b, c * 16, d * 16);
        multiply<T>(ds[2 * c], x, b[0], b[1]);
        multiply<T>(ds[2 * c + 1], x, b[2], b[3]);
      }
    }
    const bool look =
        !Options::kPlain || first + kBlockRows > Options::kKeys ||
        (n + 1) * kRows > Options::kQueries ||
        (Options::kCausal && first + kBlockRows > Options::last_key(extra, n * kRows));
#pragma unroll
    for (int c = 0; c < kRows / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = c * 8 + 2 * t + e % 2;
        score_gradient<Options>(s[c][e], ds[c][e], statistics[r], statistics[kRows + r], look,
                                extra, head, n * kRows + r, row + (e / 2) * 8);
      }
#pragma unroll
    for (int c = 0; c < kRows / 16; ++c) {
      const u32 p[4] = {packed<T>(s[2 * c][0], s[2 * c][1]), packed<T>(s[2 * c][2], s[2 * c][3]),
                        packed<T>(s[2 * c + 1][0], s[2 * c + 1][1]),
                        packed<T>(s[2 * c + 1][2], s[2 * c + 1][3])};
      const u32 x[4] = {packed<T>(ds[2 * c][0], ds[2 * c][1]),
                        packed<T>(ds[2 * c][2], ds[2 * c][3]),
                        packed<T>(ds[2 * c + 1][0], ds[2 * c + 1][1]),
                        packed<T>(ds[2 * c + 1][2], ds[2 * c + 1][3])};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        u32 b[4];
        dys.right_transposed(b, c * 16, d * 16);
        multiply<T>(sum_v[2 * d], p, b[0], b[1]);
        multiply<T>(sum_v[2 * d + 1], p, b[2], b[3]);
        qs.right_transposed(b, c * 16, d * 16);
        multiply<T>(sum[2 * d], x, b[0], b[1]);
        multiply<T>(sum[2 * d + 1], x, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = row + h * 8;
    if (j >= Options::kKeys) continue;
    const u64 at = head * Options::kKeys + j;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      *reinterpret_cast<u32*>(dk + at * D + d * 8 + 2 * t) =
          packed<T>(sum[d][2 * h] * Options::scale(), sum[d][2 * h + 1] * Options::scale());
      *reinterpret_cast<u32*>(dv + at * D + d * 8 + 2 * t) =
          packed<T>(sum_v[d][2 * h], sum_v[d][2 * h + 1]);
    }
  }
}
