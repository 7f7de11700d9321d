#pragma once
// States of which each rank holds a shard (ops/ranks/collectives.h), as whole tensors: what files
// have.

#include <optional>
#include <span>
#include <vector>

#include "ops/ranks/collectives.h"
#include "runtime/engine.h"
#include "runtime/ranks/communicator.h"

namespace brrr {

/// The type of the tensor of which the state holds a shard; nothing: it holds a whole tensor.
std::optional<Type> whole_type(const StateInfo& state);

/// The elements of the whole tensor that a rank's shard holds.
ShardRange range_of_shard(const StateInfo& state, int64_t rank);

/// Copies rank `rank`'s part of a whole tensor; what the shard has beyond it becomes zeros.
void copy_shard(const StateInfo& state, std::span<const std::byte> whole, int64_t rank,
                std::span<std::byte> shard);

/// The whole tensor of a state on the first rank, nothing of a shard on the others; called by all
/// ranks for the same state. `room` holds it where it is not the state's own memory. null: a run of
/// one rank.
std::span<const std::byte> read_whole(const Engine& engine, const StateInfo& state,
                                      Communicator* communicator, std::vector<std::byte>& room);

}  // namespace brrr
