#include "backend/cpu/products/tile_layout.h"

#include <algorithm>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/tile_packing.h"
#include "base/errors.h"
#include "base/integers.h"

namespace brrr::cpu {
namespace {

using tile_packing::kPanel, tile_packing::kTile, tile_packing::kTileWords, tile_packing::tile_terms;

int64_t assumed_l2 = 0;

int64_t l2_bytes() { return assumed_l2 > 0 ? assumed_l2 : l2_cache_bytes(); }

/// A bf16 A is read in place if it consists of whole tiles (for strips: if k is even), unless the
/// distance of its rows maps all of them to one cache set.
bool left_in_place(const GemmArgs& g, const TileRate& rate) {
  return g.dtype == DType::bf16 && !g.trans_a && g.m % rate.whole_rows == 0 &&
         (g.k % rate.whole_terms == 0 || g.a_ends_in_zeros) && g.lda * 2 % kSetsRepeat != 0;
}
/// B in panels, but for its alignment (kernels are given aligned operands).
bool right_in_place(const GemmArgs& g) {
  return g.panels && reinterpret_cast<uintptr_t>(g.b) % 64 == 0;
}
TileLayout sources(const GemmArgs& g, const TileRate& rate) {
  return {.rate = rate,
          .a = left_in_place(g, rate) ? TilesFrom::kInPlace : TilesFrom::kTeam,
          .b = right_in_place(g) ? TilesFrom::kInPlace : TilesFrom::kTeam,
          .task = {}};
}

/// Parts of at most so many lanes, as equal as whole panels allow.
int64_t equal_panel_parts(int64_t lanes, int64_t most) {
  return round_up(ceil_div(lanes, ceil_div(lanes, most)), kPanel);
}

/// Chunks of k terms whose packed operands and sums have room; false: there are none, or terms are
/// cut for nothing.
bool choose_chunks(const GemmArgs& g, int64_t k, TileLayout& layout) {
  layout.rows = round_up(g.m, kPanel), layout.cols = round_up(g.n, kPanel), layout.k = k;
  const bool packs_a = layout.a == TilesFrom::kTeam, packs_b = layout.b == TilesFrom::kTeam;
  if (!packs_a && !packs_b) return k == g.k;
  const int64_t words = ceil_div(k, tile_terms(g.dtype)) * kTileWords;
  const int64_t most = kTeamWords / words / kPanel * kPanel;
  if (most == 0) return false;
  if (packs_a) layout.rows = equal_panel_parts(g.m, most);
  if (packs_b) layout.cols = equal_panel_parts(g.n, most);
  if (k == g.k || layout.rows * layout.cols <= kChunkSums) return true;
  if (layout.rows >= layout.cols)
    layout.rows = equal_panel_parts(g.m, kChunkSums / layout.cols / kPanel * kPanel);
  else
    layout.cols = equal_panel_parts(g.n, kChunkSums / layout.rows / kPanel * kPanel);
  return true;
}

/// Tasks of a chunk of rows x cols.
class TaskChoice {
 public:
  TaskChoice(const TileLayout& layout, int64_t rows, int64_t cols, int64_t tiles, bool all_terms,
             int64_t team)
      : layout_(layout),
        rows_(rows),
        cols_(cols),
        tiles_(tiles),
        team_(team),
        all_terms_(all_terms) {}

  TaskSize best() {
    if (layout_.b == TilesFrom::kTask) {
      with_rows(rows_);
    } else {
      for (const int64_t most : kSizes) with_rows(most);
    }
    return best_;
  }

 private:
  static constexpr int64_t kSizes[] = {512, 384, 256, 192, 128, 64, 32};

  void with_rows(int64_t most_rows) {
    const int64_t rows = equal_panel_parts(rows_, most_rows);
    for (const int64_t parts : {1, 2, 3, 4, 6})
      consider({rows, round_up(ceil_div(cols_, parts), kPanel)});
    for (const int64_t most : kSizes) consider({rows, equal_panel_parts(cols_, most)});
  }

