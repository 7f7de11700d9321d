// Products of tiles: operands in panels, rows that end in zeros, sums made on the way, and the ways
// to lay out the work, none of which changes a bit.

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/memory_tiles.h"
#include "backend/cpu/products/tile_layout.h"
#include "backend/cpu/rows/reduction_rows.h"
#include "backend/gemm_paths.h"
#include "base/integers.h"
#include "base/panels.h"
#include "base/rng.h"
#include "base/threads/thread_team.h"

namespace brrr::cpu {
namespace {

class GemmTiles : public GemmPaths {};
INSTANTIATE_TEST_SUITE_P(All, GemmTiles, testing::ValuesIn(paths()),
                         [](const auto& test) { return test.param.name; });

std::vector<uint16_t> random_bf16(RngStream& random, int64_t count) {
  std::vector<uint16_t> numbers(static_cast<size_t>(count));
  for (uint16_t& x : numbers) {
    const float value = 2 * random.next_uniform() - 1;
    x = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  return numbers;
}
GemmArgs bf16_product(int64_t m, int64_t n, int64_t k, const std::vector<uint16_t>& a, int64_t lda,
                      const std::vector<uint16_t>& b, std::vector<float>& c) {
  GemmArgs g{.m = m, .n = n, .k = k, .dtype = DType::bf16, .a = a.data(), .lda = lda};
  g.b = b.data();
  g.ldb = n;
  g.c = c.data();
  g.ldc = n;
  return g;
}

/// A right operand in panels gives the bits of the same one as it lies: one row, few rows, many;
/// where the panels are not aligned, and where the last one has more room than columns.
TEST_P(GemmTiles, APanelIsTheMatrix) {
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {64, 32}, {160, 96}, {1056, 640}, {2336, 64},      {32, 4640},
      {64, 1},  {96, 117}, {32, 4650},  {8192 + 96, 40}, {800, 81}};
  for (const auto& [k, n] : some(sizes, 4))
    for (const int64_t m : {1, 5, 40, 130}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
      RngStream random({7, 9}, 3);
      const std::vector<uint16_t> a = random_bf16(random, m * k), b = random_bf16(random, k * n);
      // What no column lies in may be anything, NaN too.
      std::vector<uint16_t> room(static_cast<size_t>(panel_elements(k, n)) + 64, 0x7fff);
      auto* const aligned =
          room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64 / 2;
      std::vector<float> plain(static_cast<size_t>(m * n), -1), panels = plain;
      GemmArgs g = bf16_product(m, n, k, a, k, b, plain);
      path().run({g, 1, 0, 0, 0});
      for (const int64_t shift : {0, 8}) {
        for (int64_t i = 0; i < k; ++i)
          for (int64_t j = 0; j < n; ++j)
            aligned[shift + place_in_panels(i, j, k)] = b[static_cast<size_t>(i * n + j)];
        g.b = aligned + shift;
        g.panels = true;
        g.c = panels.data();
        path().run({g, 1, 0, 0, 0});
        EXPECT_EQ(panels, plain) << "shifted by " << shift;
      }
    }
}

/// A row of C has the same bits for every m. A is allocated with exactly m rows, so
/// AddressSanitizer finds reads beyond the last one, and marks in C show writes beyond it.
TEST_P(GemmTiles, EveryNumberOfRows) {
  constexpr int64_t kRows = 35, kTerms = 1600, kColumns = 100;
  RngStream random({7, 9}, 5);
  const std::vector<uint16_t> a = random_bf16(random, kRows * kTerms),
                              b = random_bf16(random, kTerms * kColumns);
  std::vector<uint16_t> room(static_cast<size_t>(panel_elements(kTerms, kColumns)) + 32, 0);
  auto* const aligned = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64 / 2;
  for (int64_t i = 0; i < kTerms; ++i)
    for (int64_t j = 0; j < kColumns; ++j)
      aligned[place_in_panels(i, j, kTerms)] = b[static_cast<size_t>(i * kColumns + j)];
  std::vector<float> whole(kRows * kColumns), part;
  path().run({bf16_product(kRows, kColumns, kTerms, a, kTerms, b, whole), 1, 0, 0, 0});
  for (const bool panels : {false, true})
    for (int64_t m = 1; m < kRows; ++m) {
      part.assign(whole.size(), -1);
      const std::vector<uint16_t> rows(a.begin(), a.begin() + m * kTerms);
      GemmArgs g = bf16_product(m, kColumns, kTerms, rows, kTerms, b, part);
      if (panels) g.b = aligned, g.panels = true;
      path().run({g, 1, 0, 0, 0});
      const auto end = part.begin() + m * kColumns;
      EXPECT_TRUE(std::equal(part.begin(), end, whole.begin())) << m << " rows, " << panels;
      EXPECT_EQ(std::count(end, part.end(), -1.0f), part.end() - end) << m << " rows, " << panels;
    }
}

/// The same of f32, which has no padding of terms.
TEST_P(GemmTiles, AnF32PanelIsTheMatrix) {
  if (!path().name.starts_with("vector")) GTEST_SKIP() << "tiles of 16 bits";
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{64, 32},   {1, 1},     {33, 117},
                                                          {835, 640}, {2336, 65}, {32, 4650}};
  const std::vector<int64_t> rows = {1, 330, 5, 16, 40};
  for (const auto& [k, n] : some(sizes, 4))
    for (const int64_t m : test::sampled_if_sanitized(rows, 3, "rows")) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
      RngStream random({7, 9}, 3);
      const auto draw = [&](int64_t count) {
        std::vector<float> numbers(static_cast<size_t>(count));
        for (float& x : numbers) x = 2 * random.next_uniform() - 1;
        return numbers;
      };
      const std::vector<float> a = draw(m * k), b = draw(k * n), bias = draw(n);
      std::vector<float> plain(static_cast<size_t>(m * n), -1), in_panels = plain;
      GemmArgs g{.m = m, .n = n, .k = k, .a = a.data(), .lda = k, .b = b.data(), .ldb = n};
      g.bias = bias.data();
      g.c = plain.data();
      g.ldc = n;
      path().run({g, 1, 0, 0, 0});
      // What no column lies in may be anything.
      std::vector<float> panels(static_cast<size_t>(f32_panel_elements(k, n)), NAN);
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < n; ++j)
          panels[static_cast<size_t>(place_in_f32_panels(i, j, k))] =
              b[static_cast<size_t>(i * n + j)];
      g.b = panels.data();
      g.panels = true;
      g.c = in_panels.data();
      path().run({g, 1, 0, 0, 0});
      EXPECT_EQ(in_panels, plain);
    }
}

