#pragma once
// A product of tiles, by a team of threads or by one: packs what the team packs, then shares out
// the tasks (tile_task.h), chunk by chunk of the layout (tile_layout.h).

#include <algorithm>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/tile_layout.h"
#include "backend/cpu/products/tile_packing.h"
#include "backend/cpu/products/tile_task.h"
#include "base/panels.h"
#include "base/threads/parallel.h"

namespace brrr::cpu {

struct TeamMemory {
  uint16_t *a, *b;  // packed operands
  float* sums;      // where terms are cut
};
/// Belongs to the thread that called gemm.
TeamMemory team_memory();
/// One thread's: the sums of a task, then operands that this thread packs for itself.
float* own_sums();
inline uint16_t* own_panels() { return reinterpret_cast<uint16_t*>(own_sums() + kTaskSums); }

/// Threads for products.
int64_t team_of(const GemmArgs& g, int64_t batch);
/// Products that fit one thread's memory: each is one thread's.
bool is_small(const GemmArgs& g, int64_t batch, int64_t team);

/// Where term k0 of column j0 lies, both multiples of 32, when B lies in panels: just as
/// pack_panels() makes them.
inline const uint16_t* panels_of(const GemmArgs& g, int64_t j0, int64_t k0) {
  static_assert(tile_packing::kPanel == kPanelColumns && kTileBf16 == kPanelTerms &&
                kChunkK % kPanelTerms == 0);
  return static_cast<const uint16_t*>(g.b) + j0 * g.k + k0 * kPanelColumns;
}

/// Computes one product on up to `team` threads, led by the calling thread.
template <class Tiles>
class TileProduct {
 public:
  TileProduct(const GemmArgs& g, int64_t index, const TileLayout& layout, int64_t team,
              const TeamMemory& memory)
      : g_(g), index_(index), layout_(layout), team_(team), memory_(memory) {}

  void run() {
    for (int64_t i0 = 0; i0 < g_.m; i0 += layout_.rows)
      for (int64_t j0 = 0; j0 < g_.n; j0 += layout_.cols)
        for (int64_t k0 = 0; k0 < g_.k; k0 += layout_.k) run_chunk({i0, j0, k0});
  }

 private:
  static constexpr int64_t kPanel = tile_packing::kPanel;
  using Operand = tile_packing::Operand;
  using TermSums = tile_packing::TermSums;
  using LeftOrder = tile_task::LeftOrder;
  using Packer = tile_task::Packer;
  struct Chunk {
    int64_t i0, j0, k0;
  };

  Operand left(const Chunk& c, int64_t terms) const {
    const int64_t at = g_.trans_a ? c.k0 * g_.lda + c.i0 : c.i0 * g_.lda + c.k0;
    const int64_t lanes = std::min(layout_.rows, g_.m - c.i0);
    return {g_.dtype, offset(g_.a, g_.dtype, at), g_.lda, g_.trans_a, false, lanes, terms};
  }
  Operand right(const Chunk& c, int64_t terms) const {
    const int64_t at = g_.trans_b ? c.j0 * g_.ldb + c.k0 : c.k0 * g_.ldb + c.j0;
    return {g_.dtype,
            offset(g_.b, g_.dtype, at),
            g_.ldb,
            !g_.trans_b && !g_.panels,
            true,
            std::min(layout_.cols, g_.n - c.j0),
            terms,
            g_.panels ? panels_of(g_, c.j0, c.k0) : nullptr,
            kPanelColumns * g_.k};
  }

  void run_chunk(const Chunk& c) {
    const int64_t terms = std::min(layout_.k, g_.k - c.k0);
    const Operand a = left(c, terms), b = right(c, terms);
    // A chunk of an operand is summed when it is here for the first time.
    const bool has_sums = g_.sums.partials != nullptr;
    const TermSums sums_of_a(g_, a, c.i0, c.k0), sums_of_b(g_, b, c.j0, c.k0);
    const TermSums* sums_a = has_sums && g_.sums.of_a && c.j0 == 0 ? &sums_of_a : nullptr;
    const TermSums* sums_b = has_sums && !g_.sums.of_a && c.i0 == 0 ? &sums_of_b : nullptr;
    const TeamWork work_a(layout_.a, a, sums_a, memory_.a, packed_a_);
    const TeamWork work_b(layout_.b, b, sums_b, memory_.b, packed_b_);
    // The call returns when both operands are packed. The products below have finished reading them
    // when the next chunk is packed.
    parallel_pieces(work_a.units + work_b.units, team_, [&](int64_t unit, int) {
      if (unit < work_a.units)
        work_a.run(unit, unit + team_);
      else
        work_b.run(unit - work_a.units, unit - work_a.units + team_);
    });

    const bool whole =
        a.lanes == std::min(layout_.rows, g_.m) && b.lanes == std::min(layout_.cols, g_.n);
    const TaskSize size = whole ? layout_.task : choose_task(g_, layout_, a.lanes, b.lanes, team_);
    const int64_t row_tasks = ceil_div(a.lanes, size.rows);
    const int64_t col_tasks = ceil_div(b.lanes, size.cols);
    // Row by row of tasks: the rows of one are still in L2 when the next begins.
    parallel_pieces(row_tasks * col_tasks, team_, [&](int64_t which, int) {
      const int64_t i = which / col_tasks * size.rows, j = which % col_tasks * size.cols;
      tile_task::Task task = task_at(c, a, b, size, i, j);
      if (layout_.a == TilesFrom::kTask) task.pack_a = Packer(&a, sums_a);
      if (layout_.b == TilesFrom::kTask) task.pack_b = Packer(&b, sums_b);
      tile_task::TaskRun<Tiles>(g_, task).run();
    });
  }

