#pragma once
// Operands of gemm_tiles.cpp, packed into tiles (amx_tiles.h): panels of 32 lanes, rows of A or
// columns of B, each a run of pairs of tiles; and sums over their terms, made on the way. A tile
// reads short runs of many rows, which the hardware does not fetch ahead: what comes next is
// fetched into L2 meanwhile, in the order of addresses.

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/products/gemm_amx_kernels.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_int8.h"
#include "backend/cpu/rows/reduction_rows.h"

namespace brrr::cpu::tile_packing {

inline constexpr int64_t kPanel = 2 * kTileRows;  // rows or columns of a panel
// Packed operands are counted in 16 bits, whatever they hold.
inline constexpr int64_t kTileWords = kTileRowBytes / 2;  // of a lane
inline constexpr int64_t kTile = int64_t{kTileRows} * kTileWords;

/// Terms of a lane of a tile.
inline int64_t tile_terms(DType dtype) { return dtype == DType::i8 ? kTileInt8 : kTileBf16; }

/// A chunk of one operand: which lanes (rows of A, columns of B) and terms.
struct Operand {
  DType dtype;
  const void* from;  // the first element of the chunk
  int64_t ld;
  bool lanes_adjoin;  // lanes or terms are side by side in memory
  bool right;
  int64_t lanes, terms;
  const uint16_t* packed = nullptr;  // where it lies in panels already ...
  int64_t packed_panel = 0;          // ... and the words from one to the next

