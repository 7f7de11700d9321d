#include "runtime/ranks/state_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace brrr {
namespace {

/// The part of a whole tensor that a rank's shard holds. Shards of all ranks are equally long.
ShardRange range_of(const StateInfo& state, const Type& whole, int64_t rank) {
  const int64_t each = state.type.shape.elements(), all = whole.shape.elements();
  return {std::min(all, rank * each), std::min(all, (rank + 1) * each)};
}

}  // namespace

bool is_in_checkpoint(const StateInfo& state) {
  return state.kind() == InputKind::parameter || is_kept_between_steps(state.role);
}

std::optional<Type> whole_type(const StateInfo& state) {
  const AttrValue* const whole = state.attrs.find(kShardOf);
  if (whole == nullptr) return std::nullopt;
  return Type{state.type.dtype, std::get<Shape>(*whole)};
}

ShardRange range_of_shard(const StateInfo& state, int64_t rank) {
  return range_of(state, *whole_type(state), rank);
}

void copy_shard(const StateInfo& state, std::span<const std::byte> whole, int64_t rank,
                std::span<std::byte> shard) {
  const ShardRange part = range_of(state, *whole_type(state), rank);
  const int64_t element = bytes_of(state.type.dtype);
  const auto bytes = static_cast<size_t>(part.size() * element);
  std::memcpy(shard.data(), whole.data() + part.begin * element, bytes);
  std::memset(shard.data() + bytes, 0, shard.size() - bytes);
}

std::span<const std::byte> read_whole(const Engine& engine, const StateInfo& state,
                                      Communicator* communicator, std::vector<std::byte>& room) {
  const std::optional<Type> whole = whole_type(state);
  if (!whole) return engine.read_state(state.name, room);
  BRRR_CHECK(communicator != nullptr, "{} is a shard in a run of one rank", state.name);
  std::vector<std::byte> copy;
  const std::span<const std::byte> shard = engine.read_state(state.name, copy);
  const int64_t element = bytes_of(state.type.dtype);
  const auto bytes_of_rank = [&](int64_t rank) {
    const ShardRange part = range_of(state, *whole, rank);
    return std::pair(part.begin * element, part.size() * element);
  };
  const bool is_first = communicator->rank() == 0;
  room.resize(is_first ? static_cast<size_t>(whole->bytes()) : 0);
  communicator->run([&](Transport& t) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    const int64_t own = bytes_of_rank(t.rank()).second;
    if (is_first) {
      std::memcpy(room.data(), shard.data(), static_cast<size_t>(own));
      for (int peer = 1; peer < t.ranks(); ++peer)
        if (const auto [at, bytes] = bytes_of_rank(peer); bytes > 0)
          in.push_back({peer, room.data() + at, bytes});
    } else if (own > 0) {
      out.push_back({0, shard.data(), own});
    }
    t.exchange(out, in);
  });
  return room;
}

}  // namespace brrr
