// What becomes of the scores of attention between its products, in the registers of the matrix
// unit: masks, the running softmax, dropout, the gradients; the same for attention_mma.cuh and
// attention_tma.cuh. A thread has two rows, 8 apart, and of every eight columns 2 t and 2 t + 1.

#define BRRR_LOG2E 1.4426950408889634f

/// A factor of a product as the left operand, rounded to T. p: [16, 8 C] of the warp.
template <typename T, int C>
struct LeftFactor {
  u32 words[C / 2][4];
  LeftFactor() = default;
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

// Words that go round: words[k] of lane n becomes words[n] of lane k.
BRRR_DEVICE void swap_words(u32& low, u32& high, bool is_upper, int lanes) {
  const u32 got = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, lanes);
  low = is_upper ? got : low;
  high = is_upper ? high : got;
}
/// Among four lanes that are `lanes` from each other; this is the n-th.
BRRR_DEVICE void turn_words(u32 (&words)[4], int n, int lanes) {
  swap_words(words[0], words[2], (n & 2) != 0, 2 * lanes);
  swap_words(words[1], words[3], (n & 2) != 0, 2 * lanes);
  swap_words(words[0], words[1], (n & 1) != 0, lanes);
  swap_words(words[2], words[3], (n & 1) != 0, lanes);
}

/// Of the thread's rows the h-th, 16 bytes to a lane: four lanes that have two of every eight
/// columns have eight side by side in turn. All lanes take part, whether their row is there or not.
template <typename T, int C>
BRRR_DEVICE void store_row(T* to, const float (&sum)[C][4], int h, int t, float factor,
                           bool is_there) {
#pragma unroll
  for (int d = 0; d < C; d += 4) {
    u32 words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      words[k] = packed<T>(sum[d + k][2 * h] * factor, sum[d + k][2 * h + 1] * factor);
    turn_words(words, t, 1);
    if (is_there)
      *reinterpret_cast<Pack<u32, 4>*>(to + (d + t) * 8) =
          Pack<u32, 4>{words[0], words[1], words[2], words[3]};
  }
}
/// Whether a block's rows from i on and keys [j, j + n) need a look at every element.
template <typename Options, int kRows>
BRRR_DEVICE bool needs_mask(int i, int j, int n, int keys_end_for_first) {
  if (!Options::kPlain) return true;
  if (j + n > Options::kKeys || i + kRows > Options::kQueries) return true;
  return Options::kCausal && j + n > keys_end_for_first;
}
/// The score of (i, j) in units of log2, -inf outside.
template <typename Options, typename Extra>
BRRR_DEVICE float masked_score(float product, const Extra& extra, u64 head, int i, int j) {
  if (i >= Options::kQueries || j >= Options::kKeys) return -BRRR_INFINITY;
  return Options::score(product * Options::scale(), extra, head, i, j) * BRRR_LOG2E;
}

/// Where a thread's scores are: element e of every eight columns c, rows of queries or of keys.
struct ByQueries {
  int row, column;
  BRRR_MEMBER int i(int, int e) const { return row + e / 2 * 8; }
  BRRR_MEMBER int j(int c, int e) const { return column + c * 8 + e % 2; }
};
struct ByKeys {
  int row, column;
  BRRR_MEMBER int i(int c, int e) const { return column + c * 8 + e % 2; }
  BRRR_MEMBER int j(int, int e) const { return row + e / 2 * 8; }
};
/// f(c, e) for each of them.
template <int C, typename F>
BRRR_DEVICE void each_score(const F& f) {
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) f(c, e);
}

// -- dropout. A block of random words is drawn once for its eight keys, by one of the lanes that
// have them, and goes round

