#pragma once
// How each policy of rematerialize chooses what runs again.

#include <optional>

#include "passes/memory/recomputation.h"
#include "passes/memory/rematerialize.h"

namespace brrr {

/// Predicted time of the copies, element-wise ones joined with what reads them.
double copy_seconds(const Recomputation& r, const Rates& rates, const Recomputation::Choice& again);

/// Places in the order of the nodes where few bytes pass from the nodes up to there to those after:
/// good places to start again from. Ascending.
std::vector<NodeId> narrow_places(const Recomputation& r);

/// All forward nodes but those whose results pass one of the places.
Recomputation::Choice all_between(const Recomputation& r, const std::vector<NodeId>& places);

/// Of several sets of places, the one whose all_between holds the fewest bytes; of those that are
/// as good, the fastest.
Recomputation::Choice fewest_bytes(const Recomputation& r, const Rates& rates);

/// The fastest choice that holds the budget, if one does.
std::optional<Recomputation::Choice> cheapest(const Recomputation& r, const Rates& rates,
                                              int64_t budget_bytes);
/// What costs little for the bytes that it frees.
Recomputation::Choice balanced(const Recomputation& r, const Rates& rates);

/// All nodes of numbered blocks but those that another block, or none, reads.
Recomputation::Choice within_blocks(const Recomputation& r);

}  // namespace brrr
