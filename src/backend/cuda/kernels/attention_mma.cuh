// Attention on the matrix unit, for bf16 and f16 and heads of 64 or 128. 16 queries (or keys) to a
// warp, the other side in tiles that are copied while the last ones are worked on (Dao 2023,
// "FlashAttention-2"). Scores, probabilities and their gradients never leave registers. The
// backward pass goes once by queries (dq) and once by keys (dk, dv): no sum has two owners. `Unit`:
// ByWarps (mma.cuh), or ByGroups (wgmma.cuh), whose blocks have twice the rows. Shapes as in
// attention.cuh.

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
/// One behind the last key that a query of the block sees.
template <typename Options, typename Unit, typename Extra>
BRRR_DEVICE int end_of_keys(const Extra& extra, int first) {
  const int last = first + Unit::kRows - 1;
  return Options::last_key(extra, last < Options::kQueries - 1 ? last : Options::kQueries - 1);
}

template <typename Options, typename Unit, typename T, int kKeys, typename Extra>
BRRR_DEVICE void attention_mma_forward(const T* q, const T* k, const T* v, T* y, float* lse,
                                       const Extra& extra) {
  using Q = typename Options::Q;
  using K = typename Options::K;
  using V = typename Options::V;
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
  RunningSoftmax softmax;
  for (int n = 0; n < tiles; ++n) {
    wait_copies<0>();
    Unit::publish();
    __syncthreads();
    if (n == 0) query.hold();
    if (n + 1 < tiles) keys.copy(n + 1);
    commit_copies();
    float s[kKeys / 8][4] = {};
    add_scores(s, query, keys.first(n));
    float shrink[2];
    softmax.add<Options>(s, shrink,
                         needs_mask<Options, Unit::kRows>(first, n * kKeys, kKeys, end_of_first),
                         extra, head, ByQueries{part.row, n * kKeys + 2 * t});
    shrink_rows(sum, shrink);
    LeftFactor<T, kKeys / 8> p(s);
    Unit::begin(sum, p.words);
    add_product<Unit>(sum, p, keys.second(n));
    Unit::end(sum);
  }
  softmax.finish<Options>(sum, y, lse, head, part.row, t);
}

/// delta = sum(dy y) - dlse, a warp to a query.
template <typename Options, typename T>
BRRR_DEVICE void attention_mma_delta(const T* y, const T* dy, const float* dlse, float* delta,
                                     u64 rows) {
  const u64 row = blockIdx.x * 8ull + threadIdx.x / 32;
  if (row >= rows) return;
  const float sum =
      delta_of<Options>(y, dy, row / Options::kQueries, static_cast<int>(row % Options::kQueries));
  if (threadIdx.x % 32 == 0) delta[row] = sum - (dlse != nullptr ? dlse[row] : 0.0f);
}

/// Both, which needs fewer registers.
template <typename Options, int C, typename At, typename F, typename G, typename Extra>
BRRR_DEVICE void to_both(float (&s)[C][4], float (&ds)[C][4], bool look, const Extra& extra,
                         u64 head, At at, const F& lse_of, const G& delta_of_score) {
  if constexpr (Options::kDrops) {
    to_probabilities<Options>(s, look, extra, head, at, lse_of);
    to_gradients<Options>(s, ds, look, extra, head, at, delta_of_score);
  } else if (look) {
    each_score<C>([&](int c, int e) {
      s[c][e] =
          masked_probability<Options>(s[c][e], lse_of(c, e), extra, head, at.i(c, e), at.j(c, e));
      ds[c][e] = masked_gradient<Options>(s[c][e], ds[c][e], delta_of_score(c, e), extra, head,
                                          at.i(c, e), at.j(c, e));
    });
  } else {
    each_score<C>([&](int c, int e) {
      s[c][e] = probability<Options>(s[c][e], lse_of(c, e));
      ds[c][e] = s[c][e] * (ds[c][e] - delta_of_score(c, e));
    });
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
    row_lse[h] = i < Options::kQueries ? lse[at] * BRRR_LOG2E : 0.0f;
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
    const bool look = needs_mask<Options, Unit::kRows>(first, n * kKeys, kKeys, end_of_first);
    const ByQueries at{part.row, n * kKeys + 2 * part.t};
    to_both<Options>(
        s, ds, look, extra, head, at, [&](int, int e) { return row_lse[e / 2]; },
        [&](int, int e) { return row_delta[e / 2]; });
    LeftFactor<T, kKeys / 8> gradient(ds);
    Unit::begin(sum, gradient.words);
    add_product<Unit>(sum, gradient, keys.first(n));
    Unit::end(sum);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = part.row + h * 8;
    store_row(Q::row(dq, head, i), sum, h, part.t, Options::scale(), i < Options::kQueries);
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
      statistics[r] = i < Options::kQueries ? lse[at] * BRRR_LOG2E : 0.0f;
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
    const ByKeys at{part.row, n * kTile + 2 * part.t};
    const float* const numbers = statistics + 2 * part.t;
    to_both<Options>(
        s, ds, look, extra, head, at, [&](int c, int e) { return numbers[c * 8 + e % 2]; },
        [&](int c, int e) { return numbers[kTile + c * 8 + e % 2]; });
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
    store_row(K::row(dk, head, j), sum, h, part.t, Options::scale(), j < Options::kKeys);
    store_row(V::row(dv, head, j), sum_v, h, part.t, 1.0f, j < Options::kKeys);
  }
}
