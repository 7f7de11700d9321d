// Cross-entropy of a row of logits by one block, and its gradient written over the logits: each is
// read twice, the second time out of the cache, and written once.

/// Running maximum and sum of e^(x - maximum).
struct Running {
  float top, total;
};
BRRR_DEVICE Running joined(Running a, Running b) {
  const float top = larger(a.top, b.top);
  if (top == -BRRR_INFINITY) return Running{top, 0.0f};
  return Running{top, a.total * op_exp(a.top - top) + b.total * op_exp(b.top - top)};
}
/// V logits from column `col` on; what lies behind the last class counts as no class.
template <typename In, int V>
BRRR_DEVICE void load_logits(float (&x)[V], const In* logits, u32 col, u32 classes) {
  load(x, logits + col);
#pragma unroll
  for (int e = 1; e < V; ++e)
    if (col + e >= classes) x[e] = -BRRR_INFINITY;
}
/// The largest logit of a row and the logarithm of the sum of e^(x - largest): lse is the sum of
/// both, which has no digits left for the logarithm where logits are large.
struct LogSum {
  float top, log_total;
  BRRR_MEMBER float lse() const { return log_total + top; }
  BRRR_MEMBER float loss(float logit) const { return log_total - (logit - top); }
};
/// Reduces one row with T threads that read V neighbours each; the row stride is a multiple of V.
template <typename In, int T, int V>
BRRR_DEVICE LogSum row_log_sum(const In* logits, u32 classes) {
  Running mine{-BRRR_INFINITY, 0.0f};
  for (u32 col = threadIdx.x * V; col < classes; col += T * V) {
    float x[V];
    load_logits(x, logits, col, classes);
    float top = x[0];
#pragma unroll
    for (int e = 1; e < V; ++e) top = larger(top, x[e]);
    top = larger(top, mine.top);
    if (top == -BRRR_INFINITY) continue;
    float total = mine.total * op_exp(mine.top - top);
#pragma unroll
    for (int e = 0; e < V; ++e) total += op_exp(x[e] - top);
    mine = Running{top, total};
  }
  const float top = fold<Larger, T>(mine.top);
  const float scaled = top == -BRRR_INFINITY ? 0.0f : mine.total * op_exp(mine.top - top);
  return LogSum{top, op_log(fold<Add, T>(scaled))};
}

/// What a row's gradient is made of: scale (p - [col == target]) + more p, where p = e^(x - lse) is
/// factor e^(x - shift).
struct RowGradient {
  float shift, factor, scale, more;
  i64 target;  // -1: none
};
/// From this lse on its last digit is a part in 2000 of p and more.
#define BRRR_LARGE_LSE 8192.0f
BRRR_DEVICE void set_shift(RowGradient& g, float lse) {
  g.shift = lse;
  g.factor = 1.0f;
}
BRRR_DEVICE void set_shift(RowGradient& g, LogSum sum) {
  const float lse = sum.lse();
  if (fabsf(lse) < BRRR_LARGE_LSE) return set_shift(g, lse);
  g.shift = sum.top;
  g.factor = op_exp(-sum.log_total);
}
/// `to` may begin where the logits begin, with elements that are no larger and rows as many bytes
/// apart: elements of one size lie where the thread that writes them has read, smaller ones where
/// others read. Behind the last class, up to `columns`, a multiple of V, it is zero.
template <typename In, typename Out, int T, int V>
BRRR_DEVICE void row_gradient(const In* logits, Out* to, u32 classes, u32 columns, RowGradient g) {
  for (u32 first = 0; first < columns; first += T * V) {
    const u32 col = first + threadIdx.x * V;
    float x[V] = {};
    if (col < classes) {
      load_logits(x, logits, col, classes);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const float p = op_exp(x[e] - g.shift) * g.factor;
        const float hot = static_cast<i64>(col + e) == g.target ? 1.0f : 0.0f;
        x[e] = g.scale * (p - hot) + g.more * p;
      }
    }
    if constexpr (sizeof(In) != sizeof(Out)) __syncthreads();  // all have read what is overwritten
    if (col < columns) store(to + col, x);
  }
}

