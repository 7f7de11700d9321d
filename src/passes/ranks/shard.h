#pragma once
// The placement of parameters on ranks (ZeRO, Rajbhandari et al. 2020).

#include "passes/passes.h"

namespace brrr {

/// Among how many ranks the state of training is divided, and which part of it.
struct Sharding {
  int64_t ranks = 1;
  int zero = 0;  // 0: nothing; 1: states of optimizers; 2: gradients, too; 3: parameters, too
  bool divides() const { return ranks > 1 && zero > 0; }
};

/// Parameters of fewer elements are not divided: their shards would be padding.
inline constexpr int64_t kLeastSharded = 4096;

/// Every large parameter that is trained becomes an input that holds a rank's shard, under its
/// name, and what read it reads all_gather of the shard; a cast to fewer bits happens in front of
/// that. Up to stage 2 the gathered weights are `kept` from step to step: derive_weights makes
/// inputs of them, and the update gathers them again. At stage 3 they are gathered where they are
/// used, for the backward pass a second time. What is computed from a shard's gradient, norm and
/// update, is the optimizer's (optim/gradient_sums.h). After autocast and differentiate, before the
/// optimizer. Results stay bit-identical.
Graph shard(const Graph& graph, const Sharding& sharding, Notes* notes = nullptr);

}  // namespace brrr
