#pragma once
// One task of a product of tiles (gemm_tiles.cpp): a block of rows x columns of C, over all terms
// of a chunk. The terms go by in blocks of a few tiles. A block of a panel of B (16 KB for AMX)
// stays in the L1 cache while all row panels pass by it from L2; what comes next is fetched into L2
// meanwhile. An operand that only this task reads is packed here, piece by piece between the
// micro-kernels, so that it never leaves the near caches. Complete blocks of C leave in the same
// gaps: the tile unit works on while vectors are packed and finished.

#include <algorithm>
#include <utility>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/products/gemm_amx_kernels.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/register_tiles.h"
#include "backend/cpu/products/tile_packing.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace brrr::cpu::tile_task {

using tile_packing::Ahead, tile_packing::Operand, tile_packing::TermSums;
using tile_packing::kPanel, tile_packing::kTile, tile_packing::kTileWords;

inline constexpr int64_t kSumBlock = kPanel * kPanel;  // floats

/// Where the rows of A lie, in words: in packed tiles, or as the caller has them.
struct LeftOrder {
  int64_t panel = 0;                       // from 32 rows to the next
  int64_t half = kTile, row = kTileWords;  // from 16 rows to the next, from one to the next
  int64_t tile = 2 * kTile;                // from 32 terms to the next
};

struct AheadOfBoth {
  Ahead a, b;
  void fetch(int64_t steps) {
    a.fetch(steps);
    b.fetch(steps);
  }
};

/// What a micro-kernel multiplies: a panel of rows of A and one of columns of B.
struct Panels {
  const uint16_t* a;
  LeftOrder order;
  const uint16_t* b;
  int64_t count;       // tiles of terms
  float* sums;         // 32 x 32, rows of 32
  bool first;          // nothing has been summed yet
  int64_t last_words;  // 4-byte words per lane in the last tile
  int64_t rows;        // rows of A in this panel, 1 to 32
  bool streams_b;      // B is read once and sequentially
};

