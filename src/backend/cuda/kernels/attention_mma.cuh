// Attention on the matrix unit, for bf16 and f16 and heads of 64 or 128. 16 queries (or keys) to a
// warp, the other side in tiles that are copied while the last ones are worked on (Dao 2023,
// "FlashAttention-2"). Scores, probabilities and their gradients never leave registers. The
// backward pass goes once by queries (dq) and once by keys (dk, dv): no sum has two owners. `Unit`:
// ByWarps (mma.cuh), or ByGroups (wgmma.cuh), whose blocks have twice the rows. Shapes as in
// attention.cuh.

#define BRRR_LOG2E 1.4426950408889634f

/// What a thread of a block has of its rows from `first` on: `row` and row + 8, and of every eight
/// columns 2 t and 2 t + 1.
struct Part {
  int warp, t, row;
  BRRR_METHOD Part of(int first) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return Part{warp, lane % 4, first + warp * 16 + lane / 4};
  }
};

/// The matrices [count, D] of one head, which lie as A and B say, side by side in tiles of kRows:
/// one tile of each is worked on while the next is copied.
template <typename Unit, typename A, typename B, typename T, int D, int kRows>
struct TilePairs {
  T* shared;  // [2, 2, kRows, D]
  const T* a;
  const T* b;
  int count;
  BRRR_MEMBER Tile<T, D, kRows> first(int n) const { return {shared + n % 2 * 2 * kRows * D}; }
  BRRR_MEMBER Tile<T, D, kRows> second(int n) const {
    return {shared + (n % 2 * 2 + 1) * kRows * D};
  }
  BRRR_MEMBER void copy(int n) const {
    first(n).template copy<Unit::kThreads, A::kRow>(a, n * kRows, count);
    second(n).template copy<Unit::kThreads, B::kRow>(b, n * kRows, count);
  }
};

/// The warp's 16 rows of a tile as the left operand: in registers from hold() on, or fetched for
/// each product.
template <typename Unit, typename T, int D, bool kHeld>
struct LeftRows {
  const Tile<T, D, Unit::kRows> tile;
  int row;
  u32 held[kHeld ? D / 16 : 1][4];
  BRRR_MEMBER void hold() {
    if constexpr (kHeld) fetch(held);
  }
  BRRR_MEMBER void fetch(u32 (&words)[D / 16][4]) const {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) tile.left(words[d], row, d * 16);
  }
};
/// Of two left operands that do not change, whether both stay in registers beside everything else.
template <typename Unit, int D>
BRRR_DEVICE constexpr bool holds_two() {
  return Unit::kAtOnce && D == 64;
}

