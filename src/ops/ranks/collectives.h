#pragma once
// Shards: how a tensor is divided among ranks, and the blocks whose sums of squares make a norm
// that does not depend on the number of ranks.

#include <algorithm>
#include <cstdint>

#include "base/integers.h"
#include "base/shape.h"

namespace brrr {

struct Node;

/// Elements of a block: shards begin at multiples of it, and block_squares sums over one.
inline constexpr int64_t kShardBlock = 1024;

/// Elements of each rank's shard of a tensor of `elements`: whole blocks, the same on all ranks.
/// What the shards of the last ranks have beyond the tensor is zeros.
constexpr int64_t shard_elements(int64_t elements, int64_t ranks) {
  return round_up(ceil_div(elements, ranks), kShardBlock);
}

/// The part of a tensor that a rank's shard holds: elements [begin, end), perhaps none.
struct ShardRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
constexpr ShardRange shard_range(int64_t elements, int64_t rank, int64_t ranks) {
  const int64_t each = shard_elements(elements, ranks);
  return {std::min(elements, rank * each), std::min(elements, (rank + 1) * each)};
}

/// Whether a node exchanges with other ranks. All ranks have to run such nodes in the same order.
bool is_collective(const Node& node);

/// Attributes of an input that holds a rank's shard of a tensor: the tensor's shape, and among how
/// many ranks it is divided.
inline constexpr std::string_view kShardOf = "shard_of", kShardRanks = "shard_ranks";

}  // namespace brrr
