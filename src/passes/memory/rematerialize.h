#pragma once
// Rematerialisation: forward values that the backward pass reads are kept, or thrown away and
// computed again when it comes to them. Results are the same to the bit under every policy.

#include <cstdint>
#include <functional>
#include <string_view>

#include "passes/memory/cost_model.h"
#include "passes/passes.h"

namespace brrr {

enum class RematPolicy {
  none,       // every value that the backward pass reads is kept
  all,        // as few bytes as one more forward pass can buy: only restart points are kept
  blocks,     // each numbered layer ("h.3") keeps what enters it and runs again
  automatic,  // the cheapest that holds the budget; without one, what costs little
};
/// "none", "all", "blocks", "auto".
std::string_view name_of(RematPolicy policy);
RematPolicy remat_policy(std::string_view name);

struct Rematerialize {
  RematPolicy policy = RematPolicy::none;
  /// Of `auto`: the most bytes that forward values, kept or computed again, may hold at one time.
  /// 0: no budget.
  int64_t budget_bytes = 0;
  Rates rates;
  bool operator==(const Rematerialize&) const = default;
};

/// After differentiate and everything that merges equal nodes or replaces ops, before fuse. A
/// forward node that runs again is a copy in the scope "recompute:<scope>"; an `after` holds it
/// back until the gradient that it serves is there. Nodes of the scopes "backward:..." are the
/// backward pass. Throws UserError (exit 3) when no choice holds the budget.
/// `finish` is what comes after it: where given, the budget holds for the finished graph.
using Finish = std::function<Graph(const Graph&)>;
Graph rematerialize(const Graph& graph, const Rematerialize& options, Notes* notes = nullptr,
                    const Finish& finish = nullptr);

/// The most bytes that forward values of a training graph and their copies hold at one time when
/// its nodes run in their order: what a budget is for. Inputs, parameters, constants, and what is
/// computed from these two alone do not count.
int64_t activation_bytes(const Graph& graph);

}  // namespace brrr