/// s += a b^T.
template <typename Unit, typename T, int D, int kRows>
BRRR_DEVICE void add_scores(float (&s)[kRows / 8][4], LeftRows<Unit, T, D, true>& a,
                            const Tile<T, D, kRows>& b) {
  Unit::begin(s, a.held);
#pragma unroll
  for (int d = 0; d < D / 16; ++d) Unit::by_columns(s, a.held[d], b, d * 16);
  Unit::end(s);
}
template <typename Unit, typename T, int D, int kRows>
BRRR_DEVICE void add_scores(float (&s)[kRows / 8][4], const LeftRows<Unit, T, D, false>& a,
                            const Tile<T, D, kRows>& b) {
  if constexpr (Unit::kAtOnce) {
    LeftRows<Unit, T, D, true> all{a.tile, a.row, {}};
    all.hold();
    add_scores(s, all, b);
  } else {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      u32 words[4];
      a.tile.left(words, a.row, d * 16);
      Unit::by_columns(s, words, b, d * 16);
    }
  }
}
/// s += a k^T and g += x v^T.
template <typename Unit, typename T, int D, bool kHeld, int kRows>
BRRR_DEVICE void add_two_scores(float (&s)[kRows / 8][4], float (&g)[kRows / 8][4],
                                LeftRows<Unit, T, D, kHeld>& a, LeftRows<Unit, T, D, kHeld>& x,
                                const Tile<T, D, kRows>& k, const Tile<T, D, kRows>& v) {
  if constexpr (kHeld) {
    Unit::begin(s, g, a.held, x.held);
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      Unit::by_columns(s, a.held[d], k, d * 16);
      Unit::by_columns(g, x.held[d], v, d * 16);
    }
    Unit::end(s, g);
  } else {
    add_scores(s, a, k);
    add_scores(g, x, v);
  }
}
/// A factor of a product as the left operand, rounded to T. p: [16, 8 C] of the warp.
template <typename T, int C>
struct LeftFactor {
  u32 words[C / 2][4];
  BRRR_MEMBER explicit LeftFactor(const float (&p)[C][4]) {
#pragma unroll
    for (int c = 0; c < C / 2; ++c) {
      words[c][0] = packed<T>(p[2 * c][0], p[2 * c][1]);
      words[c][1] = packed<T>(p[2 * c][2], p[2 * c][3]);
      words[c][2] = packed<T>(p[2 * c + 1][0], p[2 * c + 1][1]);
      words[c][3] = packed<T>(p[2 * c + 1][2], p[2 * c + 1][3]);
    }
  }
};
/// sum += p rows; rows: [8 C, D].
template <typename Unit, typename T, int D, int kRows>
BRRR_DEVICE void add_product(float (&sum)[D / 8][4], const LeftFactor<T, kRows / 8>& p,
                             const Tile<T, D, kRows>& rows) {
#pragma unroll
  for (int c = 0; c < kRows / 16; ++c) Unit::by_rows(sum, p.words[c], rows, c * 16);
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
template <typename Options, typename Unit, typename Extra>
BRRR_DEVICE int end_of_keys(const Extra& extra, int first) {
  const int last = first + Unit::kRows - 1;
  return Options::last_key(extra, last < Options::kQueries - 1 ? last : Options::kQueries - 1);
}

/// Whether a block's rows from i on and keys [j, j + n) need a look at every element.
template <typename Options, typename Unit>
BRRR_DEVICE bool needs_mask(int i, int j, int n, int keys_end_for_first) {
  if (!Options::kPlain) return true;
  if (j + n > Options::kKeys || i + Unit::kRows > Options::kQueries) return true;
  return Options::kCausal && j + n > keys_end_for_first;
}
/// The score of (i, j) in units of log2, -inf outside.
template <typename Options, typename Extra>
BRRR_DEVICE float masked_score(float product, const Extra& extra, u64 head, int i, int j) {
  if (i >= Options::kQueries || j >= Options::kKeys) return -BRRR_INFINITY;
  return Options::score(product * Options::scale(), extra, head, i, j) * BRRR_LOG2E;
}

template <typename Options, typename Unit, typename T, int kKeys, typename Extra>
BRRR_DEVICE void attention_mma_forward(const T* q, const T* k, const T* v, T* y, float* lse,
                                       const Extra& extra) {
  using Q = typename Options::Q;
  using K = typename Options::K;
  using V = typename Options::V;
  using Y = typename Options::Y;
  constexpr int D = Options::kWidth, kRows = Unit::kRows;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D, kRows> qs{shared};
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;  // the longest first
  const Part part = Part::of(first);
  const int t = part.t;
  const TilePairs<Unit, K, V, T, D, kKeys> keys{shared + kRows * D, k + K::of(head),
                                                v + V::of(head), Options::kKeys};
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end_of_keys<Options, Unit>(extra, first) + kKeys - 1) / kKeys;
  qs.template copy<Unit::kThreads, Q::kRow>(q + Q::of(head), first, Options::kQueries);
  if (tiles > 0) keys.copy(0);
  commit_copies();
  LeftRows<Unit, T, D, true> query{qs, part.warp * 16, {}};
  float sum[D / 8][4] = {};
  float top[2] = {-BRRR_INFINITY, -BRRR_INFINITY}, total[2] = {0.0f, 0.0f};
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    Unit::publish();
    __syncthreads();
    if (n == 0) query.hold();
    if (n + 1 < tiles) keys.copy(n + 1);
    commit_copies();
    float s[kKeys / 8][4] = {};
    add_scores(s, query, keys.first(n));
    float factor = 1.0f;  // what takes scores to units of log2
    if (needs_mask<Options, Unit>(first, n * kKeys, kKeys, end_of_first)) {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[c][e] = masked_score<Options>(s[c][e], extra, head, part.row + (e / 2) * 8,
                                          n * kKeys + c * 8 + 2 * t + e % 2);
    } else if (Options::scale() > 0.0f) {
      factor = Options::scale() * BRRR_LOG2E;
    } else {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[c][e] *= Options::scale() * BRRR_LOG2E;
    }
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -BRRR_INFINITY;
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c) most = larger(most, larger(s[c][2 * h], s[c][2 * h + 1]));
      most = op_maximum(top[h], most * factor);
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
          s[c][e] = power_of_two(fmaf(s[c][e], factor, -base));
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
    LeftFactor<T, kKeys / 8> p(s);
    Unit::begin(sum, p.words);
    add_product<Unit>(sum, p, keys.second(n));
    Unit::end(sum);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float all = total[h] + __shfl_xor_sync(0xffffffffu, total[h], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    const int i = part.row + h * 8;
    if (i >= Options::kQueries) continue;
    const u64 at = head * Options::kQueries + i;
    const float inverse = all == 0.0f ? BRRR_NAN : 1.0f / all;  // a query that sees no key
    store_row(Y::row(y, head, i), sum, h, t, inverse);
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
    const u64 head = row / Options::kQueries;
    const int i = static_cast<int>(row % Options::kQueries);
    load(a, Options::Y::row(y, head, i) + lane * V);
    load(b, Options::Y::row(dy, head, i) + lane * V);
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

template <typename Options, typename Unit, typename T, int kKeys, typename Extra>
BRRR_DEVICE void attention_mma_queries(const T* q, const T* k, const T* v, const float* lse,
                                       const T* dy, const float* delta, T* dq, const Extra& extra) {
  using Q = typename Options::Q;
  using K = typename Options::K;
  using V = typename Options::V;
  using Y = typename Options::Y;
  constexpr int D = Options::kWidth, kRows = Unit::kRows;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D, kRows> qs{shared}, dys{shared + kRows * D};
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const Part part = Part::of(first);
  const TilePairs<Unit, K, V, T, D, kKeys> keys{shared + 2 * kRows * D, k + K::of(head),
                                                v + V::of(head), Options::kKeys};
  const int end_of_first = Options::last_key(extra, first);
  const int tiles = (end_of_keys<Options, Unit>(extra, first) + kKeys - 1) / kKeys;
  qs.template copy<Unit::kThreads, Q::kRow>(q + Q::of(head), first, Options::kQueries);
  dys.template copy<Unit::kThreads, Y::kRow>(dy + Y::of(head), first, Options::kQueries);
  if (tiles > 0) keys.copy(0);
  commit_copies();
  LeftRows<Unit, T, D, holds_two<Unit, D>()> query{qs, part.warp * 16, {}},
      dy_rows{dys, part.warp * 16, {}};
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
    Unit::publish();
    __syncthreads();
    if (n == 0) query.hold(), dy_rows.hold();
    if (n + 1 < tiles) keys.copy(n + 1);
    commit_copies();
    float s[kKeys / 8][4] = {}, ds[kKeys / 8][4] = {};
    add_two_scores(s, ds, query, dy_rows, keys.first(n), keys.second(n));
    const bool look = needs_mask<Options, Unit>(first, n * kKeys, kKeys, end_of_first);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        score_gradient<Options>(s[c][e], ds[c][e], row_lse[e / 2], row_delta[e / 2], look, extra,
                                head, part.row + (e / 2) * 8,
                                n * kKeys + c * 8 + 2 * part.t + e % 2);
    LeftFactor<T, kKeys / 8> gradient(ds);
    Unit::begin(sum, gradient.words);
    add_product<Unit>(sum, gradient, keys.first(n));
    Unit::end(sum);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = part.row + h * 8;
    if (i >= Options::kQueries) continue;
    store_row(Q::row(dq, head, i), sum, h, part.t, Options::scale());
  }
}

