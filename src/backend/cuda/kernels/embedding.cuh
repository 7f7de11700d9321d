// Rows of a table by id, runs along any axis, and the derivative of rows without atomics: tokens
// are sorted by id (a stable radix sort, 8 bits at a time), then each row of the table adds up its
// own, in their order.

/// y [outer, ids, inner] out of x [outer, count, inner]; each thread moves V neighbouring elements.
/// An id below 0 counts from the end where kFromEnd. A bad id: *error = 1 and zeros.
template <typename T, typename Id, int V, bool kFromEnd>
BRRR_DEVICE void gather_runs(const T* x, const Id* ids, T* y, u32* error, u64 outer, u64 of_ids,
                             u32 inner, i64 count) {
  const u32 vectors = inner / V;
  const u64 at = blockIdx.x * 256ull + threadIdx.x;
  if (at >= outer * of_ids * vectors) return;
  const u64 run = at / vectors;
  const u32 col = static_cast<u32>(at % vectors) * V;
  i64 id = static_cast<i64>(ids[outer == 1 ? run : run % of_ids]);
  if (kFromEnd && id < 0) id += count;
  Pack<T, V> pack = {};
  if (id >= 0 && id < count) {
    const u64 row =
        (outer == 1 ? 0 : run / of_ids * static_cast<u64>(count)) + static_cast<u64>(id);
    pack = *reinterpret_cast<const Pack<T, V>*>(x + row * inner + col);
  } else {
    *error = 1u;
  }
  *reinterpret_cast<Pack<T, V>*>(y + run * inner + col) = pack;
}

enum { kSortTokens = 2048 };  // of a block

/// counts[digit][block]. A bad id counts as the row behind the last one.
template <typename Id>
BRRR_DEVICE u32 key_of(const Id* ids, u64 i, i64 rows, u32* error) {
  const i64 id = static_cast<i64>(ids[i]);
  if (id >= 0 && id < rows) return static_cast<u32>(id);
  *error = 1u;
  return static_cast<u32>(rows);
}
template <typename Key>
BRRR_DEVICE void sort_count(Key key, u32* counts, u64 tokens, int shift) {
  __shared__ u32 of_digit[256];
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  for (int step = 0; step < kSortTokens / 256; ++step) {
    const u64 i = blockIdx.x * static_cast<u64>(kSortTokens) + step * 256 + threadIdx.x;
    if (i < tokens) atomicAdd(&of_digit[(key(i) >> shift) & 255u], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}
/// Each count becomes the sum of those before it. One block of 1024 threads.
BRRR_DEVICE void sort_scan(u32* counts, u32 n) {
  __shared__ u32 sums[1024];
  const u32 share = (n + 1023) / 1024, begin = threadIdx.x * share;
  const u32 end = begin + share < n ? begin + share : n;
  u32 sum = 0;
  for (u32 i = begin; i < end; ++i) sum += counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (u32 step = 1; step < 1024; step *= 2) {
    const u32 before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  u32 total = sums[threadIdx.x] - sum;
  for (u32 i = begin; i < end; ++i) {
    const u32 count = counts[i];
    counts[i] = total;
    total += count;
  }
}
/// Stable: tokens of a digit keep their order.
template <typename Key, typename Index>
BRRR_DEVICE void sort_move(Key key, Index index, const u32* starts, u32* keys, u32* indices,
                           u64 tokens, int shift) {
  __shared__ u32 next[256];
  __shared__ u32 digits[256];
  next[threadIdx.x] = starts[threadIdx.x * gridDim.x + blockIdx.x];
  for (int step = 0; step < kSortTokens / 256; ++step) {
    const u64 i = blockIdx.x * static_cast<u64>(kSortTokens) + step * 256 + threadIdx.x;
    const u32 k = i < tokens ? key(i) : 0u;
    const u32 digit = i < tokens ? (k >> shift) & 255u : 256u;
    digits[threadIdx.x] = digit;
    __syncthreads();
    u32 before = 0, after = 0;
    for (u32 t = 0; t < 256; ++t) {
      before += digits[t] == digit && t < threadIdx.x ? 1u : 0u;
      after += digits[t] == digit && t > threadIdx.x ? 1u : 0u;
    }
    u32 to = 0;
    if (digit < 256u) {
      to = next[digit] + before;
      keys[to] = k;
      indices[to] = index(i);
    }
    __syncthreads();
    if (digit < 256u && after == 0) next[digit] = to + 1;
    __syncthreads();
  }
}
/// The first place of a row's tokens, for each row and for the one behind the last.
BRRR_DEVICE void sort_starts(const u32* keys, u32* starts, u32 tokens, u32 rows) {
  const u32 row = blockIdx.x * 256 + threadIdx.x;
  if (row > rows) return;
  u32 low = 0, high = tokens;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (keys[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  starts[row] = low;
}
/// A row of the table to a block: 4 slices of its tokens, V columns to a thread.
template <typename T, int V>
BRRR_DEVICE void embedding_row_sums(const T* dy, const u32* starts, const u32* indices, T* y,
                                    u32 width) {
  __shared__ float slices[3][128][V];
  const u32 lane = threadIdx.x % 128, slice = threadIdx.x / 128;
  const u32 col = (blockIdx.y * 128 + lane) * V;
  const u32 begin = starts[blockIdx.x], count = starts[blockIdx.x + 1] - begin;
  const u32 share = (count + 3) / 4;
  const u32 from = slice * share < count ? slice * share : count;
  const u32 to = from + share < count ? from + share : count;
  float sum[V] = {};
  if (col < width) {
#pragma unroll 4
    for (u32 k = from; k < to; ++k) {
      float x[V];
      load(x, dy + static_cast<u64>(indices[begin + k]) * width + col);
#pragma unroll
      for (int e = 0; e < V; ++e) sum[e] += x[e];
    }
  }
  if (slice > 0)
#pragma unroll
    for (int e = 0; e < V; ++e) slices[slice - 1][lane][e] = sum[e];
  __syncthreads();
  if (slice > 0 || col >= width) return;
  for (int s = 0; s < 3; ++s)
#pragma unroll
    for (int e = 0; e < V; ++e) sum[e] += slices[s][lane][e];
  store(y + static_cast<u64>(blockIdx.x) * width + col, sum);
}
