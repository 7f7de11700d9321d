#pragma once
// A broadcast iteration as rows: dimensions merged as far as every operand's strides allow, the
// last one is the row, along which each operand is contiguous or one repeated value.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads/parallel.h"
#include "ir/graph.h"

namespace brrr::cpu {

inline constexpr size_t kMaxOperands = 3;

struct RowSpace {
  using Offsets = std::array<int64_t, kMaxOperands>;

  int64_t elements = 0;
  int64_t row = 1;                            // elements of a row
  std::vector<int64_t> sizes;                 // of the dimensions outside the row, outermost first
  std::vector<Offsets> strides;               // of the operands along them, in elements
  std::array<bool, kMaxOperands> repeated{};  // along the row

  /// Operands that broadcast to `out`; at most kMaxOperands.
  RowSpace(const Shape& out, std::span<const Type> in);

  /// body(offset in the result, offsets of the operands, count) for every stretch of a row that
  /// lies in the elements [begin, end) of the result.
  template <typename Body>
  void each_row(int64_t begin, int64_t end, Body&& body) const {
    if (sizes.empty()) {
      Offsets at{};
      for (size_t k = 0; k < kMaxOperands; ++k) at[k] = repeated[k] ? 0 : begin;
      if (begin < end) body(begin, at, end - begin);
      return;
    }
    // Called for every tile: no allocation in all but the strangest shapes.
    constexpr size_t kFew = 8;
    std::array<int64_t, kFew> few{};
    std::vector<int64_t> many(sizes.size() > kFew ? sizes.size() : 0);
    int64_t* const index = many.empty() ? few.data() : many.data();
    Offsets base{};
    int64_t rest = begin / row, column = begin % row;
    for (size_t d = sizes.size(); d-- > 0;) {
      index[d] = rest % sizes[d];
      rest /= sizes[d];
      for (size_t k = 0; k < kMaxOperands; ++k) base[k] += index[d] * strides[d][k];
    }
    while (begin < end) {
      const int64_t count = std::min(row - column, end - begin);
      Offsets at = base;
      for (size_t k = 0; k < kMaxOperands; ++k) at[k] += repeated[k] ? 0 : column;
      body(begin, at, count);
      begin += count;
      column = 0;
      for (size_t d = sizes.size(); d-- > 0;) {
        for (size_t k = 0; k < kMaxOperands; ++k) base[k] += strides[d][k];
        if (++index[d] < sizes[d]) break;
        index[d] = 0;
        for (size_t k = 0; k < kMaxOperands; ++k) base[k] -= sizes[d] * strides[d][k];
      }
    }
  }
};

/// Below two grains an element-wise kernel runs on the calling thread: waking the team costs 3 to 5
/// us.
inline constexpr int64_t kElementGrain = 16384;

/// body(begin, end) over [0, elements) in parts that start at multiples of 64 elements (no two
/// threads write one cache line) and hold at least `grain` elements.
template <typename Body>
void parallel_elements(int64_t elements, int64_t grain, Body&& body) {
  constexpr int64_t kUnit = 64;
  parallel_for(
      (elements + kUnit - 1) / kUnit, std::max<int64_t>(1, grain / kUnit),
      [&](int64_t begin, int64_t end) { body(begin * kUnit, std::min(end * kUnit, elements)); });
}

}  // namespace brrr::cpu