template <typename Options, typename Unit, typename T, int kTile, typename Extra>
BRRR_DEVICE void attention_mma_keys(const T* q, const T* k, const T* v, const float* lse,
                                    const T* dy, const float* delta, T* dk, T* dv,
                                    const Extra& extra) {
  using Q = typename Options::Q;
  using K = typename Options::K;
  using V = typename Options::V;
  using Y = typename Options::Y;
  constexpr int D = Options::kWidth, kRows = Unit::kRows;
  BRRR_DYNAMIC_SHARED(memory);
  T* const shared = reinterpret_cast<T*>(memory);
  const Tile<T, D, kRows> ks{shared}, vs{shared + kRows * D};
  float* const statistics = reinterpret_cast<float*>(shared + (2 * kRows + 4 * kTile) * D);
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kRows;  // the longest come first by themselves
  const Part part = Part::of(first);
  const TilePairs<Unit, Q, Y, T, D, kTile> queries{shared + 2 * kRows * D, q + Q::of(head),
                                                   dy + Y::of(head), Options::kQueries};
  const int begin = Options::first_query(extra, first) / kTile;
  const int tiles = (Options::kQueries + kTile - 1) / kTile;
  ks.template copy<Unit::kThreads, K::kRow>(k + K::of(head), first, Options::kKeys);
  vs.template copy<Unit::kThreads, V::kRow>(v + V::of(head), first, Options::kKeys);
  if (begin < tiles) queries.copy(begin);
  commit_copies();
  LeftRows<Unit, T, D, holds_two<Unit, D>()> key{ks, part.warp * 16, {}},
      value{vs, part.warp * 16, {}};
  float sum[D / 8][4] = {}, sum_v[D / 8][4] = {};
  for (int n = begin; n < tiles; ++n) {
    for (int r = threadIdx.x; r < kTile; r += Unit::kThreads) {
      const int i = n * kTile + r;
      const u64 at = head * Options::kQueries + i;
      statistics[r] = i < Options::kQueries ? lse[at] : 0.0f;
      statistics[kTile + r] = i < Options::kQueries ? delta[at] : 0.0f;
    }
    wait_copies<0>();
    Unit::publish();
    __syncthreads();
    if (n == begin) key.hold(), value.hold();
    if (n + 1 < tiles) queries.copy(n + 1);
    commit_copies();
    float s[kTile / 8][4] = {}, ds[kTile / 8][4] = {};  // keys by queries
    add_two_scores(s, ds, key, value, queries.first(n), queries.second(n));
    const bool look = !Options::kPlain || first + kRows > Options::kKeys ||
                      (n + 1) * kTile > Options::kQueries ||
                      (Options::kCausal && first + kRows > Options::last_key(extra, n * kTile));
#pragma unroll
    for (int c = 0; c < kTile / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = c * 8 + 2 * part.t + e % 2;
        score_gradient<Options>(s[c][e], ds[c][e], statistics[r], statistics[kTile + r], look,
                                extra, head, n * kTile + r, part.row + (e / 2) * 8);
      }
    LeftFactor<T, kTile / 8> p(s), gradient(ds);
    Unit::begin(sum_v, sum, p.words, gradient.words);
    add_product<Unit>(sum_v, p, queries.second(n));
    add_product<Unit>(sum, gradient, queries.first(n));
    Unit::end(sum_v, sum);
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = part.row + h * 8;
    if (j >= Options::kKeys) continue;
    store_row(K::row(dk, head, j), sum, h, part.t, Options::scale());
    store_row(V::row(dv, head, j), sum_v, h, part.t, 1.0f);
  }
}