/// Rows that go on with zeros, behind which lie no numbers: with terms in one chunk and in several.
TEST_P(GemmTiles, RowsMayEndInZeros) {
  for (const int64_t k : {int64_t{1}, int64_t{33}, int64_t{800}, int64_t{8192 + 33}})
    for (const int64_t m : {1, 16, 48, 50}) {
      SCOPED_TRACE(fmt::format("{} x {}", m, k));
      const int64_t n = 40, end = round_up(k, 32), ld = end + 8;
      RngStream random({3, 5}, 1);
      std::vector<uint16_t> a = random_bf16(random, m * ld);
      const std::vector<uint16_t> b = random_bf16(random, k * n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = k; j < ld; ++j) a[static_cast<size_t>(i * ld + j)] = j < end ? 0 : 0x7fff;
      std::vector<float> plain(static_cast<size_t>(m * n), -1), in_place = plain;
      GemmArgs g = bf16_product(m, n, k, a, ld, b, plain);
      path().run({g, 1, 0, 0, 0});
      g.a_ends_in_zeros = true;
      g.c = in_place.data();
      path().run({g, 1, 0, 0, 0});
      EXPECT_EQ(in_place, plain);
    }
}

/// Zero-padding the k dimension of a product up to a whole tile does not change its bits.
TEST_P(GemmTiles, TermsOfAPartlyFilledTile) {
  for (const int64_t k : {2, 3, 16, 18, 50, 790})
    for (const int64_t m : {16, 40}) {
      SCOPED_TRACE(fmt::format("{} x {}", m, k));
      const int64_t n = 70, end = round_up(k, 32);
      RngStream random({3, 5}, 2);
      const std::vector<uint16_t> a = random_bf16(random, m * k), b = random_bf16(random, k * n);
      std::vector<uint16_t> longer_a(static_cast<size_t>(m * end)), longer_b = b;
      longer_b.resize(static_cast<size_t>(end * n));
      for (int64_t i = 0; i < m; ++i) std::copy_n(a.begin() + i * k, k, longer_a.begin() + i * end);
      std::vector<float> c(static_cast<size_t>(m * n), -1), longer_c = c;
      path().run({bf16_product(m, n, k, a, k, b, c), 1, 0, 0, 0});
      path().run({bf16_product(m, n, end, longer_a, end, longer_b, longer_c), 1, 0, 0, 0});
      EXPECT_EQ(c, longer_c);
    }
}