  /// What the team does for an operand before it is multiplied.
  struct TeamWork {
    const Operand& operand;
    const TermSums* sums;
    uint16_t* out = nullptr;  // null: it is not packed, or lies here from before
    int64_t units = 0;

    TeamWork(TilesFrom from, const Operand& o, const TermSums* s, uint16_t* memory,
             const void*& packed)
        : operand(o), sums(s) {
      if (from == TilesFrom::kTeam && packed != o.from) out = memory;
      packed = o.from;
      if (from == TilesFrom::kTask) return;  // which sums it, too
      units = sums != nullptr ? sums->units() : out != nullptr ? tile_packing::pack_units(o) : 0;
    }
    void run(int64_t unit, int64_t next) const {
      if (sums != nullptr)
        sums->run(unit, out);
      else
        tile_packing::pack_unit(operand, unit, next, out);
    }
  };

  /// The task of rows from i and columns from j of a chunk.
  tile_task::Task task_at(const Chunk& c, const Operand& a, const Operand& b, const TaskSize& size,
                          int64_t i, int64_t j) const {
    const bool a_in_place = layout_.a == TilesFrom::kInPlace;
    const bool b_in_place = layout_.b == TilesFrom::kInPlace;
    LeftOrder order{a.panel_words()};
    if (a_in_place) order = {kPanel * a.ld, kTileRows * a.ld, a.ld, kTileBf16};
    const uint16_t* rows = a_in_place ? static_cast<const uint16_t*>(a.from) : memory_.a;
    const uint16_t* columns = b_in_place ? b.packed : memory_.b;
    const int64_t b_panel = b_in_place ? b.packed_panel : b.panel_words();
    tile_task::Task task{.index = index_,
                         .i0 = c.i0 + i,
                         .j0 = c.j0 + j,
                         .rows = std::min(size.rows, a.lanes - i),
                         .cols = std::min(size.cols, b.lanes - j),
                         .a = rows + i / kPanel * order.panel,
                         .b = columns + j / kPanel * b_panel,
                         .a_order = order,
                         .b_panel = b_panel,
                         .tiles = a.tiles(),
                         .last_words = a.words_in_last_tile(),
                         .by_panel = size.by_panel,
                         .a_first = i / kPanel,
                         .b_first = j / kPanel,
                         .own_a = own_panels() + task_b_words(layout_.rate),
                         .own_b = own_panels(),
                         .sums = own_sums(),
                         .sum_panels = size.by_panel ? 2 : size.cols / kPanel,
                         .first = c.k0 == 0,
                         .last = c.k0 + a.terms == g_.k};
    if (a.terms < g_.k) {  // sums outlive the task
      task.sum_panels = b.panels();
      task.sums = memory_.sums + (i / kPanel * b.panels() + j / kPanel) * tile_task::kSumBlock;
    }
    return task;
  }

  const GemmArgs& g_;
  int64_t index_;
  const TileLayout& layout_;
  int64_t team_;
  TeamMemory memory_;
  const void *packed_a_ = nullptr, *packed_b_ = nullptr;  // which chunk the team has packed
};

/// Products of more than one row.
template <class Tiles>
void multiply_tiles(const GemmBatch& all, int64_t team) {
  constexpr TileRate kRate = tile_rate<Tiles>();
  const GemmArgs& g = all.args;
  if (is_small(g, all.batch, team)) {
    const TileLayout whole = lay_out_small(g, kRate);
    parallel_pieces(all.batch, team, [&](int64_t i, int) {
      uint16_t* a = own_panels();
      const GemmArgs one = all.product(i);
      TileProduct<Tiles>(one, i, whole, 1, {a, a + whole.rows * lane_words(g), nullptr}).run();
    });
    return;
  }
  const TileLayout layout = lay_out_tiles(g, kRate, team);
  const TeamMemory memory = team_memory();
  for (int64_t i = 0; i < all.batch; ++i) {
    const GemmArgs one = all.product(i);
    TileProduct<Tiles>(one, i, layout, team, memory).run();
  }
}

}  // namespace brrr::cpu
