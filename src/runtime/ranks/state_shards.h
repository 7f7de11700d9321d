#pragma once
// Converts between the shards that ranks hold of a state (ops/ranks/collectives.h) and the whole
// tensor that files hold.

#include <optional>
#include <span>
#include <vector>

#include "ops/ranks/collectives.h"
#include "runtime/engine.h"
#include "runtime/ranks/communicator.h"

namespace brrr {

/// Whether checkpoints hold the state: it is a parameter, or kept between steps by the optimizer.
bool is_in_checkpoint(const StateInfo& state);

/// The type of the whole tensor if the state holds a shard of it; nothing otherwise.
std::optional<Type> whole_type(const StateInfo& state);

/// Which elements of the whole tensor the shard of `rank` holds.
ShardRange range_of_shard(const StateInfo& state, int64_t rank);

/// Copies the part of a whole tensor that belongs to `rank` into its shard, and zeros into the
/// padding behind it.
void copy_shard(const StateInfo& state, std::span<const std::byte> whole, int64_t rank,
                std::span<std::byte> shard);

/// Gathers the whole tensor of a state on rank 0; the other ranks get an empty span for a shard.
/// Every rank must call it for the same state. `room` holds the tensor if it is not the state's own
/// memory. `communicator` is null in a run of one rank.
std::span<const std::byte> read_whole(const Engine& engine, const StateInfo& state,
                                      Communicator* communicator, std::vector<std::byte>& room);

}  // namespace brrr