/// micro() by tile registers.
template <class Tiles, int kRows, int kCols>
void micro_by_tiles(Tiles& tiles, const Panels& panels, AheadOfBoth& ahead) {
  constexpr int64_t kStride = kPanel * 4, kDown = kTileRows * kPanel;
  float* const sums = panels.sums;
  if (panels.first) {
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
  const uint16_t *a = panels.a, *b = panels.b;
  const int64_t row_bytes = panels.order.row * 2, half = panels.order.half;
  for (int64_t t = 0; t < panels.count; ++t, a += panels.order.tile, b += 2 * kTile) {
    tiles.template load<4>(a, row_bytes);
    tiles.template load<6>(b, kTileRowBytes);
    tiles.template dot<0, 4, 6>();
    ahead.fetch(1);
    if constexpr (kCols == 2) {
      tiles.template load<7>(b + kTile, kTileRowBytes);
      tiles.template dot<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      tiles.template load<5>(a + half, row_bytes);
      tiles.template dot<2, 5, 6>();
    }
    if constexpr (kRows == 2 && kCols == 2) tiles.template dot<3, 5, 7>();
  }
  tiles.template store<0>(sums, kStride);
  if constexpr (kCols == 2) tiles.template store<1>(sums + 16, kStride);
  if constexpr (kRows == 2) tiles.template store<2>(sums + kDown, kStride);
  if constexpr (kRows == 2 && kCols == 2) tiles.template store<3>(sums + kDown + 16, kStride);
}

/// sums += A B. kRows x kCols tiles of the sums exist; strips take the number of rows from
/// `panels`.
template <class Tiles, int kRows, int kCols>
void micro(Tiles& tiles, const Panels& panels, AheadOfBoth& ahead) {
  if constexpr (MultipliesStrips<Tiles>) {
    constexpr int64_t kTileBytes = 2 * kTile;
    const LeftOrder& order = panels.order;
    const int64_t strips = ceil_div(panels.rows, Tiles::kStripRows);
    for (int64_t row = 0; row < panels.rows; row += Tiles::kStripRows) {
      const uint16_t* left = panels.a + row / kTileRows * order.half + row % kTileRows * order.row;
      ahead.fetch(ceil_div(panels.count, strips));
      Tiles::template strip<kCols>(
          {reinterpret_cast<const uint8_t*>(left), 2 * order.row, 2 * order.tile,
           reinterpret_cast<const uint8_t*>(panels.b), kTileBytes, 2 * kTileBytes, panels.count,
           panels.sums + row * kPanel, kPanel, !panels.first, panels.last_words,
           panels.streams_b && row == 0, std::min<int64_t>(Tiles::kStripRows, panels.rows - row)});
    }
  } else {
    micro_by_tiles<Tiles, kRows, kCols>(tiles, panels, ahead);
  }
}

/// Packs a block of an operand's panels piece by piece.
class Packer {
 public:
  Packer() = default;
  Packer(const Operand* operand, const TermSums* sums) : operand_(operand), sums_(sums) {}
  explicit operator bool() const { return operand_ != nullptr; }

  /// Tiles [t0, t0 + count) of panels [p0, p0 + panels), whose panels lie count pairs of tiles
  /// apart.
  void begin(int64_t p0, int64_t panels, int64_t t0, int64_t count, uint16_t* out) {
    p0_ = p0, panels_ = panels, t0_ = t0, count_ = count, out_ = out;
    done_ = 0;
  }
  /// Goes on until this share of the block is packed.
  void until(int64_t part, int64_t whole) {
    for (const int64_t end = panels_ * count_ * part / whole; done_ < end; ++done_) {
      const int64_t p = done_ % panels_, t = done_ / panels_;
      pack_pair(*operand_, p0_ + p, t0_ + t, out_ + (p * count_ + t) * 2 * kTile);
      if (sums_ != nullptr) sums_->add_tile(p0_ + p, t0_ + t);
    }
  }
  /// Fetches what is packed after the block: as begin().
  void look_ahead(int64_t p0, int64_t panels, int64_t t0, int64_t count, int64_t steps,
                  Ahead& ahead) const {
    tile_packing::look_ahead(*operand_, p0, panels, t0, count, steps, ahead);
  }

 private:
  const Operand* operand_ = nullptr;
  const TermSums* sums_ = nullptr;  // of the operand, or null
  int64_t p0_ = 0, panels_ = 0, t0_ = 0, count_ = 0, done_ = 0;
  uint16_t* out_ = nullptr;
};

/// Rows from i0 and columns from j0 of product `index`.
struct Task {
  int64_t index, i0, j0, rows, cols;
  const uint16_t *a, *b;  // the panels of these rows and columns; not where the task packs them
  LeftOrder a_order;
  int64_t b_panel;     // words from one to the next
  int64_t tiles;       // of terms
  int64_t last_words;  // 4-byte words per lane in the last tile
  bool by_panel;       // one panel of B after the other, all its terms; or block by block of terms
  Packer pack_a = {}, pack_b = {};  // of the operands whose panels the task packs for itself ...
  int64_t a_first, b_first;         // ... from these on
  uint16_t *own_a, *own_b;          // room for two blocks of each
  float* sums;                      // blocks of 32 x 32, row panel by row panel ...
  int64_t sum_panels;               // ... of this many; by panel, column panels take turns
  bool first, last;                 // chunk of terms
};

/// A C larger than this is not in a near cache when somebody reads it: writing it around the caches
/// saves reading each line first.
inline bool past_caches(const GemmArgs& g) {
  constexpr int64_t kNear = int64_t{8} << 20;
  return g.m * g.n * static_cast<int64_t>(bytes_of(g.c_dtype)) >= kNear;
}

/// Complete sums of rows from i and columns from j: scale, epilogue, store.
inline void finish_sums(const GemmArgs& g, int64_t index, int64_t i, int64_t j, int64_t rows,
                        int64_t cols, float* sums, int64_t ld) {
  if (g.alpha != 1.0f || g.bias != nullptr || g.beta != 0.0f) {
    amx_kernels().scale(
        sums, ld, rows, cols, g.alpha, g.bias != nullptr ? g.bias + j : nullptr,
        g.beta != 0.0f ? static_cast<const float*>(offset(g.c, g.c_dtype, i * g.ldc + j)) : nullptr,
        g.ldc);
  }
  finish_block(g, index, i, j, rows, cols, sums, ld, past_caches(g));
}

template <class Tiles>
class TaskRun {
 public:
  TaskRun(const GemmArgs& g, const Task& task)
      : g_(g),
        task_(task),
        row_panels_(ceil_div(task.rows, kPanel)),
        col_panels_(ceil_div(task.cols, kPanel)) {}

  void run() {
    const int64_t blocks = ceil_div(task_.tiles, kBlockTiles);
    const int64_t period =
        task_.by_panel ? blocks : 1;  // micro-kernels to a block that is finished
    int64_t steps = 0;
    for (Block at; exists(at); at = after(at)) {
      const Block next = after(at);
      prepare(at, next);
      for (int64_t p = 0; p < row_panels_; ++p) {
        multiply(at, p);
        pack(at, next, p);
        if (finished_ < complete_ && ++steps % period == 0) finish_next();
        if (task_.last && at.t0 + count(at) == task_.tiles) ++complete_;
      }
    }
    while (finished_ < complete_) finish_next();
#if defined(__SSE2__)
    _mm_sfence();  // stores around the caches are seen by whoever sees the end of the task
#endif
  }

 private:
  static constexpr int64_t kBlockTiles = Tiles::kBlockTiles;
  /// Terms from tile t0 on of a column panel.
  struct Block {
    int64_t q = 0, t0 = 0;
  };
  bool exists(Block b) const { return b.q < col_panels_ && b.t0 < task_.tiles; }
  Block after(Block b) const {
    if (task_.by_panel) {
      b.t0 += kBlockTiles;
      return b.t0 < task_.tiles ? b : Block{b.q + 1, 0};
    }
    ++b.q;
    return b.q < col_panels_ ? b : Block{0, b.t0 + kBlockTiles};
  }
  /// Whether this task reads B once and sequentially. Strips then prefetch it line by line;
  /// prefetching whole blocks between strips would stall on memory.
  bool streams_b() const {
    return MultipliesStrips<Tiles> && !task_.pack_b && task_.by_panel && row_panels_ == 1;
  }
  int64_t count_from(int64_t t0) const { return std::min(kBlockTiles, task_.tiles - t0); }
  int64_t count(Block b) const { return count_from(b.t0); }
  uint16_t* own_b(Block b) const {
    const int64_t blocks = ceil_div(task_.tiles, kBlockTiles), t = b.t0 / kBlockTiles;
    const int64_t turn = task_.by_panel ? b.q * blocks + t : t * col_panels_ + b.q;
    return task_.own_b + turn % 2 * kBlockTiles * 2 * kTile;
  }
  uint16_t* own_a(int64_t t0) const {
    return task_.own_a + t0 / kBlockTiles % 2 * row_panels_ * kBlockTiles * 2 * kTile;
  }
  float* sums(int64_t p, int64_t q) const {
    return task_.sums + (p * task_.sum_panels + (task_.by_panel ? q % 2 : q)) * kSumBlock;
  }

  /// What a block needs, and what the next ones will.
  void prepare(Block at, Block next) {
    const int64_t steps = row_panels_ * count(at);
    if (Packer& pack = task_.pack_b) {
      if (at.q == 0 && at.t0 == 0) begin_b(at), pack.until(1, 1);
      if (exists(next)) begin_b(next);
      if (const Block later = after(next); exists(next) && exists(later))
        pack.look_ahead(task_.b_first + later.q, 1, later.t0, count(later), steps, ahead_.b);
    } else if (exists(next) && !streams_b()) {
      ahead_.b.begin(task_.b + next.q * task_.b_panel + next.t0 * 2 * kTile,
                     count(next) * 2 * kTile * 2, 0, 1, steps);
    }
    if (at.q != 0) return;  // A: once for all columns
    const int64_t phase = task_.by_panel ? steps : steps * col_panels_;
    const int64_t t1 = at.t0 + kBlockTiles, t2 = t1 + kBlockTiles;
    if (Packer& pack = task_.pack_a) {
      if (at.t0 == 0) begin_a(0), pack.until(1, 1);
      if (t1 < task_.tiles) begin_a(t1);
      if (t2 < task_.tiles)
        pack.look_ahead(task_.a_first, row_panels_, t2, count_from(t2), phase, ahead_.a);
    } else if (t1 < task_.tiles) {
      const LeftOrder& o = task_.a_order;
      const uint16_t* from = task_.a + t1 * o.tile;
      const int64_t bytes = count_from(t1) * kTileRowBytes;
      if (o.row == kTileWords)
        ahead_.a.begin(from, bytes * kPanel, o.panel * 2, row_panels_, phase);
      else
        ahead_.a.begin(from, bytes, o.row * 2, task_.rows, phase);
    }
  }
  void begin_a(int64_t t0) {
    task_.pack_a.begin(task_.a_first, row_panels_, t0, count_from(t0), own_a(t0));
  }
  void begin_b(Block b) { task_.pack_b.begin(task_.b_first + b.q, 1, b.t0, count(b), own_b(b)); }
  /// After row panel p of a block: a piece of the next ones.
  void pack(Block at, Block next, int64_t p) {
    if (task_.pack_b && exists(next)) task_.pack_b.until(p + 1, row_panels_);
    if (task_.pack_a && at.t0 + kBlockTiles < task_.tiles)
      task_.pack_a.until(at.q * row_panels_ + p + 1, row_panels_ * col_panels_);
  }

  void multiply(Block at, int64_t p) {
    Panels panels{nullptr,
                  task_.a_order,
                  nullptr,
                  count(at),
                  sums(p, at.q),
                  task_.first && at.t0 == 0,
                  at.t0 + count(at) == task_.tiles ? task_.last_words : kTileRows,
                  std::min(kPanel, task_.rows - p * kPanel),
                  streams_b()};
    if (task_.pack_a) {
      panels.order = {panels.count * 2 * kTile};
      panels.a = own_a(at.t0);
    } else {
      panels.a = task_.a + at.t0 * panels.order.tile;
    }
    panels.a += p * panels.order.panel;
    panels.b = task_.pack_b ? own_b(at) : task_.b + at.q * task_.b_panel + at.t0 * 2 * kTile;
    const bool tall = task_.rows - p * kPanel > kTileRows;
    const bool wide = task_.cols - at.q * kPanel > kTileRows;
    if (tall) {
      (wide ? micro<Tiles, 2, 2> : micro<Tiles, 2, 1>)(tiles_, panels, ahead_);
    } else {
      (wide ? micro<Tiles, 1, 2> : micro<Tiles, 1, 1>)(tiles_, panels, ahead_);
    }
  }

  /// Blocks of C are complete, and finished, in this order.
  void finish_next() {
    const int64_t p = finished_ % row_panels_, q = finished_ / row_panels_;
    finish_sums(g_, task_.index, task_.i0 + p * kPanel, task_.j0 + q * kPanel,
                std::min(kPanel, task_.rows - p * kPanel),
                std::min(kPanel, task_.cols - q * kPanel), sums(p, q), kPanel);
    ++finished_;
  }

  const GemmArgs& g_;
  Task task_;
  int64_t row_panels_, col_panels_;
  int64_t complete_ = 0, finished_ = 0;
  Tiles tiles_;
  AheadOfBoth ahead_;
};

}  // namespace brrr::cpu::tile_task
