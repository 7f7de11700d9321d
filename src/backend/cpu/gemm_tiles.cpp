// The paths of gemm() that multiply tiles (amx_tiles.h): by AMX, bf16 operands with f32 sums and
// int8 operands with int32 sums; by vectors (register_tiles.h), bf16 by avx512_bf16 and int8 by
// avx512_vnni; with tiles in memory (memory_tiles.h), int8 everywhere else.
//
// How the work is laid out. Both operands are packed into tiles once, by the team, into shared
// memory: panels of 32 rows (or columns), each a run of pairs of tiles, one tile's terms (32 of
// bf16, 64 of int8) after the other. A task is a block of rows x columns of C; it goes through the
// terms in blocks of a few tiles, so that a panel of B (16 KB) stays in the L1 cache while all row
// panels of the block (in L2) pass by it. Sums wait in f32 blocks of 32 x 32 (4 KB in a row, L2)
// between blocks of terms. A complete block is turned into C some micro-kernels later, when its
// stores have settled and the tile unit is busy with others.
//
// Operands beyond the packing memory are cut into chunks of rows, columns and, if k is very large,
// terms. No cut changes any bit: a sum is carried in f32 and grows by 32 terms at a time, in order.

#include <algorithm>
#include <cstring>

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/gemm_amx_kernels.h"
#include "backend/cpu/gemm_blocks.h"
#include "backend/cpu/gemm_int8.h"
#include "backend/cpu/memory_tiles.h"
#include "backend/cpu/register_tiles.h"
#include "backend/cpu/tile_packing.h"
#include "base/parallel.h"
#include "ops/panels.h"

#if defined(__SSE2__)
#include <pmmintrin.h>
#include <xmmintrin.h>
#endif