/// A product with few rows or columns has the bits of those rows or columns of a larger product:
/// for every layout of the narrow operand, odd numbers of terms, partly filled strips, a bias, C in
/// 16 bits, and sums added to an f32 C.
TEST_P(GemmTiles, ANarrowProductIsAPartOfALargerOne) {
  if (path().name.starts_with("vector")) GTEST_SKIP() << "tiles of bf16 alone";
  const auto turned = [](const std::vector<uint16_t>& x, int64_t rows, int64_t cols) {
    std::vector<uint16_t> out(x.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        out[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * cols + j)];
    return out;
  };
  constexpr int64_t kLanes = 40, kWide = 301;
  for (const int64_t k : some(std::vector<int64_t>{1, 63, 130, 2051}, 2))
    for (const bool by_rows : {true, false}) {
      RngStream random({3, 7}, static_cast<uint32_t>(k));
      const int64_t m = by_rows ? kLanes : kWide, n = by_rows ? kWide : kLanes;
      const std::vector<uint16_t> a = random_bf16(random, m * k), b = random_bf16(random, k * n);
      const std::vector<uint16_t> turned_a = turned(a, m, k), turned_b = turned(b, k, n);
      std::vector<float> bias(static_cast<size_t>(n));
      for (float& x : bias) x = random.next_uniform();
      const auto product = [&](int64_t lanes, bool turns, DType dtype) {
        GemmArgs g{
            .m = by_rows ? lanes : m, .n = by_rows ? n : lanes, .k = k, .dtype = DType::bf16};
        g.trans_a = by_rows ? turns : true;
        g.a = (g.trans_a ? turned_a : a).data();
        g.lda = g.trans_a ? m : k;
        g.trans_b = by_rows ? false : turns;
        g.b = (g.trans_b ? turned_b : b).data();
        g.ldb = g.trans_b ? k : n;
        g.alpha = 0.5f;
        g.bias = bias.data();
        g.c_dtype = dtype;
        g.ldc = g.n + 3;
        std::vector<uint8_t> c(static_cast<size_t>(g.m * g.ldc) * bytes_of(dtype), 0xff);
        g.c = c.data();
        if (dtype == DType::f32) {
          g.beta = 1;
          for (int64_t i = 0; i < g.m; ++i)
            for (int64_t j = 0; j < g.n; ++j)
              reinterpret_cast<float*>(c.data())[i * g.ldc + j] =
                  0.25f * static_cast<float>(i) - static_cast<float>(j);
        }
        path().run({g, 1, 0, 0, 0});
        std::vector<uint8_t> values;
        for (int64_t i = 0; i < (by_rows ? lanes : m); ++i) {
          const auto row = c.begin() + i * g.ldc * static_cast<int64_t>(bytes_of(dtype));
          values.insert(values.end(), row, row + g.n * static_cast<int64_t>(bytes_of(dtype)));
          EXPECT_EQ(row[g.n * static_cast<int64_t>(bytes_of(dtype))], 0xff) << "beyond the row";
        }
        return values;
      };
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::vector<uint8_t> whole = product(kLanes, false, dtype);
        const auto size = static_cast<int64_t>(bytes_of(dtype));
        for (const int64_t lanes : {1, 9, 16})
          for (const bool turns : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {} of {} terms, {}", lanes, by_rows ? "rows" : "columns",
                                     k, turns ? "turned" : "plain"));
            std::vector<uint8_t> part;
            for (int64_t i = 0; i < (by_rows ? lanes : m); ++i) {
              const auto row = whole.begin() + i * n * size;
              part.insert(part.end(), row, row + (by_rows ? n : lanes) * size);
            }
            EXPECT_EQ(product(lanes, turns, dtype), part);
          }
      }
    }
}

