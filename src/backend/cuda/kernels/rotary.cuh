// Rotary position embedding: each thread turns V pairs of a head, or copies V numbers that do not
// turn. A bad position: *error = 1, and the row of another one.

/// position(token) is a row of cos and sin, which have `rows` of `half` numbers.
template <typename T, int V, bool kInterleaved, typename Position>
BRRR_DEVICE void rotary_rows(const T* x, const float* cos, const float* sin, T* y, u32* error,
                             Position position, u64 tokens, u32 heads, u32 all_heads, u32 width,
                             u32 half, i64 rows, float sign) {
  const u32 tail = width - 2 * half;  // columns of a head that do not turn
  const u32 turned = heads * (half / V);
  const u32 units = turned + (heads * tail + (all_heads - heads) * width) / V;
  const u64 at = blockIdx.x * 256ull + threadIdx.x;
  if (at >= tokens * units) return;
  const u64 token = at / units;
  const u32 unit = static_cast<u32>(at % units);
  x += token * all_heads * width;
  y += token * all_heads * width;
  if (unit >= turned) {
    const u32 k = (unit - turned) * V;
    const u32 to = k < heads * tail ? k / tail * width + 2 * half + k % tail
                                    : heads * width + (k - heads * tail);
    *reinterpret_cast<Pack<T, V>*>(y + to) = *reinterpret_cast<const Pack<T, V>*>(x + to);
    return;
  }
  const u32 i = unit % (half / V) * V, head = unit / (half / V) * width;
  i64 p = static_cast<i64>(position(token));
  if (p < 0 || p >= rows) {
    *error = 1u;
    p = 0;
  }
  float c[V], s[V];
  load(c, cos + static_cast<u64>(p) * half + i);
  load(s, sin + static_cast<u64>(p) * half + i);
  if constexpr (kInterleaved) {
    float both[2 * V];
    load(both, x + head + 2 * i);
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float a = both[2 * e], b = both[2 * e + 1];
      both[2 * e] = a * c[e] - b * (sign * s[e]);
      both[2 * e + 1] = b * c[e] + a * (sign * s[e]);
    }
    store(y + head + 2 * i, both);
  } else {
    float a[V], b[V];
    load(a, x + head + i);
    load(b, x + head + half + i);
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float first = a[e], second = b[e];
      a[e] = first * c[e] - second * (sign * s[e]);
      b[e] = second * c[e] + first * (sign * s[e]);
    }
    store(y + head + i, a);
    store(y + head + half + i, b);
  }
}