namespace brrr::cpu {
namespace {

using tile_packing::kPanel, tile_packing::kTile, tile_packing::kTileWords;
using tile_packing::Operand, tile_packing::TermSums, tile_packing::pack_panels;
using tile_packing::pack_unit, tile_packing::pack_units, tile_packing::tile_terms;
constexpr int64_t kSumBlock = kPanel * kPanel;        // floats
constexpr int64_t kPacked = int64_t{4} << 20;         // words of a packed operand
constexpr int64_t kLongK = 8192;                      // beyond, terms are cut as well
constexpr int64_t kChunkK = 4096, kChunkSide = 1024;  // then
constexpr int64_t kTaskSums = int64_t{512} * 256;     // floats of a task
constexpr int64_t kRowCols = 1024;                    // columns of a task of a single row
constexpr int64_t kShared = 2 * kPacked * 2 + kChunkSide * kChunkSide * 4;  // bytes
constexpr int64_t kThinPacked = int64_t{1} << 18;  // words of B that a task packs
constexpr int64_t kSmall = int64_t{1} << 19;       // words packed by one thread

struct Shared {
  uint16_t *a, *b;  // packed operands
  float* sums;      // where terms are cut
};

/// Belongs to the thread that called gemm.
Shared shared_memory() {
  thread_local PackBuffer buffer(kShared);
  auto* a = reinterpret_cast<uint16_t*>(buffer.data());
  return {a, a + kPacked, reinterpret_cast<float*>(a + 2 * kPacked)};
}

/// One thread's memory: the sums of a task, the operands of a small product, the panels of B of a
/// task with few rows.
float* own_memory() {
  thread_local PackBuffer buffer(kTaskSums * 4 + kSmall * 2 + kThinPacked * 2);
  return buffer.data();
}

#if defined(__SSE2__)
/// Tiles take denormals as zero and give zero for them; vector code that must agree does, too.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};
#else
struct FlushDenormals {};
#endif

/// Words that a lane of k terms takes when packed.
int64_t lane_words(const GemmArgs& g) { return ceil_div(g.k, tile_terms(g.dtype)) * kTileWords; }

struct Chunks {
  int64_t rows, cols, k;  // of a chunk; k in terms, whole tiles unless it is all
};

Chunks choose_chunks(const GemmArgs& g) {
  const auto equal = [](int64_t n, int64_t most, int64_t unit) {
    return round_up(ceil_div(n, ceil_div(n, most)), unit);
  };
  if (g.k <= kLongK) {
    const int64_t most = kPacked / lane_words(g) / kPanel * kPanel;
    return {equal(g.m, most, kPanel), equal(g.n, most, kPanel), g.k};
  }
  return {equal(g.m, kChunkSide, kPanel), equal(g.n, kChunkSide, kPanel), kChunkK};
}

/// Rows and columns of a task: the least estimated time in cycles per 32 terms. A pair of tiles
/// takes 16 cycles; an operand comes from the L3 cache at about 8 bytes per cycle.
struct TaskSize {
  int64_t rows, cols;
};
TaskSize choose_task(int64_t rows, int64_t cols, int64_t threads) {
  TaskSize best{};
  double least = 0;
  for (const int64_t most_rows : {512, 384, 256, 192, 128, 64, 32}) {
    for (const int64_t most_cols : {512, 384, 256, 192, 128, 64, 32}) {
      if (most_rows * most_cols > kTaskSums) continue;
      const TaskSize t{round_up(ceil_div(rows, ceil_div(rows, most_rows)), kPanel),
                       round_up(ceil_div(cols, ceil_div(cols, most_cols)), kPanel)};
      if (t.rows * t.cols > kTaskSums) continue;
      const double turns =
          static_cast<double>(ceil_div(ceil_div(rows, t.rows) * ceil_div(cols, t.cols), threads)) +
          (threads > 1 ? 0.25 : 0.0);
      const double time = turns * (static_cast<double>(t.rows * t.cols) / 16 +
                                   8 * static_cast<double>(t.rows + t.cols));
      if (least == 0 || time < least) {
        least = time;
        best = t;
      }
    }
  }
  return best;
}

/// micro() by tile registers.
template <class Tiles, int kRows, int kCols>
void micro_by_tiles(Tiles& tiles, const uint16_t* a, const uint16_t* b, int64_t count,
                    const uint16_t* next, float* sums, bool first) {
  constexpr int64_t kStride = kPanel * 4, kDown = kTileRows * kPanel;
  if (first) {
    tiles.template zero<0>();
    if constexpr (kCols == 2) tiles.template zero<1>();
    if constexpr (kRows == 2) tiles.template zero<2>();
    if constexpr (kRows == 2 && kCols == 2) tiles.template zero<3>();
  } else {
    tiles.template load<0>(sums, kStride);
    if constexpr (kCols == 2) tiles.template load<1>(sums + 16, kStride);
    if constexpr (kRows == 2) tiles.template load<2>(sums + kDown, kStride);
    if constexpr (kRows == 2 && kCols == 2) tiles.template load<3>(sums + kDown + 16, kStride);
  }
  for (int64_t t = 0; t < count; ++t, a += 2 * kTile, b += 2 * kTile, next += 2 * kTile) {
    tiles.template load<4>(a, kTileRowBytes);
    tiles.template load<6>(b, kTileRowBytes);
    tiles.template dot<0, 4, 6>();
    // The next row panel comes from L2: fetch it while the tile unit works.
#pragma GCC unroll 32
    for (int line = 0; line < 16 * kRows; ++line) __builtin_prefetch(next + line * 32, 0, 3);
    if constexpr (kCols == 2) {
      tiles.template load<7>(b + kTile, kTileRowBytes);
      tiles.template dot<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      tiles.template load<5>(a + kTile, kTileRowBytes);
      tiles.template dot<2, 5, 6>();
    }
    if constexpr (kRows == 2 && kCols == 2) tiles.template dot<3, 5, 7>();
  }
  tiles.template store<0>(sums, kStride);
  if constexpr (kCols == 2) tiles.template store<1>(sums + 16, kStride);
  if constexpr (kRows == 2) tiles.template store<2>(sums + kDown, kStride);
  if constexpr (kRows == 2 && kCols == 2) tiles.template store<3>(sums + kDown + 16, kStride);
}

/// Where the rows of A lie, in words: in packed tiles, or as the caller has them.
struct LeftOrder {
  int64_t panel = 0;                       // from 32 rows to the next
  int64_t half = kTile, row = kTileWords;  // from 16 rows to the next, from one to the next
  int64_t tile = 2 * kTile;                // from 32 terms to the next
};
/// Strips read 8 rows of A side by side, so they need no tiles: bf16 rows of whole tiles are read
/// where they lie, unless all of them fall into one set of the L1 cache.
bool strips_read_in_place(const GemmArgs& g) {
  constexpr int64_t kSetsRepeat = 4096;  // bytes
  return g.dtype == DType::bf16 && !g.trans_a && g.m % kTileRows == 0 &&
         (g.k % kTileBf16 == 0 || g.a_ends_in_zeros) && g.lda * 2 % kSetsRepeat != 0;
}

/// sums (32 x 32, rows of 32) += `count` tiles of terms; kRows x kCols tiles of it exist.
template <class Tiles, int kRows, int kCols>
void micro(Tiles& tiles, const uint16_t* a, const LeftOrder& order, const uint16_t* b,
           int64_t count, const uint16_t* next, float* sums, bool first) {
  if constexpr (MultipliesStrips<Tiles>) {
    constexpr int64_t kTileBytes = 2 * kTile;
    for (int64_t row = 0; row < kRows * kTileRows; row += Tiles::kStripRows) {
      const uint16_t* left = a + row / kTileRows * order.half + row % kTileRows * order.row;
      Tiles::template strip<kCols>({reinterpret_cast<const uint8_t*>(left), 2 * order.row,
                                    2 * order.tile, reinterpret_cast<const uint8_t*>(b), kTileBytes,
                                    2 * kTileBytes, count, sums + row * kPanel, kPanel, !first});
    }
  } else {
    micro_by_tiles<Tiles, kRows, kCols>(tiles, a, b, count, next, sums, first);
  }
}

/// A C larger than this is not in a near cache when somebody reads it: writing it around the caches
/// saves reading each line first.
bool past_caches(const GemmArgs& g) {
  constexpr int64_t kNear = int64_t{8} << 20;
  return g.m * g.n * static_cast<int64_t>(bytes_of(g.c_dtype)) >= kNear;
}

/// Complete sums of rows from i and columns from j: scale, epilogue, store.
void finish_sums(const GemmArgs& g, int64_t index, int64_t i, int64_t j, int64_t rows, int64_t cols,
                 float* sums, int64_t ld) {
  if (g.alpha != 1.0f || g.bias != nullptr || g.beta != 0.0f) {
    amx_kernels().scale(
        sums, ld, rows, cols, g.alpha, g.bias != nullptr ? g.bias + j : nullptr,
        g.beta != 0.0f ? static_cast<const float*>(offset(g.c, g.c_dtype, i * g.ldc + j)) : nullptr,
        g.ldc);
  }
  finish_block(g, index, i, j, rows, cols, sums, ld, past_caches(g));
}

/// Rows from i0 and columns from j0 of product `index`.
struct Task {
  int64_t index, i0, j0, rows, cols;
  const uint16_t *a, *b;  // the panels of these rows and columns
  LeftOrder a_order;
  int64_t b_panel;     // words from one to the next
  int64_t tiles;       // of terms
  float* sums;         // blocks of 32 x 32, row panel by row panel ...
  int64_t sum_panels;  // ... of this many
  bool first, last;    // chunk of terms
};

template <class Tiles>
void multiply_block(Tiles& tiles, const Task& task, int64_t p, int64_t q, int64_t t0, int64_t count,
                    int64_t row_panels) {
  const LeftOrder& order = task.a_order;
  const uint16_t* a = task.a + p * order.panel + t0 * order.tile;
  const uint16_t* b = task.b + q * task.b_panel + t0 * 2 * kTile;
  const uint16_t* next = p + 1 < row_panels ? a + order.panel : task.a + t0 * order.tile;
  float* sums = task.sums + (p * task.sum_panels + q) * kSumBlock;
  const bool first = task.first && t0 == 0;
  const bool tall = task.rows - p * kPanel > kTileRows, wide = task.cols - q * kPanel > kTileRows;
  if (tall) {
    (wide ? micro<Tiles, 2, 2> : micro<Tiles, 2, 1>)(tiles, a, order, b, count, next, sums, first);
  } else {
    (wide ? micro<Tiles, 1, 2> : micro<Tiles, 1, 1>)(tiles, a, order, b, count, next, sums, first);
  }
}

template <class Tiles>
void run_task(const GemmArgs& g, const Task& task) {
  constexpr int64_t kStaysInL2 = int64_t{1} << 20, kBlockTiles = Tiles::kBlockTiles;
  Tiles tiles;
  const int64_t row_panels = ceil_div(task.rows, kPanel), col_panels = ceil_div(task.cols, kPanel);
  const int64_t blocks = ceil_div(task.tiles, kBlockTiles);
  // With all terms of the rows in L2, one column panel is completed after the other, and blocks of
  // the last one are finished one by one between the micro-kernels of the next.
  const bool by_panel = row_panels * task.tiles * 2 * kTile * 2 <= kStaysInL2;
  const int64_t group = by_panel ? 1 : col_panels, period = by_panel ? blocks : 1;
  int64_t complete = 0, finished = 0, steps = 0;  // blocks of C, in the order of their sums
  const auto finish_next = [&] {
    const int64_t p = finished % row_panels, q = finished / row_panels;
    finish_sums(g, task.index, task.i0 + p * kPanel, task.j0 + q * kPanel,
                std::min(kPanel, task.rows - p * kPanel), std::min(kPanel, task.cols - q * kPanel),
                task.sums + (p * task.sum_panels + q) * kSumBlock, kPanel);
    ++finished;
  };
  for (int64_t q0 = 0; q0 < col_panels; q0 += group) {
    for (int64_t t0 = 0; t0 < task.tiles; t0 += kBlockTiles) {
      const int64_t count = std::min(kBlockTiles, task.tiles - t0);
      const bool last = task.last && t0 + count == task.tiles;
      for (int64_t q = q0; q < q0 + group; ++q) {
        for (int64_t p = 0; p < row_panels; ++p) {
          multiply_block(tiles, task, p, q, t0, count, row_panels);
          if (finished < complete && ++steps % period == 0) finish_next();
          if (last) ++complete;
        }
      }
    }
  }
  while (finished < complete) finish_next();
#if defined(__SSE2__)
  _mm_sfence();  // stores around the caches are seen by whoever sees the end of the task
#endif
}

/// With few rows (decoding a batch), packing B is the work, and only one task reads each of its
/// columns: the task packs them for itself, a few panels at a time, and nothing leaves its caches.
bool is_thin(int64_t rows) { return rows <= 2 * kPanel; }
TaskSize thin_task(const Operand& b) {
  const int64_t panels = std::clamp<int64_t>(kThinPacked / b.panel_words(), 1, 4);
  return {2 * kPanel, panels * kPanel};
}
uint16_t* thin_panels() { return reinterpret_cast<uint16_t*>(own_memory() + kTaskSums) + kSmall; }

/// Where term k0 of column j0 lies, both multiples of 32, when B lies in panels: just as
/// pack_panels() makes them.
const uint16_t* panels_of(const GemmArgs& g, int64_t j0, int64_t k0) {
  static_assert(kPanel == kPanelColumns && kTileBf16 == kPanelTerms && kChunkK % kPanelTerms == 0);
  return static_cast<const uint16_t*>(g.b) + j0 * g.k + k0 * kPanelColumns;
}

/// One product by the calling team (all its threads are here) or, when `team` is 1, by this thread.
template <class Tiles>
void run_product(const GemmArgs& g, int64_t index, const Chunks& chunks, int64_t team,
                 const Shared& memory) {
  const void *packed_a = nullptr, *packed_b = nullptr;  // which chunk is packed
  const auto shared_out = [&](int64_t count, auto&& body) {
    if (team == 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
      return;
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) body(i);
  };
  const auto element = [&](const void* p, int64_t i) { return offset(p, g.dtype, i); };
  for (int64_t i0 = 0; i0 < g.m; i0 += chunks.rows) {
    for (int64_t j0 = 0; j0 < g.n; j0 += chunks.cols) {
      for (int64_t k0 = 0; k0 < g.k; k0 += chunks.k) {
        const int64_t terms = std::min(chunks.k, g.k - k0);
        const Operand a{g.dtype, element(g.a, g.trans_a ? k0 * g.lda + i0 : i0 * g.lda + k0),
                        g.lda,   g.trans_a,
                        false,   std::min(chunks.rows, g.m - i0),
                        terms};
        const Operand b{g.dtype,
                        element(g.b, g.trans_b ? j0 * g.ldb + k0 : k0 * g.ldb + j0),
                        g.ldb,
                        !g.trans_b && !g.panels,
                        true,
                        std::min(chunks.cols, g.n - j0),
                        terms,
                        g.panels ? panels_of(g, j0, k0) : nullptr,
                        kPanelColumns * g.k};
        // Read where it lies, but for its alignment.
        const bool in_place = g.panels && reinterpret_cast<uintptr_t>(g.b) % 64 == 0;
        // Each loop ends with a barrier: packed before it is read, read before it is overwritten.
        const bool left_in_place = MultipliesStrips<Tiles> && strips_read_in_place(g);
        const bool packs_a = !left_in_place && a.from != packed_a, thin = is_thin(a.lanes);
        const bool packs_b = !in_place && !thin && b.from != packed_b;
        // A chunk of an operand is summed when it is here for the first time.
        const bool has_sums = g.sums.partials != nullptr;
        const bool sums_a = has_sums && g.sums.of_a && j0 == 0;
        const bool sums_b = has_sums && !g.sums.of_a && i0 == 0;
        const TermSums sums_of_a(g, a, i0, k0), sums_of_b(g, b, j0, k0);
        const int64_t units_a = sums_a ? sums_of_a.units() : packs_a ? pack_units(a) : 0;
        const int64_t units_b = sums_b ? sums_of_b.units() : packs_b ? pack_units(b) : 0;
        const uint16_t* panels = in_place ? b.packed : memory.b;
        const int64_t b_panel = in_place ? b.packed_panel : b.panel_words();
        const uint16_t* rows = left_in_place ? static_cast<const uint16_t*>(a.from) : memory.a;
        LeftOrder order{a.panel_words()};
        if (left_in_place) order = {kPanel * a.ld, kTileRows * a.ld, a.ld, kTileBf16};
        packed_a = a.from;
        packed_b = b.from;
        shared_out(units_a + units_b, [&](int64_t unit) {
          if (unit < units_a) {
            if (sums_a)
              sums_of_a.run(unit, packs_a ? memory.a : nullptr);
            else
              pack_unit(a, unit, memory.a);
          } else if (sums_b) {
            sums_of_b.run(unit - units_a, packs_b ? memory.b : nullptr);
          } else {
            pack_unit(b, unit - units_a, memory.b);
          }
        });
        const TaskSize size = thin ? thin_task(b) : choose_task(a.lanes, b.lanes, team);
        const int64_t row_tasks = ceil_div(a.lanes, size.rows);
        const int64_t col_tasks = ceil_div(b.lanes, size.cols);
        shared_out(row_tasks * col_tasks, [&](int64_t which) {
          const int64_t i = which % row_tasks * size.rows, j = which / row_tasks * size.cols;
          Task task{index,
                    i0 + i,
                    j0 + j,
                    std::min(size.rows, a.lanes - i),
                    std::min(size.cols, b.lanes - j),
                    rows + i / kPanel * order.panel,
                    panels + j / kPanel * b_panel,
                    order,
                    b_panel,
                    a.tiles(),
                    own_memory(),
                    size.cols / kPanel,
                    k0 == 0,
                    k0 + terms == g.k};
          if (thin && !in_place) {
            uint16_t* own = thin_panels();
            pack_panels(b, j / kPanel, ceil_div(j + task.cols, kPanel), 0, b.tiles(), own);
            task.b = own;
          }
          if (terms < g.k) {  // sums outlive the task
            task.sum_panels = b.panels();
            task.sums = memory.sums + (i / kPanel * b.panels() + j / kPanel) * kSumBlock;
          }
          run_task<Tiles>(g, task);
        });
      }
    }
  }
}

/// m = 1: bound by reading B, which is read once where it lies.
void multiply_row(const GemmArgs& g, RowSums rule, int64_t j0, int64_t cols, float* sums) {
  // A transposed row is not contiguous unless it is the only one.
  const void* b =
      g.panels ? panels_of(g, j0, 0) : offset(g.b, g.dtype, g.trans_b ? j0 * g.ldb : j0);
  if (g.dtype == DType::i8) {
    return int8_kernels().row({static_cast<const int8_t*>(g.a), static_cast<const int8_t*>(b),
                               g.ldb, g.k, cols, g.trans_b, reinterpret_cast<int32_t*>(sums)});
  }
  const FlushDenormals flush;
  amx_kernels().row({rule, static_cast<const uint16_t*>(g.a), static_cast<const uint16_t*>(b),
                     g.ldb, g.k, cols, g.trans_b, g.panels, sums});
}

void run_rows(const GemmBatch& all, int64_t team, RowSums rule) {
  const GemmArgs& args = all.args;
  const int64_t most = std::min(kRowCols, round_up(ceil_div(args.n, team), 32));
  const int64_t tasks = ceil_div(args.n, most);
#pragma omp parallel num_threads(team) if (team > 1)
  {
    const WorkClock clock("share");
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < tasks * all.batch; ++task) {
      const int64_t index = task / tasks, j0 = task % tasks * most;
      const GemmArgs g = all.product(index);
      const int64_t cols = std::min(most, g.n - j0);
      float* sums = own_memory();
      multiply_row(g, rule, j0, cols, sums);
      finish_sums(g, index, 0, j0, 1, cols, sums, most);
#if defined(__SSE2__)
      if (g.epilogue.run != nullptr) _mm_sfence();  // it may store around the caches
#endif
    }
  }
}

/// The sums over the terms of an operand that is not packed.
void sum_operand(const GemmArgs& g) {
  const bool left = g.sums.of_a;
  const Operand o{g.dtype, left ? g.a : g.b, left ? g.lda : g.ldb, true, !left, left ? g.m : g.n,
                  g.k};
  const TermSums sums(g, o, 0, 0);
  for (int64_t unit = 0; unit < sums.units(); ++unit) sums.run(unit, nullptr);
}

/// A row of A, in whose product no tiles are packed.
bool is_row(const GemmArgs& g) { return g.m == 1 && (!g.trans_a || g.lda == 1); }

int64_t team_of(const GemmArgs& g, int64_t batch) {
  // Starting the team costs about as much as this many multiply-adds.
  constexpr double kSerial = 1 << 18;
  const double work = static_cast<double>(batch) * static_cast<double>(g.m) *
                      static_cast<double>(g.n) * static_cast<double>(g.k);
  return work < kSerial || omp_in_parallel() ? 1 : thread_count();
}

/// Products that fit one thread's memory: each is one thread's.
bool is_small(const GemmArgs& g, int64_t batch, int64_t team) {
  const int64_t words = (round_up(g.m, kPanel) + round_up(g.n, kPanel)) * lane_words(g);
  return words <= kSmall && g.k <= kLongK && (batch > 1 || team == 1);
}

template <class Tiles>
void run(const GemmBatch& all, RowSums rule) {
  const GemmArgs& g = all.args;
  const int64_t team = team_of(g, all.batch);
  if (is_row(g)) {
    if (g.sums.partials != nullptr) sum_operand(g);
    return run_rows(all, team, rule);
  }

  if (is_small(g, all.batch, team)) {
    const Chunks whole{round_up(g.m, kPanel), round_up(g.n, kPanel), g.k};
#pragma omp parallel num_threads(team) if (team > 1)
    {
      const WorkClock clock("share");
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < all.batch; ++i) {
        auto* a = reinterpret_cast<uint16_t*>(own_memory() + kTaskSums);
        run_product<Tiles>(all.product(i), i, whole, 1,
                           {a, a + whole.rows * lane_words(g), nullptr});
      }
    }
    return;
  }
  const Chunks chunks = choose_chunks(g);
  const Shared memory = shared_memory();
#pragma omp parallel num_threads(team) if (team > 1)
  {
    const WorkClock clock("share");
    for (int64_t i = 0; i < all.batch; ++i)
      run_product<Tiles>(all.product(i), i, chunks, team, memory);
  }
}

