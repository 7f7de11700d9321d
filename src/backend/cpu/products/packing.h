#pragma once
// What the products and updates of a program pack outside the arena.

#include <cstdint>

#include "backend/cpu/products/gemm.h"
#include "ir/graph.h"

namespace brrr::cpu {

struct Packing {
  GemmPanels panels;  // what f32 products keep
  GemmTiles tiles;    // what those of bf16 and int8 keep
  int64_t rows = 0;   // each thread's, of an update whose copies go into panels
  void operator+=(const Packing& other);
  /// About what becomes resident for products like these.
  int64_t bytes() const;
};
Packing packing_of(const Graph& graph);

}  // namespace brrr::cpu
