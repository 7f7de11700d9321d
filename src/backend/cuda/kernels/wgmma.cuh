// Four warps' matrix unit, from sm_90a on: products of 64 x 16 by 16 x N that read the right
// operand from shared memory (PTX ISA, "Asynchronous warpgroup level matrix instructions"), the
// left one from there or from registers. Registers are laid out as `multiply` has them, warp by
// warp. The unit works on its own: who has asked for products waits for them.

#ifndef BRRR_EMULATED
/// What the unit is told of a tile in shared memory: the address, how far the next panel of 64
/// columns is and the next eight rows, all in units of 16 bytes; and that its chunks are exchanged
/// over 128 bytes.
BRRR_DEVICE u64 tile_descriptor(const void* at, u32 panel_bytes) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(at));
  return static_cast<u64>((address & 0x3ffffu) >> 4) | static_cast<u64>(panel_bytes >> 4) << 16 |
         static_cast<u64>(1024u >> 4) << 32 | u64{1} << 62;
}

#define BRRR_SUM(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define BRRR_SUMS_4(i) BRRR_SUM(i), BRRR_SUM(i + 1), BRRR_SUM(i + 2), BRRR_SUM(i + 3)
#define BRRR_SUMS_8(i) BRRR_SUMS_4(i), BRRR_SUMS_4(i + 4)
#define BRRR_SUMS_16(i) BRRR_SUMS_8(i), BRRR_SUMS_8(i + 8)
// registers: the names of the sums; next: of what follows them, five; keep: 0, as if the sums were
// 0
#define BRRR_WGMMA(shape, type, registers, next, flag, transposed, sums)                        \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " flag ", 0; wgmma.mma_async.sync.aligned." shape \
               ".f32." type "." type " {" registers "}, " next ", p, 1, 1, " transposed ";}"    \
               : sums                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
// the left operand in shared memory, too
#define BRRR_WGMMA_SHARED(shape, type, registers, operands, flag, sums)                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " flag ", 0; wgmma.mma_async.sync.aligned." shape \
               ".f32." type "." type " {" registers "}, " operands ", p, 1, 1, 0, 0;}"          \
               : sums                                                                           \
               : "l"(a), "l"(b), "r"(keep))
#define BRRR_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BRRR_NEXT_16 "{%16, %17, %18, %19}, %20"
#define BRRR_NEXT_KEEP_16 "%21"
#define BRRR_SHARED_16 "%16, %17"
#define BRRR_KEEP_16 "%18"
#define BRRR_NAMES_32                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BRRR_NEXT_32 "{%32, %33, %34, %35}, %36"
#define BRRR_NEXT_KEEP_32 "%37"
#define BRRR_SHARED_32 "%32, %33"
#define BRRR_KEEP_32 "%34"
#define BRRR_NAMES_64                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BRRR_NEXT_64 "{%64, %65, %66, %67}, %68"
#define BRRR_NEXT_KEEP_64 "%69"
#define BRRR_SHARED_64 "%64, %65"
#define BRRR_KEEP_64 "%66"