  void consider(TaskSize t) {
    const int64_t sums = std::min(kTaskSums, l2_bytes() / 8);  // half of it
    const bool own_a = layout_.a == TilesFrom::kTask, own_b = layout_.b == TilesFrom::kTask;
    const int64_t row_tasks = ceil_div(rows_, t.rows), col_tasks = ceil_div(cols_, t.cols);
    t.by_panel = all_terms_ && !own_a && t.rows * 2 * kPanel <= sums &&
                 std::min(t.rows, rows_) * tiles_ * kTileRowBytes <= l2_bytes() * 3 / 8;
    if (!t.by_panel && t.rows * t.cols > sums) return;
    if (own_a && (col_tasks > 1 || task_b_words(layout_.rate) + own_a_words(t.rows) > kTaskWords))
      return;
    if (own_b && row_tasks > 1) return;

    // An operand comes from the L3 cache at about 8 bytes per cycle, half of the time behind the
    // tiles' back; rows that stay in L2 come once. A line that is packed takes about 32 cycles: it
    // comes from memory. Before the first micro-kernel and after the last there is nothing to hide
    // behind.
    const auto rows = static_cast<double>(t.rows), cols = static_cast<double>(t.cols);
    double time = rows * cols * layout_.rate.cycles / (kTileRows * kTileRows) +
                  4 * (rows / static_cast<double>(t.by_panel ? col_tasks : 1) + cols) +
                  (3000 + 10 * rows) / static_cast<double>(tiles_);
    if (own_a) time += 32 * rows;
    if (own_b) time += 32 * cols;
    // The last tasks do not end at the same moment.
    t.time = time * (static_cast<double>(ceil_div(row_tasks * col_tasks, team_)) +
                     (team_ > 1 ? 0.25 : 0.0));
    if (best_.time == 0 || t.time < best_.time) best_ = t;
  }
  /// Words of two blocks of so many rows of A.
  int64_t own_a_words(int64_t rows) const {
    return 2 * layout_.rate.block_tiles * rows * kTileWords;
  }

  const TileLayout& layout_;
  int64_t rows_, cols_, tiles_, team_;
  bool all_terms_;
  TaskSize best_;
};

}  // namespace

int64_t lane_words(const GemmArgs& g) { return ceil_div(g.k, tile_terms(g.dtype)) * kTileWords; }
int64_t task_b_words(const TileRate& rate) { return 2 * rate.block_tiles * 2 * kTile; }

TaskSize choose_task(const GemmArgs& g, const TileLayout& layout, int64_t rows, int64_t cols,
                     int64_t team) {
  const int64_t tiles = ceil_div(std::min(layout.k, g.k), tile_terms(g.dtype));
  return TaskChoice(layout, rows, cols, tiles, layout.k >= g.k, team).best();
}

TileLayout lay_out_tiles(const GemmArgs& g, const TileRate& rate, int64_t team) {
  const TileLayout plain = sources(g, rate);
  TileLayout best;
  double least = 0;
  const auto consider = [&](TilesFrom a, TilesFrom b, int64_t k) {
    TileLayout layout = plain;
    layout.a = a, layout.b = b;
    if (!choose_chunks(g, k, layout)) return;
    layout.task =
        choose_task(g, layout, std::min(layout.rows, g.m), std::min(layout.cols, g.n), team);
    if (layout.task.time == 0) return;
    const auto down = static_cast<double>(ceil_div(g.m, layout.rows)),
               right = static_cast<double>(ceil_div(g.n, layout.cols));
    double time = layout.task.time * down * right;
    // What the team packs is read, fetched to be written, and written, while nobody multiplies:
    // about 50 cycles a line. It stays until another chunk of the operand is wanted.
    const bool cut = k < g.k;
    double lines = 0;
    if (a == TilesFrom::kTeam) lines += static_cast<double>(g.m) * (cut ? right : 1);
    if (b == TilesFrom::kTeam) lines += static_cast<double>(g.n) * (cut || right > 1 ? down : 1);
    time += 50 * lines / static_cast<double>(team);
    // Sums that wait for the next chunk come from the L3 cache and go back there.
    if (cut)
      time += static_cast<double>(g.m * g.n) / static_cast<double>(team * k / tile_terms(g.dtype));
    if (least == 0 || time < least) least = time, best = layout;
  };
  const auto consider_terms = [&](int64_t k) {
    consider(plain.a, plain.b, k);
    if (plain.a == TilesFrom::kTeam) consider(TilesFrom::kTask, plain.b, k);
    if (plain.b == TilesFrom::kTeam) consider(plain.a, TilesFrom::kTask, k);
  };
  consider_terms(g.k);
  if (g.k > kChunkK) consider_terms(kChunkK);
  BRRR_CHECK(least > 0, "products of tiles need an L2 cache of at least 8 KiB");
  return best;
}

TileLayout lay_out_small(const GemmArgs& g, const TileRate& rate) {
  TileLayout layout = sources(g, rate);
  layout.rows = round_up(g.m, kPanel), layout.cols = round_up(g.n, kPanel), layout.k = g.k;
  layout.task = choose_task(g, layout, g.m, g.n, 1);
  return layout;
}

void assume_l2(int64_t bytes) { assumed_l2 = bytes; }

}  // namespace brrr::cpu
