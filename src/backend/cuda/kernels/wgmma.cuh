// Four warps' matrix unit, from sm_90a on: products of 64 x 16 by 16 x N that read the right
// operand from shared memory (PTX ISA, "Asynchronous warpgroup level matrix instructions"). The
// left operand and the sums are in registers, laid out as `multiply` has them, warp by warp.

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
// registers: the names of the sums; next: of what follows them, five
#define BRRR_WGMMA(shape, type, registers, next, transposed, sums)                           \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." shape     \
               ".f32." type "." type " {" registers "}, " next ", p, 1, 1, " transposed ";}" \
               : sums                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define BRRR_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BRRR_NEXT_16 "{%16, %17, %18, %19}, %20"
#define BRRR_NAMES_32                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BRRR_NEXT_32 "{%32, %33, %34, %35}, %36"
#define BRRR_NAMES_64                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BRRR_NEXT_64 "{%64, %65, %66, %67}, %68"

template <bool kBf16, bool kTransposed, int C>
struct GroupProduct;
#define BRRR_GROUP_PRODUCT(bf16_, type, transposed_, flag, chunks, shape, n)               \
  template <>                                                                              \
  struct GroupProduct<bf16_, transposed_, chunks> {                                        \
    BRRR_METHOD void add(float (&c)[chunks][4], const u32 (&a)[4], u64 b) {                \
      BRRR_WGMMA(shape, type, BRRR_NAMES_##n, BRRR_NEXT_##n, flag, BRRR_SUMS_##chunks(0)); \
    }                                                                                      \
  };
#define BRRR_GROUP_PRODUCTS(bf16_, type)                            \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 4, "m64n32k16", 16)   \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 8, "m64n64k16", 32)   \
  BRRR_GROUP_PRODUCT(bf16_, type, false, "0", 16, "m64n128k16", 64) \
  BRRR_GROUP_PRODUCT(bf16_, type, true, "1", 8, "m64n64k16", 32)    \
  BRRR_GROUP_PRODUCT(bf16_, type, true, "1", 16, "m64n128k16", 64)
BRRR_GROUP_PRODUCTS(true, "bf16")
BRRR_GROUP_PRODUCTS(false, "f16")
#else
/// c += a b for one warp, element by element; `element(k, column)` is one of b.
template <typename T, int C, typename Element>
BRRR_DEVICE void add_plain(float (&c)[C][4], const u32 (&a)[4], const Element& element) {
  const unsigned char* all = emulated_context->exchange(a, 16);
  const int g = BRRR_LANE / 4, t = BRRR_LANE % 4;
  for (int k = 0; k < 16; ++k) {
    const float x[2] = {term_of<T>(all, 4 * g, k / 8 * 2, k),
                        term_of<T>(all, 4 * g, k / 8 * 2 + 1, k)};
    for (int i = 0; i < 4 * C; ++i)
      c[i / 4][i % 4] += x[i % 4 / 2] * widen(element(k, i / 4 * 8 + 2 * t + i % 2));
  }
}
#endif

struct ByGroups {
  enum { kRows = 128, kThreads = 256 };
  // Products between begin() and end() read their registers when they please.
  enum { kAtOnce = true };
  template <typename... Registers>
  BRRR_METHOD void begin(Registers&... registers) {
    (pin(registers), ...);
#ifndef BRRR_EMULATED
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  template <typename... Registers>
  BRRR_METHOD void end(Registers&... registers) {
#ifndef BRRR_EMULATED
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
#endif
    (pin(registers), ...);
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
                              const Tile<T, D, kRows>& tile, int k) {
#ifdef BRRR_EMULATED
    add_plain<T>(c, a, [&](int term, int n) { return tile.at(n, (k + term) / 8)[(k + term) % 8]; });
#else
    // Terms inside a panel: the unit applies the exchange to the address that comes out.
    const T* from = tile.base + k / 64 * kRows * 64 + k % 64;
    GroupProduct<Is16<T>::kBf16, false, kRows / 8>::add(c, a, tile_descriptor(from, 16));
#endif
  }
  template <typename T, int D, int kRows>
  BRRR_METHOD void by_rows(float (&c)[D / 8][4], const u32 (&a)[4], const Tile<T, D, kRows>& tile,
                           int k) {
#ifdef BRRR_EMULATED
    add_plain<T>(c, a, [&](int term, int n) { return tile.at(k + term, n / 8)[n % 8]; });
#else
    GroupProduct<Is16<T>::kBf16, true, D / 8>::add(
        c, a, tile_descriptor(tile.base + k * 64, kRows * 128));
#endif
  }
};
