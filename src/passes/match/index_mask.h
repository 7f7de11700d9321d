#pragma once
// Reads a boolean value over [..., T, S] (queries by keys) that was made by comparing positions:
// whether it is the causal mask, a window or a limit of the keys, whatever way the comparison is
// written.

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace brrr {

/// The number that every element of v is, when that is known: constants and arithmetic of them, of
/// up to so many nodes.
inline constexpr int kMostConstantNodes = 32;
std::optional<double> constant_of(const Graph& graph, ValueId v);

/// A boolean value, or its negation.
struct Condition {
  ValueId value;
  bool inverted = false;
};

/// Conditions that together are the given one: conjunctions and negations opened, reshapes that
/// only add leading axes removed.
std::vector<Condition> conjuncts(const Graph& graph, Condition condition);

/// Whether it is true everywhere: constants, and comparisons that hold for all positions.
bool always_holds(const Graph& graph, Condition condition);

/// An i32 value: constant + factor * value.
struct IndexLimit {
  int64_t constant = 0;
  int64_t factor = 0;  // 0: no value
  ValueId value;       // [..., 1, 1] or one element
};

struct IndexMask {
  enum class Kind { causal, lengths, window } kind;
  IndexLimit
      limit;  // causal: key <= query + limit; lengths: key < limit; window: key >= query + limit
};

/// nullopt when it is none of them. `queries` is T: a single query has position 0.
std::optional<IndexMask> index_mask(const Graph& graph, Condition condition, int64_t queries);

}  // namespace brrr
