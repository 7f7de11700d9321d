#pragma once
// The kinds of transports, each of which is a file of this folder, and what they share.

#include <memory>
#include <span>
#include <string>

#include "runtime/ranks/transport.h"

namespace brrr::ranks {

/// The name of the shared memory of a run, as shm_open() takes it.
std::string segment_name(const std::string& run_id);
/// Removes the shared memory of ranks that were killed before all of them were attached.
void remove_segment(const std::string& run_id);

/// Seconds for which a rank may be silent: the option (--rank-timeout) if it is not 0, or else
/// BRRR_RANK_TIMEOUT, or else 12.
double timeout_seconds(double of_options);

std::unique_ptr<Transport> open_shared_memory(const RankPlace& place,
                                              const TransportOptions& options);
/// The bytes of the shared memory that one rank touches.
int64_t touched_shared_memory(int ranks);
std::unique_ptr<Transport> open_mpi(const RankPlace& place, const TransportOptions& options);

/// Copies the segments that a rank sends to itself.
void copy_own_segments(std::span<const Outgoing> out, std::span<const Incoming> in, int rank);

}  // namespace brrr::ranks