/// Products by tile registers, real or not.
template <class Tiles>
struct ByTiles : Tiles {
  static constexpr int64_t kBlockTiles = 8;
};
/// What dot() multiplies.
template <class Tiles>
struct Bf16 : ByTiles<Tiles> {
  template <int kSum, int kA, int kB>
  void dot() {
    this->template dot_bf16<kSum, kA, kB>();
  }
};
template <class Tiles>
struct Int8 : ByTiles<Tiles> {
  template <int kSum, int kA, int kB>
  void dot() {
    this->template dot_int8<kSum, kA, kB>();
  }
};

template <class Tiles>
void run_amx(const GemmBatch& batch) {
  if (batch.args.dtype == DType::i8) return run<Int8<Tiles>>(batch, {});
  run<Bf16<Tiles>>(batch, RowSums::kAmx);
}

}  // namespace

void gemm_amx_emulated(const GemmBatch& batch) { run_amx<EmulatedTiles>(batch); }
void gemm_pairs_emulated(const GemmBatch& batch) {
  run<Bf16<MemoryTiles<EmulatedPairs>>>(batch, RowSums::kEmulatedPairs);
}
void gemm_vnni_emulated(const GemmBatch& batch) {
  run<Int8<MemoryTiles<EmulatedVnniQuads>>>(batch, {});
}
void gemm_int8(const GemmBatch& batch) { run<Int8<MemoryTiles<WidenedQuads>>>(batch, {}); }

