// Attention on the matrix unit, for bf16 and f16 and heads of 64 or 128: 64 queries (or keys) to a
// block, 16 to a warp, the other side in tiles that are copied while the last ones are worked on
// (Dao 2023, "FlashAttention-2"). Scores, probabilities and their gradients never leave registers.
// The backward pass goes once by queries (dq) and once by keys (dk, dv): no sum has two owners.
// Shapes as in attention.cuh.

#define BRRR_LOG2E 1.4426950408889634f
enum { kBlockRows = 64 };

/// What a thread of a block has of 64 rows from `first` on: `row` and row + 8, and of every eight
/// columns 2 t and 2 t + 1.
struct Part {
  int warp, t, row;
  BRRR_METHOD Part of(int first) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return Part{warp, lane % 4, first + warp * 16 + lane / 4};
  }
};

/// Two matrices [count, D] side by side in tiles of kRows: one tile of each is worked on while the
/// next is copied.
template <typename T, int D, int kRows>
struct TilePairs {
  T* shared;  // [2, 2, kRows, D]
  const T* a;
  const T* b;
  int count;
  BRRR_MEMBER Tile<T, D> first(int n) const { return {shared + n % 2 * 2 * kRows * D}; }
  BRRR_MEMBER Tile<T, D> second(int n) const { return {shared + (n % 2 * 2 + 1) * kRows * D}; }
  BRRR_MEMBER void copy(int n) const {
    first(n).template copy<kRows, 128>(a, n * kRows, count);
    second(n).template copy<kRows, 128>(b, n * kRows, count);
  }
};

/// s += a k^T and g += x v^T, 16 rows from `row` on of a and of x, 8 C of k and of v.
template <typename T, int D, int C>
BRRR_DEVICE void add_two_scores(float (&s)[C][4], float (&g)[C][4], const Tile<T, D>& a,
                                const Tile<T, D>& x, int row, const Tile<T, D>& k,
                                const Tile<T, D>& v) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    u32 left_a[4], left_x[4];
    a.left(left_a, row, d * 16);
    x.left(left_x, row, d * 16);
#pragma unroll
    for (int c = 0; c < C / 2; ++c) {
      u32 b[4];
      k.right(b, c * 16, d * 16);
      multiply<T>(s[2 * c], left_a, b[0], b[1]);
      multiply<T>(s[2 * c + 1], left_a, b[2], b[3]);
      v.right(b, c * 16, d * 16);
      multiply<T>(g[2 * c], left_x, b[0], b[1]);
      multiply<T>(g[2 * c + 1], left_x, b[2], b[3]);
    }
  }
}
/// sum += p rows; p is rounded to T. p: [16, 8 C] of the warp, rows: [8 C, D].
template <typename T, int D, int C>
BRRR_DEVICE void add_product(float (&sum)[D / 8][4], const float (&p)[C][4],
                             const Tile<T, D>& rows) {
#pragma unroll
  for (int c = 0; c < C / 2; ++c) {
    const u32 left[4] = {packed<T>(p[2 * c][0], p[2 * c][1]), packed<T>(p[2 * c][2], p[2 * c][3]),
                         packed<T>(p[2 * c + 1][0], p[2 * c + 1][1]),
                         packed<T>(p[2 * c + 1][2], p[2 * c + 1][3])};
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      u32 b[4];
      rows.right_transposed(b, c * 16, d * 16);
      multiply<T>(sum[2 * d], left, b[0], b[1]);
      multiply<T>(sum[2 * d + 1], left, b[2], b[3]);
    }
  }
}
/// The thread's part of one row: of its rows the h-th.
template <typename T, int C>
BRRR_DEVICE void store_row(T* to, const float (&sum)[C][4], int h, int t, float factor) {
#pragma unroll
  for (int d = 0; d < C; ++d)
    *reinterpret_cast<u32*>(to + d * 8 + 2 * t) =
        packed<T>(sum[d][2 * h] * factor, sum[d][2 * h + 1] * factor);
}
/// One behind the last key that a query of the block sees.
template <typename Options, typename Extra>
BRRR_DEVICE int end_of_keys(const Extra& extra, int first) {
  const int last = first + kBlockRows - 1;
  return Options::last_key(extra, last < Options::kQueries - 1 ? last : Options::kQueries - 1);
}

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
  const Part part = Part::of(first);
  const int t = part.t;
  const TilePairs<T, D, kKeys> keys{shared + kBlockRows * D, k + head * Options::kKeys * D,
                                    v + head * Options::kKeys * D, Options::kKeys};
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end_of_keys<Options>(extra, first) + kKeys - 1) / kKeys;
  qs.template copy<kBlockRows, 128>(q + head * Options::kQueries * D, first, Options::kQueries);
  if (tiles > 0) keys.copy(0);
  commit_copies();
  u32 query[D / 16][4];
  float sum[D / 8][4] = {};
  float top[2] = {-BRRR_INFINITY, -BRRR_INFINITY}, total[2] = {0.0f, 0.0f};
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    __syncthreads();
    if (n == 0)