/// Among eight, in halves of words.
BRRR_DEVICE void turn_halves(u32 (&words)[4], int n, int lanes) {
  turn_words(words, n / 2, 2 * lanes);
#pragma unroll
  for (int w = 0; w < 4; w += 2) {
    // An even lane keeps its low halves and sends the high ones.
    const bool odd = (n & 1) != 0;
    const u32 low = (words[w] & 0xffffu) | words[w + 1] << 16;
    const u32 high = words[w] >> 16 | (words[w + 1] & 0xffff0000u);
    const u32 got = __shfl_xor_sync(0xffffffffu, odd ? low : high, lanes);
    const u32 a = odd ? got : low, b = odd ? high : got;
    words[w] = (a & 0xffffu) | b << 16;
    words[w + 1] = a >> 16 | (b & 0xffff0000u);
  }
}
/// The block of random words for eight keys from j on.
template <typename Options>
BRRR_DEVICE u64 block_of_words(u64 head, int i, int j) {
  return (head * Options::kQueries + i) * (Options::kKeys / 8) + j / 8;
}
template <typename Extra>
BRRR_DEVICE void draw_words(u32 (&words)[4], const Extra& extra, u64 block) {
#ifndef BRRR_EMULATED
  asm volatile("" : "+l"(block));  // one draw after the other: they need the same registers
#endif
  const Words all = philox(static_cast<u32>(extra.key[0]), static_cast<u32>(extra.key[1]),
                           static_cast<u32>(extra.stream), block);
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = all.w[w];
}
/// f(c, e, whether it is kept) for each score, where eight keys have a block of words.
template <typename Options, int C, typename Extra, typename F>
BRRR_DEVICE void each_of_blocks(const Extra& extra, u64 head, ByQueries at, const F& f) {
  const int t = threadIdx.x % 4;
  const u64 first = block_of_words<Options>(head, at.row, at.column) + t;
#pragma unroll
  for (int c = 0; c < C; c += 4)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      u32 words[4];
      draw_words(words, extra, first + c + h * Options::kKeys);
      turn_words(words, t, 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        f(c + k, 2 * h, (words[k] & 0xffffu) >= Options::kThreshold);
        f(c + k, 2 * h + 1, words[k] >> 16 >= Options::kThreshold);
      }
    }
}
template <typename Options, int C, typename Extra, typename F>
BRRR_DEVICE void each_of_blocks(const Extra& extra, u64 head, ByKeys at, const F& f) {
  const int g = threadIdx.x % 32 / 4;
  const u64 first = block_of_words<Options>(head, at.column + g / 2 * 8 + g % 2, at.row);
#pragma unroll
  for (int c = 0; c < C; c += 4)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      u32 words[4];
      draw_words(words, extra, first + c * Options::kKeys + h);
      turn_halves(words, g, 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        f(c + k, 2 * h, (words[k] & 0xffffu) >= Options::kThreshold);
        f(c + k, 2 * h + 1, words[k] >> 16 >= Options::kThreshold);
      }
    }
}
/// The same for any number of keys.
template <typename Options, int C, typename Extra, typename At, typename F>
BRRR_DEVICE void each_drawn(const Extra& extra, u64 head, At at, const F& f) {
  if constexpr (Options::kKeys % 8 == 0)
    each_of_blocks<Options, C>(extra, head, at, f);
  else
    each_score<C>([&](int c, int e) {
      f(c, e, Options::kept(1.0f, extra, head, at.i(c, e), at.j(c, e)) != 0.0f);
    });
}

/// sum *= shrink, row by row.
template <int C>
BRRR_DEVICE void shrink_rows(float (&sum)[C][4], const float (&shrink)[2]) {
#pragma unroll
  for (int d = 0; d < C; ++d)
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[d][e] *= shrink[e / 2];
}

/// The softmax of a thread's two rows over the keys that have come so far, in units of log2. What
/// is summed with its probabilities is divided at the end.
struct RunningSoftmax {
  float top[2] = {-BRRR_INFINITY, -BRRR_INFINITY}, total[2] = {0.0f, 0.0f};

  /// Products q k become probabilities (dropped ones 0); what was summed before is to be multiplied
  /// by `shrink`. look: some element may be masked.
  template <typename Options, int C, typename Extra>
  BRRR_MEMBER void add(float (&s)[C][4], float (&shrink)[2], bool look, const Extra& extra,
                       u64 head, ByQueries at) {
    float factor = 1.0f;  // what takes scores to units of log2
    if (look)
      each_score<C>([&](int c, int e) {
        s[c][e] = masked_score<Options>(s[c][e], extra, head, at.i(c, e), at.j(c, e));
      });
    else if (Options::scale() > 0.0f)
      factor = Options::scale() * BRRR_LOG2E;
    else
      each_score<C>([&](int c, int e) { s[c][e] *= Options::scale() * BRRR_LOG2E; });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -BRRR_INFINITY;
#pragma unroll
      for (int c = 0; c < C; ++c) most = larger(most, larger(s[c][2 * h], s[c][2 * h + 1]));
      most = larger(top[h], most * factor);
      most = larger(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = larger(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == -BRRR_INFINITY ? 0.0f : most;
      shrink[h] = power_of_two(top[h] - base);
      top[h] = most;
      float added = 0.0f;
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          s[c][e] = power_of_two(fmaf(s[c][e], factor, -base));
          added += s[c][e];
        }
      total[h] = total[h] * shrink[h] + added;
    }
    if constexpr (Options::kDrops)
      each_drawn<Options, C>(extra, head, at, [&](int c, int e, bool kept) {
        s[c][e] = kept ? s[c][e] * Options::kFactor : 0.0f;
      });
  }

