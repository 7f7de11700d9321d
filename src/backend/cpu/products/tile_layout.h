#pragma once
// How a product of tiles (gemm_tiles.cpp) is divided: where the tiles of its operands come from, in
// which chunks they have room in the packing memory, and in which tasks a chunk is shared out. No
// division changes any bit.

#include <cstdint>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/register_tiles.h"

namespace brrr::cpu {

inline constexpr int64_t kTeamWords = int64_t{4} << 20;  // of an operand that the team packs
inline constexpr int64_t kTaskWords = int64_t{1} << 19;  // that one thread packs
inline constexpr int64_t kTaskSums = int64_t{1} << 18;   // floats, of a task
inline constexpr int64_t kChunkK = 4096;                 // terms, where they are cut: all sums of a
inline constexpr int64_t kChunkSums = int64_t{1} << 20;  // chunk, floats, then wait for the next

/// Where the tiles of an operand come from: it is read as it lies, packed by the team, or packed by
/// the one task that reads it.
enum class TilesFrom { kInPlace, kTeam, kTask };

/// What the division depends on, of a class of tiles.
struct TileRate {
  int64_t block_tiles = 0;  // of terms
  double cycles = 0;        // for the product of two tiles
  /// A is read in place only if m is a multiple of whole_rows, and k of whole_terms.
  int64_t whole_rows = kTileRows, whole_terms = kTileBf16;
};
inline constexpr TileRate kAmxRate = {8, 16};
inline constexpr TileRate kStripRate = {kStripBlockTiles, kStripCycles, 1, 2};
template <class Tiles>
constexpr TileRate tile_rate() {
  return MultipliesStrips<Tiles> ? kStripRate : kAmxRate;
}

struct TaskSize {
  int64_t rows = 0, cols = 0;
  bool by_panel = false;  // all terms of the rows stay in L2
  double time = 0;        // of all tasks, in cycles per tile of terms; 0: there is no such size
};

struct TileLayout {
  TileRate rate;
  TilesFrom a = TilesFrom::kTeam, b = TilesFrom::kTeam;
  int64_t rows = 0, cols = 0, k = 0;  // of a chunk; k in terms, whole tiles unless it is all
  TaskSize task;                      // of a whole chunk
};

/// The fastest by estimate for a team of threads.
TileLayout lay_out_tiles(const GemmArgs& g, const TileRate& rate, int64_t team);
/// For one thread, in memory of its own.
TileLayout lay_out_small(const GemmArgs& g, const TileRate& rate);
/// The tasks of a chunk of rows x cols.
TaskSize choose_task(const GemmArgs& g, const TileLayout& layout, int64_t rows, int64_t cols,
                     int64_t team);

/// Words that a lane of k terms takes when packed.
int64_t lane_words(const GemmArgs& g);
/// Words of two blocks of a panel of B, which begin the memory of a task that packs.
int64_t task_b_words(const TileRate& rate);

/// For tests: products are laid out for an L2 cache of so many bytes; 0: for the machine's.
void assume_l2(int64_t bytes);

}  // namespace brrr::cpu
