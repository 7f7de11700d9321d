#pragma once
// Operands of gemm_tiles.cpp, packed into tiles (amx_tiles.h): panels of 32 lanes, rows of A or
// columns of B, each a run of pairs of tiles; and sums over their terms, made on the way.

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/gemm_amx_kernels.h"
#include "backend/cpu/gemm_blocks.h"
#include "backend/cpu/gemm_int8.h"
#include "backend/cpu/reduction_rows.h"

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
  int64_t panels() const { return ceil_div(lanes, kPanel); }
  int64_t panel_words() const { return tiles() * 2 * kTile; }
};

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

/// Packs tiles [t0, t1) of panels [p0, p1); `out` is where panel p0 begins.
inline void pack_panels(const Operand& o, int64_t p0, int64_t p1, int64_t t0, int64_t t1,
                        uint16_t* out) {
  for (int64_t t = t0; t < t1; ++t) {
    for (int64_t p = p0; p < p1; ++p)
      pack_pair(o, p, t, out + (p - p0) * o.panel_words() + t * 2 * kTile);
  }
}

/// Packing is shared out in units that read long runs of memory.
inline int64_t pack_units(const Operand& o) {
  return o.lanes_adjoin ? o.tiles() * ceil_div(o.panels(), 16) : o.panels();
}
inline void pack_unit(const Operand& o, int64_t unit, uint16_t* out) {
  if (!o.lanes_adjoin) {
    return pack_panels(o, unit, unit + 1, 0, o.tiles(), out + unit * o.panel_words());
  }
  const int64_t groups = ceil_div(o.panels(), 16), p = unit % groups * 16, t = unit / groups;
  pack_panels(o, p, std::min(o.panels(), p + 16), t, t + 1, out + p * o.panel_words());
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
  int64_t units() const { return chunks_ * groups(); }

  /// Sums the lanes of a unit and, unless `out` is null, packs the tiles that begin in its chunk:
  /// what has just been packed is in a near cache.
  void run(int64_t unit, uint16_t* out) const {
    const int64_t chunk = first_chunk_ + unit / groups(), p = unit % groups() * kGroup;
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
        pack_panels(o_, p, panels, t, t + 1, out + p * o_.panel_words());
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
  static constexpr int64_t kGroup = 16;  // panels
  int64_t groups() const { return ceil_div(o_.panels(), kGroup); }
  void add_rows(int64_t chunk, int64_t lane, int64_t lanes, int64_t row, int64_t end,
                bool add) const {
    reduction_rows(Fold::kSum, true)
        .columns(offset(o_.from, o_.dtype, row * o_.ld + lane), end - row, o_.ld,
                 sums_.partials + chunk * sums_.ld + lane0_ + lane, lanes, add);
  }

  const GemmTermSums& sums_;
  const Operand& o_;
  int64_t lane0_, k0_, first_chunk_ = 0, chunks_ = 0;
};

}  // namespace brrr::cpu::tile_packing