  /// y and lse of rows `row` and row + 8; t: of their columns 2 t, 2 t + 1, 2 t + 8, ...
  template <typename Options, typename T, int C>
  BRRR_MEMBER void finish(const float (&sum)[C][4], T* y, float* lse, u64 head, int row,
                          int t) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float all = total[h] + __shfl_xor_sync(0xffffffffu, total[h], 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      const int i = row + h * 8;
      const bool is_there = i < Options::kQueries;
      const float inverse = all == 0.0f ? BRRR_NAN : 1.0f / all;  // a query that sees no key
      store_row(Options::Y::row(y, head, i), sum, h, t, inverse, is_there);
      if (is_there && t == 0)
        lse[head * Options::kQueries + i] =
            all == 0.0f ? BRRR_NAN : (top[h] + log2f(all)) * 0.69314718055994531f;
    }
  }
};

/// sum(dy y) of a query, by all lanes of a warp.
template <typename Options, typename T>
BRRR_DEVICE float delta_of(const T* y, const T* dy, u64 head, int i) {
  constexpr int V = Options::kWidth / 32;
  const int lane = threadIdx.x % 32;
  float a[V], b[V], part = 0.0f;
  load(a, Options::Y::row(y, head, i) + lane * V);
  load(b, Options::Y::row(dy, head, i) + lane * V);
#pragma unroll
  for (int e = 0; e < V; ++e) part += a[e] * b[e];
  return warp_fold<Add>(part);
}

// -- scores of the backward pass. look: some may be masked or outside. What is outside has a score
// of -inf, rows of zeros and finite sums, so that everything here gives 0

/// A product q k becomes a probability again; lse in units of log2.
template <typename Options>
BRRR_DEVICE float probability(float product, float lse) {
  return power_of_two(fmaf(product, Options::scale() * BRRR_LOG2E, -lse));
}
template <typename Options, typename Extra>
BRRR_DEVICE float masked_probability(float product, float lse, const Extra& extra, u64 head, int i,
                                     int j) {
  return power_of_two(masked_score<Options>(product, extra, head, i, j) - lse);
}
/// dy v becomes the gradient of a scaled score.
template <typename Options, typename Extra>
BRRR_DEVICE float masked_gradient(float p, float dp, float delta, const Extra& extra, u64 head,
                                  int i, int j) {
  const bool passes =
      i < Options::kQueries && j < Options::kKeys && Options::passes(extra, head, i, j);
  return passes ? p * (dp - delta) : 0.0f;
}

/// All scores of a thread; lse_of(c, e) as above.
template <typename Options, int C, typename At, typename F, typename Extra>
BRRR_DEVICE void to_probabilities(float (&s)[C][4], bool look, const Extra& extra, u64 head, At at,
                                  const F& lse_of) {
  if (look)
    each_score<C>([&](int c, int e) {
      s[c][e] =
          masked_probability<Options>(s[c][e], lse_of(c, e), extra, head, at.i(c, e), at.j(c, e));
    });
  else
    each_score<C>([&](int c, int e) { s[c][e] = probability<Options>(s[c][e], lse_of(c, e)); });
}
/// And s what v was multiplied by.
template <typename Options, int C, typename At, typename F, typename Extra>
BRRR_DEVICE void to_gradients(float (&s)[C][4], float (&ds)[C][4], bool look, const Extra& extra,
                              u64 head, At at, const F& delta_of_score) {
  if constexpr (Options::kDrops)
    each_drawn<Options, C>(extra, head, at, [&](int c, int e, bool kept) {
      const float p = s[c][e], dp = kept ? ds[c][e] * Options::kFactor : 0.0f;
      ds[c][e] = masked_gradient<Options>(p, dp, delta_of_score(c, e), extra, head, at.i(c, e),
                                          at.j(c, e));
      s[c][e] = kept ? p * Options::kFactor : 0.0f;
    });
  else if (look)
    each_score<C>([&](int c, int e) {
      ds[c][e] = masked_gradient<Options>(s[c][e], ds[c][e], delta_of_score(c, e), extra, head,
                                          at.i(c, e), at.j(c, e));
    });
  else
    each_score<C>([&](int c, int e) { ds[c][e] = s[c][e] * (ds[c][e] - delta_of_score(c, e)); });
}
