#pragma once
// The kernels of collectives (ops/ranks/collectives.h), over a communicator. Transport::exchange
// moves the bytes. Sums are computed here, in f32, in one binary tree over the ranks, so that their
// bits depend on neither the transport nor the rank that computes them.

#include <memory>

#include "runtime/backend.h"
#include "runtime/ranks/communicator.h"

namespace brrr {

/// Lets a backend of the host run collectives of `ranks` ranks over `communicator`. If that is
/// null, programs can be compiled and planned, but not run. `overlaps`: kernels only start the
/// communication, and other kernels run until its results are needed.
void add_collectives(Backend& backend, int64_t ranks, std::shared_ptr<Communicator> communicator,
                     bool overlaps = true);

/// Bytes that the collectives of a backend need besides their operands and results, with a
/// transport that has this number of exchanges in flight.
int64_t collective_bytes(int64_t ranks, int in_flight);

/// y = the sum of `parts`, n numbers each, by the tree whose left half is the largest power of two.
void sum_in_tree(std::span<const float* const> parts, int64_t n, float* y);

}  // namespace brrr
