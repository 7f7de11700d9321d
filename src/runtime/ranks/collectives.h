#pragma once
// The kernels of collectives (ops/ranks/collectives.h), over a communicator. Bytes travel between
// ranks by Transport::exchange; sums are computed here, in f32, in one binary tree over the ranks,
// so that their bits depend on neither the transport nor the rank that computes them.

#include <memory>

#include "runtime/backend.h"
#include "runtime/ranks/communicator.h"

namespace brrr {

/// Lets a backend run collectives of `ranks` ranks over `communicator`; null: programs can be
/// compiled and planned, but not run. `overlaps`: kernels only begin their work, and other kernels
/// run until its results are needed. The host's backends alone.
void add_collectives(Backend& backend, int64_t ranks, std::shared_ptr<Communicator> communicator,
                     bool overlaps = true);

/// The memory that the collectives of a backend take beside their operands and results, by a
/// transport that has so many exchanges in flight.
int64_t collective_bytes(int64_t ranks, int in_flight);

/// y = the sum of `parts` of n numbers, in the tree whose left half is the largest power of two.
void sum_in_tree(std::span<const float* const> parts, int64_t n, float* y);

}  // namespace brrr
