// Attention in blocks of 32 queries and 32 keys with a running softmax, f32 arithmetic, any widths
// up to 128: what runs where no faster kernel does. `Options` is made for a node: sizes, and what
// becomes of a score. The backward pass computes the probabilities again, once by queries (dq) and
// once by keys (dk, dv), so that every sum has one owner and one order.
//
// For each head q: [T, D], k: [S, D], v: [S, Dv], y: [T, Dv], each with its own distance of heads
// and rows (Options::Q, K, V, Y); a gradient lies as what it is the gradient of. Options::kGroup
// heads of q and y share one of k and v. lse, delta: [heads, T] f32, dense

enum { kTile = 32 };

template <typename Options>
struct AttentionTiles {
  static constexpr int kD = Options::kWidth, kDv = Options::kValues;
  static constexpr int kRow = kD + 1, kRowV = kDv + 1;  // no two rows in one bank
};

/// rows [first, first + 32) of a head's [count, width] matrix, which lies as Layout says; behind
/// the end zeros.
template <typename Layout, typename T>
BRRR_DEVICE void load_tile(float* to, const T* from, u64 head, int first, int count, int width) {
  from += Layout::of(head);
  for (int at = threadIdx.x; at < kTile * width; at += 128) {
    const int r = at / width, c = at % width;
    to[r * (width + 1) + c] =
        first + r < count ? widen(from[static_cast<u64>(first + r) * Layout::kRow + c]) : 0.0f;
  }
}
BRRR_DEVICE float row_product(const float* a, const float* b, int width) {
  float sum = 0.0f;
  for (int c = 0; c < width; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}
/// Over the four threads that share a query (or a key).
template <typename Fold>
BRRR_DEVICE float quad_fold(float x) {
  x = Fold::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return Fold::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <typename Options, typename Extra, typename T>
BRRR_DEVICE void attention_forward(const T* q, const T* k, const T* v, T* y, float* lse,
                                   const Extra& extra) {
  using Tiles = AttentionTiles<Options>;
  constexpr int kD = Tiles::kD, kDv = Tiles::kDv, kMine = (kDv + 3) / 4;
  BRRR_DYNAMIC_SHARED(memory);
  float* const qs = reinterpret_cast<float*>(memory);
  float* const ks = qs + kTile * Tiles::kRow;
  float* const vs = ks + kTile * Tiles::kRow;
  float* const ps = vs + kTile * Tiles::kRowV;
  const u64 head = blockIdx.y;
  // The longest rows of a causal mask first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int r = threadIdx.x / 4, lane = threadIdx.x % 4, i = first + r;
  load_tile<typename Options::Q>(qs, q, head, first, Options::kQueries, kD);
  float top = -BRRR_INFINITY, total = 0.0f, sum[kMine] = {};
  const int end = Options::last_key(extra, head, first + kTile - 1);
  for (int key = Options::first_key(extra, head, first) / kTile * kTile; key < end; key += kTile) {
    __syncthreads();
    load_tile<typename Options::K>(ks, k, head, key, Options::kKeys, kD);
    load_tile<typename Options::V>(vs, v, head, key, Options::kKeys, kDv);
    __syncthreads();
    float s[8], most = -BRRR_INFINITY;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int c = lane + 4 * e, j = key + c;
      s[e] = i < Options::kQueries && j < Options::kKeys
                 ? Options::score(row_product(qs + r * Tiles::kRow, ks + c * Tiles::kRow, kD) *
                                      Options::scale(),
                                  extra, head, i, j)
                 : -BRRR_INFINITY;
      most = larger(most, s[e]);
    }
    const float now = larger(top, quad_fold<Larger>(most));
    const float shrink = now == -BRRR_INFINITY ? 1.0f : op_exp(top - now);
    float added = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int c = lane + 4 * e;
      const float p = now == -BRRR_INFINITY ? 0.0f : op_exp(s[e] - now);
      added += p;
      ps[r * (kTile + 1) + c] = i < Options::kQueries && key + c < Options::kKeys
                                    ? Options::kept(p, extra, head, i, key + c)
                                    : 0.0f;
    }
    total = total * shrink + added;
    top = now;
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const int c = lane + 4 * e;
      sum[e] *= shrink;
      if (c < kDv)
        for (int j = 0; j < kTile; ++j)
          sum[e] = fmaf(ps[r * (kTile + 1) + j], vs[j * Tiles::kRowV + c], sum[e]);
    }
    __syncwarp();
  }
  total = quad_fold<Add>(total);
  if (i >= Options::kQueries) return;
  const u64 row = head * Options::kQueries + i;
  T* const to = Options::Y::row(y, head, i);
  // A query that sees no key: 0 / 0.
