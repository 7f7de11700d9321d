// The warp's matrix unit from sm_80 on: copies from global to shared memory that run on their own,
// fragments out of shared memory, and products of 16 x 16 by 16 x 8. Each instruction has a twin in
// plain C++.

#ifdef BRRR_EMULATED
#define BRRR_LANE static_cast<int>(threadIdx.x % 32)
#endif

template <typename T>
struct Is16 {
  static constexpr bool kBf16 = false;
};
template <>
struct Is16<bf16> {
  static constexpr bool kBf16 = true;
};

/// 16 bytes from global to shared memory; zeros where not `valid`.
BRRR_DEVICE void copy_async(void* shared, const void* global, bool valid) {
#ifdef BRRR_EMULATED
  if (valid)
    __builtin_memcpy(shared, global, 16);
  else
    __builtin_memset(shared, 0, 16);
#else
  const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
#endif
}
BRRR_DEVICE void commit_copies() {
#ifndef BRRR_EMULATED
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until at most n of the thread's groups of copies are under way.
template <int n>
BRRR_DEVICE void wait_copies() {
#ifndef BRRR_EMULATED
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

/// Four matrices of 8 x 8; lanes 8 m to 8 m + 7 give the rows of matrix m (16 bytes each).
template <bool kTransposed>
BRRR_DEVICE void load_matrices(u32 (&r)[4], const void* row) {
#ifdef BRRR_EMULATED
  u16 mine[8];
  __builtin_memcpy(mine, row, 16);
  const unsigned char* all = emulated_context->exchange(mine, 16);
  const int g = BRRR_LANE / 4, t = BRRR_LANE % 4;
  for (int m = 0; m < 4; ++m) {
    u16 pair[2];
    for (int e = 0; e < 2; ++e) {
      const int i = kTransposed ? 2 * t + e : g, j = kTransposed ? g : 2 * t + e;
      __builtin_memcpy(&pair[e], all + 64 * (8 * m + i) + 2 * j, 2);
    }
    r[m] = pair[0] | static_cast<u32>(pair[1]) << 16;
  }
#else
  const u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
  if (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
#endif
}

#ifdef BRRR_EMULATED
template <typename T>
static inline float half_of(u32 word, int k) {
  T x;
  x.bits = static_cast<u16>(word >> (16 * k));
  return widen(x);
}
/// Of what the lanes exchanged: the word'th word of a lane, and in it term k of 16, two to a lane.
template <typename T>
static inline float term_of(const unsigned char* all, int lane, int word, int k) {
  u32 w;
  __builtin_memcpy(&w, all + 64 * (lane + k % 8 / 2) + 4 * word, 4);
  return half_of<T>(w, k % 2);
}
#endif

/// c += a b. Lane 4 g + t has rows g and g + 8 and columns 2 t, 2 t + 1 of c.
template <typename T>
BRRR_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef BRRR_EMULATED
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const unsigned char* all = emulated_context->exchange(mine, 24);
  const int g = BRRR_LANE / 4, t = BRRR_LANE % 4;
  for (int k = 0; k < 16; ++k)
    for (int e = 0; e < 2; ++e) {
      const float y = term_of<T>(all, 4 * (2 * t + e), 4 + k / 8, k);
      for (int h = 0; h < 2; ++h) c[2 * h + e] += term_of<T>(all, 4 * g, k / 8 * 2 + h, k) * y;
    }
#else
  if constexpr (Is16<T>::kBf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// 2^x, 0 at -inf.
BRRR_DEVICE float power_of_two(float x) {
#ifdef BRRR_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
/// Two neighbours as one register, the first in the low half.
template <typename T>
BRRR_DEVICE u32 packed(float low, float high) {
  return static_cast<u32>(narrow<T>(low).bits) | static_cast<u32>(narrow<T>(high).bits) << 16;
}

/// A tile of kRows rows of D elements of 16 bits in shared memory: panels of 64 columns (128
/// bytes), in each the rows one after the other, their 16-byte chunks exchanged by the row's last
/// bits, so that eight rows of a column of chunks lie in different banks. It is what sm_90 calls a
/// swizzle of 128 bytes; the tile begins at a multiple of 1024 bytes.
template <typename T, int D, int kRows>
struct Tile {
  T* base;
  BRRR_MEMBER T* at(int row, int chunk) const {
    return base + (chunk / 8 * kRows + row) * 64 + ((chunk ^ row) & 7) * 8;
  }

  /// Rows [first, first + kRows) of [count, D], kRow elements from one to the next; behind the end
  /// zeros.
  template <int kThreads, int kRow>
  BRRR_MEMBER void copy(const T* from, int first, int count) const {
#pragma unroll
    for (int k = threadIdx.x; k < kRows * D / 8; k += kThreads) {
      const int row = k / (D / 8), chunk = k % (D / 8);
      const bool valid = first + row < count;
      copy_async(at(row, chunk),
                 from + static_cast<u64>(valid ? first + row : 0) * kRow + chunk * 8, valid);
    }
  }
  /// Rows from `row` and columns from `k` on as the left operand.
  BRRR_MEMBER void left(u32 (&a)[4], int row, int k) const {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<false>(a, at(row + (m & 1) * 8 + lane % 8, k / 8 + (m >> 1)));
  }
  /// 16 rows as columns n of the right operand: b[0], b[1] of the first 8, b[2], b[3] of the
  /// others.
  BRRR_MEMBER void right(u32 (&b)[4], int n, int k) const {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<false>(b, at(n + (m >> 1) * 8 + lane % 8, k / 8 + (m & 1)));
  }
  /// Rows as terms k of the right operand, 16 columns from n on.
  BRRR_MEMBER void right_transposed(u32 (&b)[4], int k, int n) const {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<true>(b, at(k + (m & 1) * 8 + lane % 8, n / 8 + (m >> 1)));
  }
};

// -- who multiplies: each warp its 16 rows (mma), or four warps their 64 at once (wgmma, sm_90a),
// which read the right operand from shared memory themselves

struct ByWarps {
  enum { kRows = 64, kThreads = 128 };  // of a block
  // A product reads its registers when it begins.
  enum { kAtOnce = false };
  /// Before the first product of several: their registers (sums and left operands) are as they
  /// shall be read.
  template <typename... Registers>
  BRRR_METHOD void begin(Registers&...) {}
  /// After the last: these sums are there.
  template <typename... Registers>
  BRRR_METHOD void end(Registers&...) {}
  /// After copies, before the barrier behind which products read what was copied.
  BRRR_METHOD void publish() {}

  /// c += a b^T: columns from k on of all rows of b.
  template <typename T, int D, int kRows>
  BRRR_METHOD void by_columns(float (&c)[kRows / 8][4], const u32 (&a)[4],
                              const Tile<T, D, kRows>& tile, int k) {
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      u32 b[4];
      tile.right(b, n * 16, k);
      multiply<T>(c[2 * n], a, b[0], b[1]);
      multiply<T>(c[2 * n + 1], a, b[2], b[3]);
    }
  }
  /// c += a b: rows from k on of b.
  template <typename T, int D, int kRows>
  BRRR_METHOD void by_rows(float (&c)[D / 8][4], const u32 (&a)[4], const Tile<T, D, kRows>& tile,
                           int k) {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      u32 b[4];
      tile.right_transposed(b, k, n * 16);
      multiply<T>(c[2 * n], a, b[0], b[1]);
      multiply<T>(c[2 * n + 1], a, b[2], b[3]);
    }
  }
};
