#include "backend/cpu/products/panel_rows.h"

#include "backend/cpu/simd/simd_types.h"  // before Highway's headers

// Apart, so that it stays behind.
#include <hwy/cache_control.h>

#include <algorithm>

#include "base/threads/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/panel_rows.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// The numbers of a panel's 32 terms, from the L1 cache to memory.
HWY_INLINE void stream_tile(const uint16_t* from, uint16_t* to) {
  const DU du;
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  for (int64_t i = 0; i < kPanelTile / 2; i += kLanes)
    hn::Stream(hn::Load(du, words + i), du, reinterpret_cast<uint32_t*>(to) + i);
}

/// make(half, to) writes 16 columns.
template <typename Make>
HWY_INLINE void put_tile(bool past_caches, uint16_t* to, Make&& make) {
  alignas(64) uint16_t near[kPanelTile];
  uint16_t* tile = past_caches ? near : to;
  for (int64_t half = 0; half < 2; ++half) make(half, tile + half * kPanelHalf);
  if (past_caches) stream_tile(near, to);
}

bool begins_at_line(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

void put(const uint16_t* rows, int64_t ld, int64_t columns, const PanelRows& to) {
  const bool past_caches =
      to.past_caches && begins_at_line(to.panels) && begins_at_line(to.transposed);
  for (int64_t j = 0; j < columns; j += kPanelColumns) {
    const uint16_t* from = rows + j;
    if (to.panels != nullptr)
      put_tile(past_caches, to.panels + j / kPanelColumns * to.panel,
               [&](int64_t half, uint16_t* tile)
                   BRRR_INLINE_BODY { pair_rows(from + 16 * half, ld, tile); });
    if (to.transposed != nullptr)
      put_tile(past_caches, to.transposed + j / kPanelTerms * kPanelTile,
               [&](int64_t half, uint16_t* tile)
                   BRRR_INLINE_BODY { transpose_tile(from + 16 * half * ld, ld, tile); });
  }
  if (past_caches) hwy::FlushStream();
}

/// The panel tile of 32 terms and 32 columns as that of 32 columns and 32 terms.
void turn(const uint16_t* from, uint16_t* to) {
  constexpr int64_t kHalf = kPanelColumns / 2;
  alignas(64) uint16_t rows[kPanelTile];  // a row is a column's terms
  for (int64_t half = 0; half < 2; ++half)
    transpose_tile(from + half * kPanelHalf, kPanelTerms, rows + half * kPanelHalf);
  for (int64_t half = 0; half < 2; ++half)
    pair_rows(rows + half * kHalf, kPanelTerms, to + half * kPanelHalf);
}

}  // namespace

using PutFunction = void (*)(const uint16_t*, int64_t, int64_t, const PanelRows&);
PutFunction put_function() { return &put; }
using TurnFunction = void (*)(const uint16_t*, uint16_t*);
TurnFunction turn_function() { return &turn; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {

HWY_EXPORT(put_function);
void put_into_panels(const uint16_t* rows, int64_t ld, int64_t columns, const PanelRows& to) {
  HWY_DYNAMIC_DISPATCH(put_function)()(rows, ld, columns, to);
}

HWY_EXPORT(turn_function);
void turn_panels(const uint16_t* panels, int64_t terms, int64_t first, int64_t count,
                 uint16_t* to) {
  constexpr int64_t kPanelsAtOnce = 4;
  const auto turn = HWY_DYNAMIC_DISPATCH(turn_function)();
  const int64_t tiles = ceil_div(terms, kPanelTerms), of_columns = count / kPanelColumns;
  const uint16_t* const from = panels + first / kPanelColumns * tiles * kPanelTile;
  parallel_for(of_columns, kPanelsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t term = 0; term < tiles; ++term)
        turn(from + (column * tiles + term) * kPanelTile,
             to + (term * of_columns + column) * kPanelTile);
  });
}

void pad_with_zeros(uint16_t* part, int64_t ld, int64_t rows, int64_t columns) {
  const int64_t room = round_up(columns, kPanelColumns);
  for (int64_t i = 0; i < kPanelTerms; ++i)
    std::fill(part + i * ld + (i < rows ? columns : 0), part + i * ld + room, uint16_t{0});
}

PanelRows PanelPlaces::at(int64_t row, int64_t column) const {
  PanelRows to;
  to.past_caches = past_caches;
  const int64_t panel_words = ceil_div(rows, kPanelTerms) * kPanelTile;
  const int64_t transposed_words = ceil_div(columns, kPanelTerms) * kPanelTile;
  if (panels != nullptr) {
    to.panels = panels + column / kPanelColumns * panel_words + row / kPanelTerms * kPanelTile;
    to.panel = panel_words;
  }
  if (transposed != nullptr)
    to.transposed =
        transposed + row / kPanelColumns * transposed_words + column / kPanelTerms * kPanelTile;
  return to;
}

}  // namespace brrr::cpu
#endif
