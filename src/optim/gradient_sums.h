#pragma once
// The gradients of a step: summed over micro-batches in memory, and over ranks by collectives.

#include "optim/updates.h"

namespace brrr::optim {

/// Replaces the gradients of the group by their sums so far, where the step ends by those of all
/// micro-batches of all ranks; of parameters in shards, by this rank's shard of the sum.
void sum_gradients(Graph& graph, Group& group, const GradientSums& sums);

/// The norm of all gradients together, whose bits are the same for any number of ranks.
Value norm_of_shards(const Group& group, const GradientSums& sums);

}  // namespace brrr::optim