  int64_t tiles() const { return ceil_div(terms, tile_terms(dtype)); }
  /// Number of 4-byte words per lane in the last tile of terms.
  int64_t words_in_last_tile() const {
    const int64_t word = 4 / static_cast<int64_t>(bytes_of(dtype));
    return ceil_div(terms - (tiles() - 1) * tile_terms(dtype), word);
  }
  int64_t panels() const { return ceil_div(lanes, kPanel); }
  int64_t panel_words() const { return tiles() * 2 * kTile; }
};

/// Lines that are wanted soon, fetched into L2 a few at a time.
class Ahead {
 public:
  /// `rows` runs of `row_bytes`, `stride` bytes apart, over `steps` steps.
  void begin(const void* from, int64_t row_bytes, int64_t stride, int64_t rows, int64_t steps) {
    at_ = static_cast<const char*>(from);
    row_lines_ = in_row_ = ceil_div(row_bytes, kLine);
    to_next_row_ = stride - row_lines_ * kLine;
    left_ = row_lines_ * rows;
    per_step_ = ceil_div(left_, steps);
  }
  void fetch(int64_t steps) {
    int64_t lines = std::min(per_step_ * steps, left_);
    for (left_ -= lines; lines > 0; --lines, at_ += kLine) {
      __builtin_prefetch(at_, 0, 2);
      if (--in_row_ > 0) continue;
      in_row_ = row_lines_;
      at_ += to_next_row_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* at_ = nullptr;
  int64_t row_lines_ = 0, in_row_ = 0, to_next_row_ = 0;
  int64_t left_ = 0, per_step_ = 0;
};

/// What is read to pack tiles [t0, t0 + count) of panels [p0, p0 + panels), over `steps` steps.
inline void look_ahead(const Operand& o, int64_t p0, int64_t panels, int64_t t0, int64_t count,
                       int64_t steps, Ahead& ahead) {
  if (o.packed != nullptr) {
    constexpr int64_t kPair = 2 * kTile * 2;  // bytes
    return ahead.begin(o.packed + p0 * o.packed_panel + t0 * 2 * kTile, count * kPair,
                       o.packed_panel * 2, panels, steps);
  }
  const int64_t lane = p0 * kPanel, lanes = std::min(panels * kPanel, o.lanes - lane);
  const int64_t k0 = t0 * tile_terms(o.dtype);
  const int64_t terms = std::min(count * tile_terms(o.dtype), o.terms - k0);
  const auto bytes = [&](int64_t n) { return n * static_cast<int64_t>(bytes_of(o.dtype)); };
  const void* from = offset(o.from, o.dtype, o.lanes_adjoin ? k0 * o.ld + lane : lane * o.ld + k0);
  if (o.lanes_adjoin)
    ahead.begin(from, bytes(lanes), bytes(o.ld), terms, steps);
  else
    ahead.begin(from, bytes(terms), bytes(o.ld), lanes, steps);
}

/// The tile of 16 lanes from `lane` on and the terms from k on.
inline void pack_tile(const Operand& o, int64_t lane, int64_t k, uint16_t* tile) {
  const void* from = offset(o.from, o.dtype, o.lanes_adjoin ? k * o.ld + lane : lane * o.ld + k);
  const int64_t lanes = std::min<int64_t>(kTileRows, o.lanes - lane);
  const int64_t terms = std::min<int64_t>(tile_terms(o.dtype), o.terms - k);
  if (o.dtype == DType::i8) {
    const Int8Kernels& kernels = int8_kernels();
    (o.right ? kernels.right_tile : kernels.left_tile)(static_cast<const int8_t*>(from), o.ld,
                                                       o.lanes_adjoin, lanes, terms, tile);
  } else {
    const AmxKernels& kernels = amx_kernels();
    (o.right ? kernels.right_tile : kernels.left_tile)(static_cast<const uint16_t*>(from), o.ld,
                                                       o.lanes_adjoin, lanes, terms, tile);
  }
}

/// Both tiles of panel p and the terms of tile t.
inline void pack_pair(const Operand& o, int64_t p, int64_t t, uint16_t* out) {
  if (o.packed != nullptr) {
    std::memcpy(out, o.packed + p * o.packed_panel + t * 2 * kTile, 2 * kTile * sizeof(uint16_t));
    return;
  }
  const int64_t end = std::min(o.lanes, (p + 1) * kPanel);
  for (int64_t lane = p * kPanel; lane < end; lane += kTileRows, out += kTile)
    pack_tile(o, lane, t * tile_terms(o.dtype), out);
}

/// Packs tile t of panels [p0, p1), the first of which begins at `out`.
inline void pack_across(const Operand& o, int64_t p0, int64_t p1, int64_t t, Ahead& ahead,
                        uint16_t* out) {
  for (int64_t p = p0; p < p1; ++p) {
    ahead.fetch(1);
    pack_pair(o, p, t, out + (p - p0) * o.panel_words() + t * 2 * kTile);
  }
}

/// Packing is shared out in units that read long runs of memory: where lanes adjoin, one tile of
/// terms of kGroup panels, else a panel.
inline constexpr int64_t kGroup = 16;
inline int64_t panel_groups(const Operand& o) { return ceil_div(o.panels(), kGroup); }
inline int64_t pack_units(const Operand& o) {
  return o.lanes_adjoin ? o.tiles() * panel_groups(o) : o.panels();
}
/// `out`: of the whole operand. `next`: the unit that this thread will probably pack next.
inline void pack_unit(const Operand& o, int64_t unit, int64_t next, uint16_t* out) {
  Ahead ahead;
  if (!o.lanes_adjoin) {
    constexpr int64_t kDistance = 2;  // tiles
    for (int64_t t = 0; t < o.tiles(); ++t) {
      if (t + kDistance < o.tiles())
        look_ahead(o, unit, 1, t + kDistance, 1, 1, ahead);
      else if (next < o.panels())
        look_ahead(o, next, 1, std::min(kDistance, o.tiles()) - (o.tiles() - t), 1, 1, ahead);
      pack_across(o, unit, unit + 1, t, ahead, out + unit * o.panel_words());
    }
    return;
  }
  struct Place {
    int64_t begin, end, t;  // panels
  };
  const auto place = [&](int64_t u) {
    const int64_t p = u % panel_groups(o) * kGroup;
    return Place{p, std::min(o.panels(), p + kGroup), u / panel_groups(o)};
  };
  const Place here = place(unit);
  if (next < pack_units(o)) {
    const Place there = place(next);
    look_ahead(o, there.begin, there.end - there.begin, there.t, 1, here.end - here.begin, ahead);
  }
  pack_across(o, here.begin, here.end, here.t, ahead, out + here.begin * o.panel_words());
}

/// The terms of an operand whose lanes are summed (GemmTermSums), from term k0 of all: shared out
/// by chunk of terms and by the lanes that pack_unit() takes together.
class TermSums {
 public:
  /// `lane0`, `k0`: where the operand begins in the whole one.
  TermSums(const GemmArgs& g, const Operand& o, int64_t lane0, int64_t k0)
      : sums_(g.sums), o_(o), lane0_(lane0), k0_(k0) {
    if (sums_.partials == nullptr) return;
    first_chunk_ = k0 / sums_.terms;
    chunks_ = ceil_div(k0 + o.terms, sums_.terms) - first_chunk_;
  }
  int64_t units() const { return chunks_ * panel_groups(o_); }

  /// Sums the lanes of a unit and, unless `out` is null, packs the tiles that begin in its chunk:
  /// what has just been packed is in a near cache.
  void run(int64_t unit, uint16_t* out) const {
    const int64_t chunk = first_chunk_ + unit / panel_groups(o_);
    const int64_t p = unit % panel_groups(o_) * kGroup;
    const int64_t begin = std::max<int64_t>(0, chunk * sums_.terms - k0_);
    const int64_t end = std::min(o_.terms, (chunk + 1) * sums_.terms - k0_);
    bool add = chunk * sums_.terms < k0_;  // the part before belongs to what was packed before
    int64_t row = begin;
    const int64_t lane = p * kPanel, lanes = std::min(kGroup * kPanel, o_.lanes - lane);
    const auto sum_up_to = [&](int64_t last) {
      if (last > row) add_rows(chunk, lane, lanes, row, last, std::exchange(add, true));
      row = std::max(row, last);
    };
    if (out != nullptr) {
      const int64_t panels = std::min(o_.panels(), p + kGroup);
      for (int64_t t = ceil_div(begin, kTileBf16); t < ceil_div(end, kTileBf16); ++t) {
        Ahead ahead;
        if (t + 1 < o_.tiles()) look_ahead(o_, p, panels - p, t + 1, 1, panels - p, ahead);
        pack_across(o_, p, panels, t, ahead, out + p * o_.panel_words());
        sum_up_to(std::min<int64_t>(end, (t + 1) * kTileBf16));
      }
    }
    sum_up_to(end);
  }

  /// Adds the terms of tile t of panel p: every tile once, in the order of terms.
  void add_tile(int64_t p, int64_t t) const {
    const int64_t lane = p * kPanel, lanes = std::min(kPanel, o_.lanes - lane);
    const int64_t end = std::min<int64_t>(o_.terms, (t + 1) * kTileBf16);
    for (int64_t row = t * kTileBf16; row < end;) {
      const int64_t chunk = (k0_ + row) / sums_.terms;
      const int64_t last = std::min(end, (chunk + 1) * sums_.terms - k0_);
      add_rows(chunk, lane, lanes, row, last, k0_ + row > chunk * sums_.terms);
      row = last;
    }
  }

 private:
  void add_rows(int64_t chunk, int64_t lane, int64_t lanes, int64_t row, int64_t end,
                bool add) const {
    reduction_rows(Fold::kSum, DType::bf16)
        .columns(offset(o_.from, o_.dtype, row * o_.ld + lane), end - row, o_.ld,
                 sums_.partials + chunk * sums_.ld + lane0_ + lane, lanes, add);
  }

  const GemmTermSums& sums_;
  const Operand& o_;
  int64_t lane0_, k0_, first_chunk_ = 0, chunks_ = 0;
};

}  // namespace brrr::cpu::tile_packing