#pragma unroll
  for (int e = 0; e < kMine; ++e)
    if (lane + 4 * e < kDv) to[lane + 4 * e] = narrow<T>(sum[e] / total);
  if (lane == 0) lse[row] = top == -BRRR_INFINITY ? BRRR_NAN : op_log(total) + top;
}

/// dq, and delta = sum(dy y) - dlse for the other half.
template <typename Options, typename Extra, typename T>
BRRR_DEVICE void attention_backward_queries(const T* q, const T* k, const T* v, const T* y,
                                            const float* lse, const T* dy, const float* dlse, T* dq,
                                            float* delta, const Extra& extra) {
  using Tiles = AttentionTiles<Options>;
  constexpr int kD = Tiles::kD, kDv = Tiles::kDv, kMine = (kD + 3) / 4;
  BRRR_DYNAMIC_SHARED(memory);
  float* const qs = reinterpret_cast<float*>(memory);
  float* const ks = qs + kTile * Tiles::kRow;
  float* const vs = ks + kTile * Tiles::kRow;
  float* const dys = vs + kTile * Tiles::kRowV;
  float* const ps = dys + kTile * Tiles::kRowV;
  const u64 head = blockIdx.y;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int r = threadIdx.x / 4, lane = threadIdx.x % 4, i = first + r;
  const bool is_query = i < Options::kQueries;
  const u64 row = head * Options::kQueries + i;
  load_tile<typename Options::Q>(qs, q, head, first, Options::kQueries, kD);
  load_tile<typename Options::Y>(dys, dy, head, first, Options::kQueries, kDv);
  float part = 0.0f;
  if (is_query) {
    const T* const y_row = Options::Y::row(y, head, i);
    const T* const dy_row = Options::Y::row(dy, head, i);
    for (int c = lane; c < kDv; c += 4) part += widen(dy_row[c]) * widen(y_row[c]);
  }
  part = quad_fold<Add>(part);
  if (is_query && dlse != nullptr) part -= dlse[row];
  if (is_query && lane == 0) delta[row] = part;
  const float my_lse = is_query ? lse[row] : 0.0f;
  float sum[kMine] = {};
  const int end = Options::last_key(extra, head, first + kTile - 1);
  for (int key = Options::first_key(extra, head, first) / kTile * kTile; key < end; key += kTile) {
    __syncthreads();
    load_tile<typename Options::K>(ks, k, head, key, Options::kKeys, kD);
    load_tile<typename Options::V>(vs, v, head, key, Options::kKeys, kDv);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int c = lane + 4 * e, j = key + c;
      float ds = 0.0f;
      if (is_query && j < Options::kKeys) {
        const float s = Options::score(
            row_product(qs + r * Tiles::kRow, ks + c * Tiles::kRow, kD) * Options::scale(), extra,
            head, i, j);
        const float g = row_product(dys + r * Tiles::kRowV, vs + c * Tiles::kRowV, kDv);
        ds = op_exp(s - my_lse) * (Options::kept(g, extra, head, i, j) - part);
        if (!Options::passes(extra, head, i, j)) ds = 0.0f;
      }
      ps[r * (kTile + 1) + c] = ds;
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kMine; ++e)
      if (lane + 4 * e < kD)
        for (int j = 0; j < kTile; ++j)
          sum[e] = fmaf(ps[r * (kTile + 1) + j], ks[j * Tiles::kRow + lane + 4 * e], sum[e]);
    __syncwarp();
  }
  if (!is_query) return;
  T* const to = Options::Q::row(dq, head, i);
