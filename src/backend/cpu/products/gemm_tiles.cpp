// The paths of gemm() that multiply tiles (amx_tiles.h): by AMX, bf16 operands with f32 sums and
// int8 operands with int32 sums; by vectors (register_tiles.h), bf16 by avx512_bf16 and int8 by
// avx512_vnni; with tiles in memory (memory_tiles.h), int8 everywhere else.
//
// How the work is laid out. An operand whose memory is already in the order of tiles is read where
// it lies: rows of A, panels of B (base/panels.h). Otherwise it is packed into tiles, in panels of
// 32 rows (or columns), each a run of pairs of tiles, one tile's terms (32 of bf16, 64 of int8)
// after the other: once by the team, into shared memory, or, where only one task reads it and that
// is estimated to be faster, by the task. A task is a block of rows x columns of C (tile_task.h).
// If the terms of its rows have room in L2, it completes one panel of columns after the other, else
// it goes through the terms of all of them in blocks, and the sums (f32 blocks of 32 x 32) wait in
// L2.
//
// Operands beyond the packing memory are cut into chunks of rows, columns and, if k is very large,
// terms. No cut changes any bit: a sum is carried in f32 and grows by 32 terms at a time, in order.

#include <algorithm>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/products/flush_denormals.h"
#include "backend/cpu/products/gemm_amx_kernels.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_int8.h"
#include "backend/cpu/products/memory_tiles.h"
#include "backend/cpu/products/register_tiles.h"
#include "backend/cpu/products/tile_product.h"
#include "base/threads/parallel.h"
#include "base/threads/thread_local.h"

namespace brrr::cpu {
namespace {

using tile_packing::kPanel, tile_packing::Operand, tile_packing::TermSums, tile_packing::tile_terms;
constexpr int64_t kRowCols = 1024;  // columns of a task of a single row
constexpr int64_t kTeamBytes = 2 * kTeamWords * 2 + kChunkSums * 4;
constexpr int64_t kOwnBytes = kTaskSums * 4 + kTaskWords * 2;

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

/// Columns of a task of a single row.
int64_t row_columns(const GemmArgs& g, int64_t team) {
  return std::min(kRowCols, round_up(ceil_div(g.n, team), 32));
}

void run_rows(const GemmBatch& all, int64_t team, RowSums rule) {
  const GemmArgs& args = all.args;
  const int64_t most = row_columns(args, team);
  const int64_t tasks = ceil_div(args.n, most);
  parallel_pieces(tasks * all.batch, team, [&](int64_t task, int) {
    const int64_t index = task / tasks, j0 = task % tasks * most;
    const GemmArgs g = all.product(index);
    const int64_t cols = std::min(most, g.n - j0);
    float* sums = own_sums();
    multiply_row(g, rule, j0, cols, sums);
    tile_task::finish_sums(g, index, 0, j0, 1, cols, sums, most);
#if defined(__SSE2__)
    if (g.epilogue.run != nullptr) _mm_sfence();  // it may store around the caches
#endif
  });
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

template <class Tiles>
void run(const GemmBatch& all, RowSums rule) {
  const GemmArgs& g = all.args;
  const int64_t team = team_of(g, all.batch);
  if (is_row(g)) {
    if (g.sums.partials != nullptr) sum_operand(g);
    return run_rows(all, team, rule);
  }
  multiply_tiles<Tiles>(all, team);
}

/// Products by tile registers, real or not.
template <class Tiles>
struct ByTiles : Tiles {
  static constexpr int64_t kBlockTiles = 8;
  static constexpr double kCycles = 16;
};
/// What dot() multiplies.
template <class Tiles>
struct Bf16Tiles : ByTiles<Tiles> {
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
  run<Bf16Tiles<Tiles>>(batch, RowSums::kAmx);
}

}  // namespace

TeamMemory team_memory() {
  BRRR_THREAD_LOCAL PackBuffer buffer(kTeamBytes);
  auto* a = reinterpret_cast<uint16_t*>(buffer.data());
  return {a, a + kTeamWords, reinterpret_cast<float*>(a + 2 * kTeamWords)};
}
float* own_sums() {
  BRRR_THREAD_LOCAL PackBuffer buffer(kOwnBytes);
  return buffer.data();
}

int64_t team_of(const GemmArgs& g, int64_t batch) {
  // Starting the team costs about as much as this many multiply-adds.
  constexpr double kSerial = 1 << 18;
  const double work = static_cast<double>(batch) * static_cast<double>(g.m) *
                      static_cast<double>(g.n) * static_cast<double>(g.k);
  return work < kSerial || thread_team::is_at_work() ? 1 : gemm_threads();
}

bool is_small(const GemmArgs& g, int64_t batch, int64_t team) {
  const int64_t words = (round_up(g.m, kPanel) + round_up(g.n, kPanel)) * lane_words(g);
  return words <= kTaskWords && (batch > 1 || team == 1);
}

void gemm_amx_emulated(const GemmBatch& batch) { run_amx<EmulatedTiles>(batch); }
void gemm_pairs_emulated(const GemmBatch& batch) {
  run<Bf16Tiles<MemoryTiles<EmulatedPairs>>>(batch, RowSums::kEmulatedPairs);
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
  const int64_t team = team_of(g, batch);
  if (is_row(g)) return {std::min(team, ceil_div(g.n, row_columns(g, team)) * batch)};
  if (is_small(g, batch, team)) return {std::min(team, batch)};
  const TileRate rate =
      strips ? TileRate{kStripBlockTiles, kStripCycles} : tile_rate<Bf16Tiles<EmulatedTiles>>();
  const TileLayout layout = lay_out_tiles(g, rate, team);
  const int64_t lane_bytes = ceil_div(std::min(layout.k, g.k), tile_terms(g.dtype)) * kTileRowBytes;
  const int64_t rows = round_up(std::min(layout.rows, g.m), kPanel),
                cols = round_up(std::min(layout.cols, g.n), kPanel);
  const int64_t tasks = ceil_div(std::min(layout.rows, g.m), layout.task.rows) *
                        ceil_div(std::min(layout.cols, g.n), layout.task.cols);
  return {std::min(team, tasks), layout.a == TilesFrom::kTeam ? rows * lane_bytes : 0,
          layout.b == TilesFrom::kTeam ? cols * lane_bytes : 0,
          layout.k < g.k ? rows * cols * 4 : 0};
}

int64_t gemm_tiles_workspace_bytes(const GemmTiles& tiles) {
  const auto touched = [](int64_t bytes, int64_t most) {
    return PackBuffer::rounded(std::min(bytes, most));
  };
  return touched(tiles.left, kTeamWords * 2) + touched(tiles.right, kTeamWords * 2) +
         touched(tiles.sums, kChunkSums * 4) + tiles.threads * PackBuffer::rounded(kOwnBytes);
}

}  // namespace brrr::cpu
