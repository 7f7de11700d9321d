#pragma once
// How collectives divide tensors among ranks, and how many bytes each rank sends. The kernels of
// collectives (runtime/ranks/collectives.h) follow it, and plans count by it.

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ops/ranks/collectives.h"

namespace brrr {

/// Elements that a rank receives from each other rank in one exchange of a sum.
inline constexpr int64_t kExchanged = int64_t{64} << 10;

/// How the elements of tensors are divided among ranks, and by which exchanges they are sent.
class Division {
 public:
  /// A piece of one tensor, at the same offset in the part of each rank.
  struct Piece {
    size_t tensor = 0;
    int64_t offset = 0;  // within a rank's part
    int64_t count = 0;   // elements; fewer at the end of the tensor
  };

  /// Parts are multiples of `multiple` elements.
  Division(std::span<const Type> tensors, int64_t ranks, int64_t multiple);

  int64_t ranks() const { return ranks_; }
  const std::vector<std::vector<Piece>>& exchanges() const { return exchanges_; }
  size_t tensors() const { return elements_.size(); }
  /// The elements of a piece in the part of `rank`.
  ShardRange range(const Piece& p, int64_t rank) const {
    const int64_t begin = rank * each_[p.tensor] + p.offset, all = elements_[p.tensor];
    return {std::min(all, begin), std::min(all, begin + p.count)};
  }
  /// The elements of a tensor in the part of `rank`.
  ShardRange part(size_t tensor, int64_t rank) const {
    return range({tensor, 0, each_[tensor]}, rank);
  }
  int64_t each(size_t tensor) const { return each_[tensor]; }
  int64_t elements(size_t tensor) const { return elements_[tensor]; }

 private:
  int64_t ranks_;
  std::vector<int64_t> elements_, each_;
  std::vector<std::vector<Piece>> exchanges_;
};

/// The division of a collective's operands or, if it gathers, of its results.
Division division_of(const Graph& graph, NodeId id);

/// What one rank sends to all others in total during a collective.
struct Sent {
  int64_t bytes = 0, exchanges = 0;
  void operator+=(const Sent& other) { bytes += other.bytes, exchanges += other.exchanges; }
};
Sent sent_by(const Graph& graph, NodeId id, int64_t rank);
/// Mean over the ranks of the bytes that each sends during a collective.
double mean_bytes_sent(const Graph& graph, NodeId id);

}  // namespace brrr