#pragma unroll
  for (int e = 0; e < kMine; ++e)
    if (lane + 4 * e < kD) to[lane + 4 * e] = narrow<T>(sum[e] * Options::scale());
}

template <typename Options, typename Extra, typename T>
BRRR_DEVICE void attention_backward_keys(const T* q, const T* k, const T* v, const float* lse,
                                         const T* dy, const float* delta, T* dk, T* dv,
                                         const Extra& extra) {
  using Tiles = AttentionTiles<Options>;
  constexpr int kD = Tiles::kD, kDv = Tiles::kDv, kMine = (kD + 3) / 4, kMineV = (kDv + 3) / 4;
  BRRR_DYNAMIC_SHARED(memory);
  float* const qs = reinterpret_cast<float*>(memory);
  float* const ks = qs + kTile * Tiles::kRow;
  float* const vs = ks + kTile * Tiles::kRow;
  float* const dys = vs + kTile * Tiles::kRowV;
  float* const ps = dys + kTile * Tiles::kRowV;
  float* const dss = ps + kTile * (kTile + 1);
  const u64 first_head = static_cast<u64>(blockIdx.y) * Options::kGroup;
  const int first = static_cast<int>(blockIdx.x) * kTile;
  const int r = threadIdx.x / 4, lane = threadIdx.x % 4, j = first + r;
  const bool is_key = j < Options::kKeys;
  load_tile<typename Options::K>(ks, k, first_head, first, Options::kKeys, kD);
  load_tile<typename Options::V>(vs, v, first_head, first, Options::kKeys, kDv);
  float sum[kMine] = {}, sum_v[kMineV] = {};
  for (u64 head = first_head; head < first_head + Options::kGroup; ++head) {
    const int end = Options::last_query(extra, head, first + kTile - 1);
    for (int query = Options::first_query(extra, head, first) / kTile * kTile; query < end;
         query += kTile) {
      __syncthreads();
      load_tile<typename Options::Q>(qs, q, head, query, Options::kQueries, kD);
      load_tile<typename Options::Y>(dys, dy, head, query, Options::kQueries, kDv);
      __syncthreads();
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int c = lane + 4 * e, i = query + c;
        float p = 0.0f, ds = 0.0f;
        if (is_key && i < Options::kQueries) {
          const u64 row = head * Options::kQueries + i;
          const float s = Options::score(
              row_product(qs + c * Tiles::kRow, ks + r * Tiles::kRow, kD) * Options::scale(), extra,
              head, i, j);
          const float g = row_product(dys + c * Tiles::kRowV, vs + r * Tiles::kRowV, kDv);
          p = op_exp(s - lse[row]);
          ds = p * (Options::kept(g, extra, head, i, j) - delta[row]);
          p = Options::kept(p, extra, head, i, j);
          if (!Options::passes(extra, head, i, j)) ds = 0.0f;
        }
        ps[r * (kTile + 1) + c] = p;
        dss[r * (kTile + 1) + c] = ds;
      }
      __syncwarp();
#pragma unroll
      for (int e = 0; e < kMine; ++e)
        if (lane + 4 * e < kD)
          for (int i = 0; i < kTile; ++i)
            sum[e] = fmaf(dss[r * (kTile + 1) + i], qs[i * Tiles::kRow + lane + 4 * e], sum[e]);
#pragma unroll
      for (int e = 0; e < kMineV; ++e)
        if (lane + 4 * e < kDv)
          for (int i = 0; i < kTile; ++i)
            sum_v[e] =
                fmaf(ps[r * (kTile + 1) + i], dys[i * Tiles::kRowV + lane + 4 * e], sum_v[e]);
      __syncwarp();
    }
  }
  if (!is_key) return;
  T* const dk_row = Options::K::row(dk, first_head, j);
  T* const dv_row = Options::V::row(dv, first_head, j);
#pragma unroll
  for (int e = 0; e < kMine; ++e)
    if (lane + 4 * e < kD) dk_row[lane + 4 * e] = narrow<T>(sum[e] * Options::scale());
#pragma unroll
  for (int e = 0; e < kMineV; ++e)
    if (lane + 4 * e < kDv) dv_row[lane + 4 * e] = narrow<T>(sum_v[e]);
}
