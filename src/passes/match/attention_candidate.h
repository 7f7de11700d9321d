#pragma once
// A softmax that may be attention, as match_attention takes it apart from the outside, and how its
// masks become operands of attention.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "passes/match/index_mask.h"

namespace brrr {

/// Scores are `value` where the condition does not hold.
struct Masking {
  Condition condition;
  double value = 0;
  bool added = false;   // written as scores + (condition ? 0 : value)
  ValueId addend = {};  // then: what was added,
  double factor = 1;    // times this
};
struct Addend {
  ValueId value;
  double factor;
};

/// Rows of probabilities that are 0 instead: those of queries that see no key.
struct RowGuard {
  std::optional<Condition> rows;  // [..., T, 1]: which; nothing: those that are no numbers
};

/// A softmax that may be attention, as it is taken apart from the outside.
struct AttentionCandidate {
  NodeId product = kNoNode;  // probabilities times v
  NodeId reader =
      kNoNode;  // the transpose that gives y as [..., T, H, Dv], if nothing else reads y
  const Node* dropout = nullptr;
  std::vector<RowGuard> guards;
  ValueId q, k, v;
  bool transpose_q = false, transpose_k = false, transpose_v = false;
  double scale = 1;
  std::vector<Masking> maskings;
  std::vector<Addend> addends;
  std::string reason;  // why it is none; empty: it is
};

/// How the masks of a candidate become operands of attention; may find that they cannot.
struct MaskPlan {
  std::optional<IndexLimit> causal, lengths;
  std::optional<IndexLimit> first_key;  // key >= query + limit
  int64_t window = 0;
  std::vector<Condition> conditions;  // what is left: all must hold
  std::vector<Addend> addends;
  double masked = -INFINITY;
  std::string reason;
};

MaskPlan plan_masks(const Graph& graph, const AttentionCandidate& candidate);

}  // namespace brrr