/// losses, lse: one number for each row. A target outside the classes: *error = 1.
template <typename In, typename Id, typename Out, int T, int V>
BRRR_DEVICE void cross_entropy_row(const In* logits, const Id* targets, Out* losses, Out* lse,
                                   u32* error, u32 classes, i64 ignore, u64 row_stride) {
  const u64 row = blockIdx.x;
  const In* x = logits + row * row_stride;
  const LogSum sum = row_log_sum<In, T, V>(x, classes);
  if (threadIdx.x != 0) return;
  const i64 target = static_cast<i64>(targets[row]);
  const bool counts = target != ignore, inside = target >= 0 && target < static_cast<i64>(classes);
  if (counts && !inside) *error = 1u;
  const float picked = counts && inside ? static_cast<float>(widen(x[inside ? target : 0])) : 0.0f;
  losses[row] = narrow<Out>(counts ? sum.loss(picked) : 0.0f);
  lse[row] = narrow<Out>(sum.lse());
}
template <typename In, typename Id, typename Out, typename Stat, int T, int V>
BRRR_DEVICE void cross_entropy_grad_row(const In* logits, const Id* targets, const Stat* lse,
                                        const Stat* dlosses, const Stat* dlse, Out* dlogits,
                                        u32 classes, u32 columns, i64 ignore, u64 in_stride,
                                        u64 out_stride) {
  const u64 row = blockIdx.x;
  const i64 target = static_cast<i64>(targets[row]);
  const In* x = logits + row * in_stride;
  RowGradient g;
  const float of_row = static_cast<float>(widen(lse[row]));
  set_shift(g, of_row);
  if constexpr (sizeof(Stat) == sizeof(float)) {
    if (fabsf(of_row) >= BRRR_LARGE_LSE) {  // the same for all threads
      set_shift(g, row_log_sum<In, T, V>(x, classes));
      if constexpr (T == 32) __syncwarp();  // larger blocks have met
    }
  }
  g.scale = target != ignore ? static_cast<float>(widen(dlosses[row])) : 0.0f;
  g.more = dlse != nullptr ? static_cast<float>(widen(dlse[row])) : 0.0f;
  g.target = target;
  row_gradient<In, Out, T, V>(x, dlogits + row * out_stride, classes, columns, g);
}
/// Both at once: the logits are read while they are near.
template <typename In, typename Id, typename Out, int T, int V>
BRRR_DEVICE void cross_entropy_step_row(const In* logits, const Id* targets, const float* dlosses,
                                        float* losses, float* lse, Out* dlogits, u32* error,
                                        u32 classes, u32 columns, i64 ignore, u64 in_stride,
                                        u64 out_stride) {
  const u64 row = blockIdx.x;
  const In* x = logits + row * in_stride;
  RowGradient g;
  const i64 target = static_cast<i64>(targets[row]);
  const bool counts = target != ignore, inside = target >= 0 && target < static_cast<i64>(classes);
  // The first thread reads it before anyone overwrites it.
  const float picked = threadIdx.x == 0 && inside ? static_cast<float>(widen(x[target])) : 0.0f;
  const LogSum sum = row_log_sum<In, T, V>(x, classes);
  set_shift(g, sum);
  if constexpr (T == 32) __syncwarp();  // larger blocks have met in row_log_sum
  g.scale = counts ? dlosses[row] : 0.0f;
  g.more = 0.0f;
  g.target = target;
  if (threadIdx.x == 0) {
    if (counts && !inside) *error = 1u;
    losses[row] = counts ? sum.loss(picked) : 0.0f;
    lse[row] = sum.lse();
  }
  row_gradient<In, Out, T, V>(x, dlogits + row * out_stride, classes, columns, g);
}