/// Sums over the terms of an operand while it is packed are those of reduction_rows(), and the
/// product is what it is without them.
TEST_P(GemmTiles, OperandsAreSummedWhileTheyArePacked) {
  if (path().name.starts_with("vector")) GTEST_SKIP() << "tiles of bf16 alone";
  struct Sizes {
    int64_t m, n, k;
  };
  for (const Sizes& s : some(std::vector<Sizes>{{1, 1, 1},
                                                {1, 33, 70},
                                                {1030, 40, 8200},
                                                {70, 31, 2050},
                                                {130, 1100, 129},
                                                {96, 70, 9001},
                                                {40, 530, 300}},
                             3))
    for (const bool of_a : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {}", s.m, s.n, s.k, of_a ? "a" : "b"));
      RngStream random({7, 9}, 3);
      const auto draw = [&](int64_t count) {
        std::vector<uint16_t> numbers(static_cast<size_t>(count));
        for (uint16_t& x : numbers)
          x = static_cast<uint16_t>(std::bit_cast<uint32_t>(2 * random.next_uniform() - 1) >> 16);
        return numbers;
      };
      const int64_t lda = s.m + 3, ldb = s.n + 5, lanes = of_a ? s.m : s.n;
      const std::vector<uint16_t> a = draw(s.k * lda), b = draw(s.k * ldb);
      GemmArgs g{.m = s.m, .n = s.n, .k = s.k, .dtype = DType::bf16, .a = a.data(), .lda = lda};
      g.trans_a = true;
      g.b = b.data();
      g.ldb = ldb;
      g.ldc = s.n;
      std::vector<float> plain(static_cast<size_t>(s.m * s.n), -1);
      g.c = plain.data();
      path().run({g, 1, 0, 0, 0});
      for (const int64_t terms : some(std::vector<int64_t>{8, 40, 512}, 2)) {
        const int64_t chunks = (s.k + terms - 1) / terms;
        std::vector<float> wanted(static_cast<size_t>(chunks * lanes), -1), got = wanted, c = plain;
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
          reduction_rows(Fold::kSum, DType::bf16)
              .columns((of_a ? a : b).data() + chunk * terms * (of_a ? lda : ldb),
                       std::min(terms, s.k - chunk * terms), of_a ? lda : ldb,
                       wanted.data() + chunk * lanes, lanes, false);
        g.sums = {got.data(), lanes, terms, of_a};
        g.c = c.data();
        for (const int threads : some(std::vector<int>{1, 2, 3}, 2)) {
          set_thread_count(threads);
          std::fill(got.begin(), got.end(), -1.0f);
          std::fill(c.begin(), c.end(), -1.0f);
          path().run({g, 1, 0, 0, 0});
          EXPECT_EQ(got, wanted) << "chunks of " << terms << ", threads " << threads;
          EXPECT_EQ(c, plain);
        }
      }
    }
}

