// Which masks of a candidate are causal ones, windows and lengths, and which stay tensors.

#include <algorithm>

#include "passes/match/attention_candidate.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// Whether the limit is the same for all heads of a sequence.
bool is_per_sequence(const Graph& g, const IndexLimit& limit) {
  if (limit.factor == 0) return true;
  const Shape& shape = g.type(limit.value).shape;
  return shape.rank() < 3 || shape[-3] == Dim(1);
}

/// The window that the two limits make: keys from query + first on, up to query + last.
int64_t window_of(const IndexLimit& last, const IndexLimit& first) {
  const bool same = last.factor == first.factor && (last.factor == 0 || last.value == first.value);
  return same ? std::max<int64_t>(0, last.constant - first.constant + 1) : 0;
}

}  // namespace

MaskPlan plan_masks(const Graph& g, const AttentionCandidate& c) {
  MaskPlan plan;
  plan.addends = c.addends;
  const int64_t queries = g.type({c.product, 0}).shape.size(-2);
  const int64_t keys = g.type(c.v).shape.size(c.transpose_v ? -1 : -2);
  std::vector<Masking> finite;
  std::vector<Condition> windows;
  auto take = [&](Condition condition) {
    const auto found = index_mask(g, condition, queries);
    if (found && is_per_sequence(g, found->limit)) {
      auto& place = found->kind == IndexMask::Kind::lengths  ? plan.lengths
                    : found->kind == IndexMask::Kind::causal ? plan.causal
                                                             : plan.first_key;
      if (!place) {
        place = found->limit;
        if (found->kind == IndexMask::Kind::window) windows.push_back(condition);
        return;
      }
    }
    plan.conditions.push_back(condition);
  };
  for (const Masking& m : c.maskings) {
    if (std::isinf(m.value))
      for (const Condition& part : conjuncts(g, m.condition)) {
        if (!always_holds(g, part)) take(part);
      }
    else
      finite.push_back(m);
  }
  // A finite value differs from -inf only in a row that sees nothing; under the causal mask alone,
  // or a window that ends with the query's own key, every query sees a key. A position that the
  // graph reads is taken to be 0 or more.
  if (finite.size() == 1 && c.maskings.size() == 1 && c.addends.empty()) {
    const auto parts = conjuncts(g, finite[0].condition);
    std::optional<IndexLimit> causal, first_key;
    bool all = true;
    for (const Condition& part : parts) {
      const auto found = index_mask(g, part, queries);
      auto* place = !found || !is_per_sequence(g, found->limit)            ? nullptr
                    : found->kind == IndexMask::Kind::causal && !causal    ? &causal
                    : found->kind == IndexMask::Kind::window && !first_key ? &first_key
                                                                           : nullptr;
      all = all && place != nullptr;
      if (place != nullptr) *place = found->limit;
    }
    if (all && causal && causal->constant >= 0 && causal->factor >= 0) {
      const int64_t window = first_key ? window_of(*causal, *first_key) : 0;
      const bool sees_itself = causal->factor == 0 && causal->constant + queries <= keys;
      if (!first_key || (window > 0 && sees_itself)) {
        plan.causal = causal;
        plan.window = window;
        return plan;
      }
    }
  }
  if (plan.first_key && plan.causal) {
    plan.window = window_of(*plan.causal, *plan.first_key);
    if (plan.window == 0) plan.conditions.push_back(windows[0]);
  } else if (plan.first_key) {
    plan.window = 1;  // and the position is the limit
  }
  for (const Masking& m : finite) {
    if (m.added) {  // a sum stays a sum
      plan.addends.push_back({m.addend, m.factor});
      continue;
    }
    if (plan.masked != -INFINITY && plan.masked != m.value)
      plan.reason = "it is masked by different numbers";
    plan.masked = m.value;
    plan.conditions.push_back(m.condition);
  }
  // A number replaces scores before -inf hides some of them, as attention does it, or not at all.
  const auto first_finite = std::find_if(c.maskings.begin(), c.maskings.end(),
                                         [](const Masking& m) { return std::isfinite(m.value); });
  const bool inside = std::all_of(first_finite, c.maskings.end(),
                                  [](const Masking& m) { return std::isfinite(m.value); });
  if (plan.masked != -INFINITY &&
      (!inside || !plan.addends.empty() || plan.conditions.size() != finite.size()))
    plan.reason = fmt::format("a mask of {} is mixed with others", plan.masked);
  return plan;
}

}  // namespace brrr