#if defined(__x86_64__)
void gemm_amx(const GemmBatch& batch) { run_amx<AmxTiles>(batch); }
void gemm_pairs(const GemmBatch& batch) {
  run<RegisterTiles<PairProducts>>(batch, RowSums::kPairs);
}
void gemm_vnni(const GemmBatch& batch) { run<RegisterTiles<QuadProducts>>(batch, {}); }
#else
void gemm_amx(const GemmBatch& batch) { gemm_amx_emulated(batch); }
void gemm_pairs(const GemmBatch& batch) { gemm_pairs_emulated(batch); }
void gemm_vnni(const GemmBatch& batch) { gemm_vnni_emulated(batch); }
#endif

GemmTiles gemm_tiles_packing(const GemmArgs& g, int64_t batch, bool strips) {
  if (is_row(g) || is_small(g, batch, team_of(g, batch))) return {true};
  const Chunks chunks = choose_chunks(g);
  const int64_t lane_bytes = ceil_div(std::min(chunks.k, g.k), tile_terms(g.dtype)) * kTileRowBytes;
  const int64_t rows = std::min(chunks.rows, g.m), cols = std::min(chunks.cols, g.n);
  return {true, strips && strips_read_in_place(g) ? 0 : round_up(rows, kPanel) * lane_bytes,
          is_thin(rows) || g.panels ? 0 : round_up(cols, kPanel) * lane_bytes,
          chunks.k < g.k ? round_up(rows, kPanel) * round_up(cols, kPanel) * 4 : 0};
}

int64_t gemm_tiles_workspace_bytes(const GemmTiles& tiles) {
  if (!tiles.any) return 0;
  const auto touched = [](int64_t bytes, int64_t most) {
    return PackBuffer::rounded(std::min(bytes, most));
  };
  return touched(tiles.left, kPacked * 2) + touched(tiles.right, kPacked * 2) +
         touched(tiles.sums, kChunkSide * kChunkSide * 4) +
         thread_count() * PackBuffer::rounded(kTaskSums * 4 + kSmall * 2 + kThinPacked * 2);
}

}  // namespace brrr::cpu