/// What the layouts of the next tests are made for.
struct Sizes {
  int64_t m, n, k;
  bool trans_a = false, panels = false;
};
constexpr Sizes kSizes[] = {{320, 160, 96, false, true},
                            {48, 600, 1000, false, true},
                            {200, 330, 300, true},
                            {600, 64, 520, true},
                            {304, 496, 8200, true},
                            {528, 176, 8200, true},
                            {90, 700, 520}};
/// Long sums take too long, emulated, for more than the cache in which tasks pack them too.
std::vector<int64_t> caches(const Sizes& s) {
  if (s.k > kChunkK) return {int64_t{2} << 20};
  return {int64_t{8} << 10, int64_t{128} << 10, int64_t{2} << 20};
}

/// In memory of exactly their size; of B in panels, or as it lies.
struct TileOperands {
  std::vector<uint16_t> a, b, room;
  std::vector<float> c;
  GemmArgs g;

  explicit TileOperands(const Sizes& s) {
    RngStream random({7, 9}, 3);
    a = random_bf16(random, s.m * s.k);
    b = random_bf16(random, s.k * s.n);
    c.resize(static_cast<size_t>(s.m * s.n));
    g = bf16_product(s.m, s.n, s.k, a, s.trans_a ? s.m : s.k, b, c);
    g.trans_a = s.trans_a;
    if (!s.panels || s.k % 32 != 0) return;
    room.assign(static_cast<size_t>(panel_elements(s.k, s.n)) + 64, 0x7fff);
    uint16_t* to = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64 / 2;
    for (int64_t i = 0; i < s.k; ++i)
      for (int64_t j = 0; j < s.n; ++j)
        to[place_in_panels(i, j, s.k)] = b[static_cast<size_t>(i * s.n + j)];
    g.b = to;
    g.panels = true;
  }
};

class AssumedL2 {
 public:
  explicit AssumedL2(int64_t bytes) { assume_l2(bytes); }
  ~AssumedL2() { assume_l2(0); }
  AssumedL2(const AssumedL2&) = delete;
  AssumedL2& operator=(const AssumedL2&) = delete;
};

/// Whoever packs the operands, in whatever tasks and order, for any cache and team.
TEST_P(GemmTiles, NoLayoutChangesABit) {
  if (path().name.starts_with("vector")) GTEST_SKIP() << "tiles alone";
  for (const Sizes& s : some(std::vector<Sizes>(std::begin(kSizes), std::end(kSizes)), 3)) {
    TileOperands o(s);
    const int64_t terms = 264, chunks = ceil_div(s.k, terms);
    std::vector<float> first, first_sums;
    for (const int64_t l2 : some(caches(s), 2))
      for (const int threads : some(std::vector<int>{5, 1, 2}, 2)) {
        SCOPED_TRACE(fmt::format("{} x {} x {}, L2 {}, {} threads", s.m, s.n, s.k, l2, threads));
        const AssumedL2 assumed(l2);
        set_thread_count(threads);
        std::vector<float> sums(static_cast<size_t>(chunks * s.n), -1);
        if (s.trans_a) o.g.sums = {sums.data(), s.n, terms, false};
        std::fill(o.c.begin(), o.c.end(), -1.0f);
        path().run({o.g, 1, 0, 0, 0});
        if (first.empty()) first = o.c, first_sums = sums;
        EXPECT_EQ(o.c, first);
        EXPECT_EQ(sums, first_sums);
      }
  }
}