template <bool kBf16, bool kTransposed, int C>
struct GroupProduct;
#define BRRR_GROUP_PRODUCT(bf16_, type, transposed_, flag, chunks, shape, n)           \
  template <>                                                                          \
  struct GroupProduct<bf16_, transposed_, chunks> {                                    \
    BRRR_METHOD void add(float (&c)[chunks][4], const u32 (&a)[4], u64 b, int keep) {  \
      BRRR_WGMMA(shape, type, BRRR_NAMES_##n, BRRR_NEXT_##n, BRRR_NEXT_KEEP_##n, flag, \
                 BRRR_SUMS_##chunks(0));                                               \
    }                                                                                  \
  };
#define BRRR_GROUP_PRODUCTS(bf16_, type)                            \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 4, "m64n32k16", 16)   \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 8, "m64n64k16", 32)   \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 16, "m64n128k16", 64) \
  BRRR_GROUP_PRODUCT(bf16_, type, true, "1", 8, "m64n64k16", 32)    \
  BRRR_GROUP_PRODUCT(bf16_, type, true, "1", 16, "m64n128k16", 64)
BRRR_GROUP_PRODUCTS(true, "bf16")
BRRR_GROUP_PRODUCTS(false, "f16")

template <bool kBf16, int C>
struct SharedProduct;
#define BRRR_SHARED_PRODUCT(bf16_, type, chunks, shape, n)                           \
  template <>                                                                        \
  struct SharedProduct<bf16_, chunks> {                                              \
    BRRR_METHOD void add(float (&c)[chunks][4], u64 a, u64 b, int keep) {            \
      BRRR_WGMMA_SHARED(shape, type, BRRR_NAMES_##n, BRRR_SHARED_##n, BRRR_KEEP_##n, \
                        BRRR_SUMS_##chunks(0));                                      \
    }                                                                                \
  };
#define BRRR_SHARED_PRODUCTS(bf16_, type)              \
  BRRR_SHARED_PRODUCT(bf16_, type, 4, "m64n32k16", 16) \
  BRRR_SHARED_PRODUCT(bf16_, type, 8, "m64n64k16", 32) \
  BRRR_SHARED_PRODUCT(bf16_, type, 16, "m64n128k16", 64)
BRRR_SHARED_PRODUCTS(true, "bf16")
BRRR_SHARED_PRODUCTS(false, "f16")
#else
/// Products that were asked for and not waited for: they happen when they are waited for, so that
/// whoever changes their operands before, or reads their sums, computes nonsense.
struct Asked {
  void (*run)(const Asked&);
  float* c;
  const void *a, *b;
  int row, k, keep, group;
};
struct AskedOfThread {
  Asked list[64];
  int count, groups;
};
static AskedOfThread asked_of[1024];

static inline void ask(Asked product) {
  AskedOfThread& mine = asked_of[threadIdx.x];
  product.group = mine.groups;
  mine.list[mine.count++] = product;
}
/// Those of all groups but the last n that were committed.
static inline void run_asked(int n) {
  AskedOfThread& mine = asked_of[threadIdx.x];
  int left = 0;
  for (int i = 0; i < mine.count; ++i) {
    if (mine.list[i].group < mine.groups - n)
      mine.list[i].run(mine.list[i]);
    else
      mine.list[left++] = mine.list[i];
  }
  mine.count = left;
  if (left == 0) mine.groups = 0;
  emulated_context->warp_barrier();  // a warp waits as one
}
/// c += a b for one warp, element by element; left(row, k) and right(k, column) are elements.
template <int C, typename Left, typename Right>
static void add_plain(float* c, const Left& left, const Right& right) {
  const int g = BRRR_LANE / 4, t = BRRR_LANE % 4;
  for (int k = 0; k < 16; ++k) {
    const float x[2] = {left(g, k), left(g + 8, k)};
    for (int i = 0; i < 4 * C; ++i)
      c[i] += x[i % 4 / 2] * widen(right(k, i / 4 * 8 + 2 * t + i % 2));
  }
}
template <int C, typename T, typename Right>
static void add_from_registers(const Asked& p, const Right& right) {
  const unsigned char* all = emulated_context->exchange(p.a, 16);
  add_plain<C>(
      p.c, [&](int row, int k) { return term_of<T>(all, row % 8 * 4, k / 8 * 2 + row / 8, k); },
      right);
}
#endif

struct ByGroups {
  enum { kRows = 128, kThreads = 256 };
  // Products between begin() and end() read their registers when they please.
  enum { kAtOnce = true };
  /// Before products: their registers are as they shall be read.
  template <typename... Registers>
  BRRR_METHOD void begin(Registers&... registers) {
    (pin(registers), ...);
#ifndef BRRR_EMULATED
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  /// What was asked for since the last commit() is a group.
  BRRR_METHOD void commit() {
#ifdef BRRR_EMULATED
    ++asked_of[threadIdx.x].groups;
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  /// Until all groups but the last n are done; the registers are of those that are.
  template <int n, typename... Registers>
  BRRR_METHOD void wait(Registers&... registers) {
#ifdef BRRR_EMULATED
    run_asked(n);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
#endif
    (pin(registers), ...);
  }
  template <typename... Registers>
  BRRR_METHOD void end(Registers&... registers) {
    commit();
    wait<0>(registers...);
  }
  /// Nothing that is done to these registers moves across this line: the compiler does not know
  /// that the unit works on its own.
  template <int C>
  BRRR_METHOD void pin(float (&words)[C][4]) {
#ifdef BRRR_EMULATED
    (void)words;
#else
#pragma unroll
    for (int i = 0; i < 4 * C; ++i) asm volatile("" : "+f"(words[i / 4][i % 4])::"memory");
#endif
  }
  template <int C>
  BRRR_METHOD void pin(u32 (&words)[C][4]) {
#ifdef BRRR_EMULATED
    (void)words;
#else
#pragma unroll
    for (int i = 0; i < 4 * C; ++i) asm volatile("" : "+r"(words[i / 4][i % 4])::"memory");
#endif
  }
  BRRR_METHOD void publish() {
#ifndef BRRR_EMULATED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  template <typename T, int D, int kRows>
  BRRR_METHOD void by_columns(float (&c)[kRows / 8][4], const u32 (&a)[4],
                              const Tile<T, D, kRows>& tile, int k, int keep = 1) {
#ifdef BRRR_EMULATED
    ask({[](const Asked& p) {
           const Tile<T, D, kRows> b{static_cast<T*>(const_cast<void*>(p.b))};
           if (p.keep == 0)
             for (int i = 0; i < kRows / 2; ++i) p.c[i] = 0.0f;
           add_from_registers<kRows / 8, T>(
               p, [&](int term, int n) { return b.at(n, (p.k + term) / 8)[(p.k + term) % 8]; });
         },
         c[0], a, tile.base, 0, k, keep, 0});
#else
    GroupProduct<Is16<T>::kBf16, false, kRows / 8>::add(c, a, along_rows(tile, 0, k), keep);
#endif
  }
  template <typename T, int D, int kRows>
  BRRR_METHOD void by_rows(float (&c)[D / 8][4], const u32 (&a)[4], const Tile<T, D, kRows>& tile,
                           int k) {
#ifdef BRRR_EMULATED
    ask({[](const Asked& p) {
           const Tile<T, D, kRows> b{static_cast<T*>(const_cast<void*>(p.b))};
           add_from_registers<D / 8, T>(
               p, [&](int term, int n) { return b.at(p.k + term, n / 8)[n % 8]; });
         },
         c[0], a, tile.base, 0, k, 1, 0});
#else
    GroupProduct<Is16<T>::kBf16, true, D / 8>::add(
        c, a, tile_descriptor(tile.base + k * 64, kRows * 128), 1);
#endif
  }
  /// c = a b^T: the group's 64 rows of a, from `row` on, by all rows of b. Nothing of it is in
  /// registers but c.
  template <typename T, int D, int kLeft, int kRows>
  BRRR_METHOD void of_shared(float (&c)[kRows / 8][4], const Tile<T, D, kLeft>& left, int row,
                             const Tile<T, D, kRows>& tile) {
#pragma unroll
    for (int k = 0; k < D; k += 16) {
#ifdef BRRR_EMULATED
      ask({[](const Asked& p) {
             const Tile<T, D, kLeft> a{static_cast<T*>(const_cast<void*>(p.a))};
             const Tile<T, D, kRows> b{static_cast<T*>(const_cast<void*>(p.b))};
             if (p.keep == 0)
               for (int i = 0; i < kRows / 2; ++i) p.c[i] = 0.0f;
             const int first = p.row + static_cast<int>(threadIdx.x % 128 / 32 * 16);
             add_plain<kRows / 8>(
                 p.c,
                 [&](int r, int term) {
                   return widen(a.at(first + r, (p.k + term) / 8)[(p.k + term) % 8]);
                 },
                 [&](int term, int n) { return b.at(n, (p.k + term) / 8)[(p.k + term) % 8]; });
           },
           c[0], left.base, tile.base, row, k, k, 0});
#else
      SharedProduct<Is16<T>::kBf16, kRows / 8>::add(c, along_rows(left, row, k),
                                                    along_rows(tile, 0, k), k);
#endif
    }
  }
#ifndef BRRR_EMULATED
  /// Rows from `row` (a multiple of 8) on, terms from k on. Terms lie inside a panel: the unit
  /// applies the exchange to the address that comes out.
  template <typename T, int D, int kRows>
  BRRR_METHOD u64 along_rows(const Tile<T, D, kRows>& tile, int row, int k) {
    return tile_descriptor(tile.base + (k / 64 * kRows + row) * 64 + k % 64, 16);
  }
#endif
};