#pragma unroll
      for (int d = 0; d < D / 16; ++d) qs.left(query[d], part.warp * 16, d * 16);
    if (n + 1 < tiles) keys.copy(n + 1);
    commit_copies();
    const Tile<T, D> ks = keys.first(n);
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
          s[c][e] = masked_score<Options>(s[c][e], extra, head, part.row + (e / 2) * 8,
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
          s[c][e] = Options::kept(s[c][e], extra, head, part.row + (e / 2) * 8,
                                  n * kKeys + c * 8 + 2 * t + e % 2);
    }
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[d][e] *= shrink[e / 2];
    add_product(sum, s, keys.second(n));
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float all = total[h] + __shfl_xor_sync(0xffffffffu, total[h], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    const int i = part.row + h * 8;
    if (i >= Options::kQueries) continue;
    const u64 at = head * Options::kQueries + i;
    const float inverse = all == 0.0f ? BRRR_NAN : 1.0f / all;  // a query that sees no key
    store_row(y + at * D, sum, h, t, inverse);
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
  const Part part = Part::of(first);
  const TilePairs<T, D, kKeys> keys{shared + 2 * kBlockRows * D, k + head * Options::kKeys * D,
                                    v + head * Options::kKeys * D, Options::kKeys};
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end_of_keys<Options>(extra, first) + kKeys - 1) / kKeys;
  qs.template copy<kBlockRows, 128>(q + head * Options::kQueries * D, first, Options::kQueries);
  dys.template copy<kBlockRows, 128>(dy + head * Options::kQueries * D, first, Options::kQueries);
  if (tiles > 0) keys.copy(0);
  commit_copies();
  float row_lse[2], row_delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = part.row + h * 8;
    const u64 at = head * Options::kQueries + i;
    row_lse[h] = i < Options::kQueries ? lse[at] : 0.0f;
    row_delta[h] = i < Options::kQueries ? delta[at] : 0.0f;
  }
  float sum[D / 8][4] = {};
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    __syncthreads();
    if (n + 1 < tiles) keys.copy(n + 1);
    commit_copies();
    float s[kKeys / 8][4] = {}, ds[kKeys / 8][4] = {};
    add_two_scores(s, ds, qs, dys, part.warp * 16, keys.first(n), keys.second(n));
    const bool look = needs_mask<Options>(first, n * kKeys, kKeys, end_of_first);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        score_gradient<Options>(s[c][e], ds[c][e], row_lse[e / 2], row_delta[e / 2], look, extra,
                                head, part.row + (e / 2) * 8,
                                n * kKeys + c * 8 + 2 * part.t + e % 2);
    add_product(sum, ds, keys.first(n));
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = part.row + h * 8;
    if (i >= Options::kQueries) continue;
    store_row(dq + (head * Options::kQueries + i) * D, sum, h, part.t, Options::scale());
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
  const Part part = Part::of(first);
  const TilePairs<T, D, kRows> queries{shared + 2 * kBlockRows * D,
                                       q + head * Options::kQueries * D,
                                       dy + head * Options::kQueries * D, Options::kQueries};
  const int begin = Options::first_query(extra, first) / kRows;
  const int tiles = (Options::kQueries + kRows - 1) / kRows;
  ks.template copy<kBlockRows, 128>(k + head * Options::kKeys * D, first, Options::kKeys);
  vs.template copy<kBlockRows, 128>(v + head * Options::kKeys * D, first, Options::kKeys);
  if (begin < tiles) queries.copy(begin);
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
    if (n + 1 < tiles) queries.copy(n + 1);
    commit_copies();
    float s[kRows / 8][4] = {}, ds[kRows / 8][4] = {};  // keys by queries
    add_two_scores(s, ds, ks, vs, part.warp * 16, queries.first(n), queries.second(n));
    const bool look =
        !Options::kPlain || first + kBlockRows > Options::kKeys ||
        (n + 1) * kRows > Options::kQueries ||
        (Options::kCausal && first + kBlockRows > Options::last_key(extra, n * kRows));
#pragma unroll
    for (int c = 0; c < kRows / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = c * 8 + 2 * part.t + e % 2;
        score_gradient<Options>(s[c][e], ds[c][e], statistics[r], statistics[kRows + r], look,
                                extra, head, n * kRows + r, part.row + (e / 2) * 8);
      }
    add_product(sum_v, s, queries.second(n));
    add_product(sum, ds, queries.first(n));
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = part.row + h * 8;
    if (j >= Options::kKeys) continue;
    const u64 at = head * Options::kKeys + j;
    store_row(dk + at * D, sum, h, part.t, Options::scale());
    store_row(dv + at * D, sum_v, h, part.t, 1.0f);
  }
}