/// "A in place, B by the team, panel by panel": the layouts that the test before went through.
TEST(TileLayouts, AreAllTested) {
  constexpr TileRate kRates[] = {kAmxRate, kStripRate};
  std::set<std::string> seen;
  for (const TileRate& rate : kRates)
    for (const Sizes& s : kSizes)
      for (const int64_t l2 : caches(s))
        for (const int64_t threads : {1, 2, 5}) {
          const AssumedL2 assumed(l2);
          const TileLayout layout = lay_out_tiles(TileOperands(s).g, rate, threads);
          const auto name = [](TilesFrom source) {
            return source == TilesFrom::kInPlace ? "in place"
                   : source == TilesFrom::kTeam  ? "by the team"
                                                 : "by the task";
          };
          seen.insert(fmt::format("A {}, B {}, {}", name(layout.a), name(layout.b),
                                  layout.k < s.k         ? "in chunks of terms"
                                  : layout.task.by_panel ? "panel by panel"
                                                         : "block by block"));
        }
  for (const char* layout :
       {"A in place, B in place, panel by panel", "A in place, B in place, block by block",
        "A by the team, B by the team, panel by panel",
        "A by the team, B by the task, block by block",
        "A by the team, B by the task, panel by panel",
        "A by the task, B by the team, block by block",
        "A by the team, B by the team, in chunks of terms",
        "A by the team, B by the task, in chunks of terms",
        "A by the task, B by the team, in chunks of terms"})
    EXPECT_TRUE(seen.contains(layout)) << layout;
}

/// What a layout takes has room in the memory that there is for it.
TEST(TileLayouts, HaveRoom) {
  RngStream random({5, 1}, 0);
  const auto pick = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random.next_below(static_cast<uint32_t>(most)));
  };
  for (int i = 0; i < 3000; ++i) {
    const int64_t scale = i % 3 == 0 ? 300 : i % 3 == 1 ? 5000 : 60000;
    const AssumedL2 assumed(int64_t{8} << (10 + pick(10)));
    GemmArgs g{.m = pick(scale), .n = pick(scale), .k = pick(scale), .dtype = DType::bf16};
    g.trans_a = i % 2 == 0;
    g.lda = g.trans_a ? g.m : g.k;
    g.panels = i % 5 == 0;
    if (g.panels) g.k = round_up(g.k, 32);
    const TileRate rate = i % 7 < 4 ? kAmxRate : kStripRate;
    const int64_t team = pick(64);
    const TileLayout layout = lay_out_tiles(g, rate, team);
    SCOPED_TRACE(fmt::format("{} x {} x {}, team {}", g.m, g.n, g.k, team));
    ASSERT_GT(layout.task.rows, 0);
    ASSERT_EQ(layout.rows % 32 + layout.cols % 32 + layout.task.rows % 32 + layout.task.cols % 32,
              0);
    GemmArgs chunk = g;
    chunk.k = std::min(g.k, layout.k);
    if (layout.a == TilesFrom::kTeam) {
      EXPECT_LE(std::min(layout.rows, round_up(g.m, 32)) * lane_words(chunk), kTeamWords);
    }
    if (layout.b == TilesFrom::kTeam) {
      EXPECT_LE(std::min(layout.cols, round_up(g.n, 32)) * lane_words(chunk), kTeamWords);
    }
    if (layout.k < g.k) {
      EXPECT_LE(layout.rows * layout.cols, kChunkSums);
      EXPECT_FALSE(layout.task.by_panel);
    }
    for (const int64_t rows : {std::min(layout.rows, g.m), (g.m - 1) % layout.rows + 1})
      for (const int64_t cols : {std::min(layout.cols, g.n), (g.n - 1) % layout.cols + 1}) {
        const TaskSize task = choose_task(g, layout, rows, cols, team);
        ASSERT_GT(task.rows, 0);
        EXPECT_LE(task.rows * (task.by_panel ? 64 : task.cols), kTaskSums);
        if (layout.a == TilesFrom::kTask) {
          EXPECT_GE(task.cols, cols) << "A is packed by one task alone";
          EXPECT_LE(task_b_words(rate) + 2 * rate.block_tiles * task.rows * 32, kTaskWords);
        }
        if (layout.b == TilesFrom::kTask) {
          EXPECT_GE(task.rows, rows) << "B is packed by one task alone";
        }
      }
  }
}

}  // namespace
}  // namespace brrr::cpu
