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
// Products by VDPBF16PS with at most 16 rows or columns pack the narrow operand alone
// (NarrowProduct).
//
// Operands beyond the packing memory are cut into chunks of rows, columns and, if k is very large,
// terms. No cut changes any bit: a sum is carried in f32 and grows in the order of terms.

#include <algorithm>
#include <cstring>
#include <type_traits>

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

/// A product one side of which has at most kNarrowLanes lanes (rows of A or columns of B), while
/// the lanes of the other lie side by side.
class NarrowProduct {
 public:
  explicit NarrowProduct(const GemmArgs& g) : g_(g), by_rows_(g.m <= kNarrowLanes && !g.trans_b) {}

  /// Returns whether NarrowBlocks can compute a batch of such products.
  bool is_one(int64_t batch) const {
    constexpr int64_t kFewest = 64;  // lanes of the wide operand
    return g_.dtype == DType::bf16 && batch == 1 && !g_.panels && g_.sums.partials == nullptr &&
           (by_rows_ || (g_.n <= kNarrowLanes && g_.trans_a)) && wide() >= kFewest &&
           round_up(g_.k, 2) * kNarrowLanes <= kTaskWords;
  }
  int64_t tasks(int64_t team) const { return ceil_div(wide(), lanes_of_task(team)); }

#if defined(__x86_64__)
  void run(int64_t team) const {
    auto* const packed = reinterpret_cast<uint32_t*>(own_panels());  // of the calling thread
    pack(packed);
    parallel_pieces(tasks(team), team, [&](int64_t task, int) {
      const int64_t most = lanes_of_task(team), lane = task * most;
      run_task(packed, lane, std::min(most, wide() - lane), most);
      _mm_sfence();  // the epilogue may store around the caches
    });
  }
#endif

 private:
  static constexpr int64_t kTermsOfBlock = 64, kLanesOfTask = 256;

  int64_t wide() const { return by_rows_ ? g_.n : g_.m; }
  /// Lanes of the wide operand per task, a multiple of a strip. All threads get equally many tasks.
  int64_t lanes_of_task(int64_t team) const {
    const int64_t turns = ceil_div(wide(), team * kLanesOfTask);
    return round_up(ceil_div(wide(), team * turns), kPanel);
  }

  /// Packs the narrow operand as NarrowOperands::narrow, with zeros for lanes beyond it.
  void pack(uint32_t* out) const {
    const auto* const from = static_cast<const uint16_t*>(by_rows_ ? g_.a : g_.b);
    const int64_t lanes = by_rows_ ? g_.m : g_.n, ld = by_rows_ ? g_.lda : g_.ldb;
    const bool adjoin = by_rows_ ? g_.trans_a : !g_.trans_b;
    const int64_t to_lane = adjoin ? 1 : ld, to_term = adjoin ? ld : 1;
    for (int64_t k = 0; k < g_.k; k += 2, out += kNarrowLanes) {
      for (int64_t j = 0; j < lanes; ++j) {
        const uint16_t* two = from + j * to_lane + k * to_term;
        const uint32_t even = two[0], odd = k + 1 < g_.k ? two[to_term] : 0;
        out[j] = even | odd << 16;
      }
      std::fill(out + lanes, out + kNarrowLanes, 0);
    }
  }

#if defined(__x86_64__)
  void run_task(const uint32_t* packed, int64_t lane, int64_t lanes, int64_t ld_sums) const {
    float* const sums = own_sums();
    NarrowOperands block{.ld = by_rows_ ? g_.ldb : g_.lda,
                         .lanes = lanes,
                         .sums = sums,
                         .ld_sums = ld_sums,
                         .rows = by_rows_ ? g_.m : g_.n,
                         .wide_is_left = !by_rows_};
    const uint16_t* const wide = static_cast<const uint16_t*>(by_rows_ ? g_.b : g_.a) + lane;
    for (int64_t k = 0; k < g_.k; k += kTermsOfBlock) {
      block.narrow = packed + k / 2 * kNarrowLanes;
      block.wide = wide + k * block.ld;
      block.terms = std::min(kTermsOfBlock, g_.k - k);
      block.add = k > 0;
      NarrowBlocks::run(block);
    }
    if (by_rows_) return tile_task::finish_sums(g_, 0, 0, lane, g_.m, lanes, sums, ld_sums);
    float* const turned = sums + kNarrowLanes * ld_sums;
    for (int64_t i = 0; i < lanes; ++i)
      for (int64_t j = 0; j < g_.n; ++j) turned[i * kNarrowLanes + j] = sums[j * ld_sums + i];
    tile_task::finish_sums(g_, 0, lane, 0, lanes, g_.n, turned, kNarrowLanes);
  }
#endif

  const GemmArgs& g_;
  bool by_rows_;
};

template <class Tiles>
void run(const GemmBatch& all, RowSums rule) {
  const GemmArgs& g = all.args;
  const int64_t team = team_of(g, all.batch);
  if (is_row(g)) {
    if (g.sums.partials != nullptr) sum_operand(g);
    return run_rows(all, team, rule);
  }
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Tiles, RegisterTiles<PairProducts>>)
    if (NarrowProduct(g).is_one(all.batch)) {
      const GemmArgs one = all.product(0);
      return NarrowProduct(one).run(team);
    }
#endif
  multiply_tiles<Tiles>(all, team);
}

/// Products by tile registers, real or not.
template <class Tiles>
struct ByTiles : Tiles {
  static constexpr int64_t kBlockTiles = kAmxRate.block_tiles;
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
  if (const NarrowProduct narrow(g); strips && narrow.is_one(batch))
    return {std::min(team, narrow.tasks(team))};
  if (is_small(g, batch, team)) return {std::min(team, batch)};
  const TileRate rate = strips ? kStripRate : kAmxRate;
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
