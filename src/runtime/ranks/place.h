#pragma once
// Finds the position of this process among the ranks of its run from its launcher's variables.

#include <cstdint>
#include <optional>

#include "runtime/ranks/transport.h"

namespace brrr {

/// An upper limit for the number of ranks; more are taken for a mistake.
inline constexpr int64_t kMostRanksOfARun = 65536;

/// Takes the position from the options (--rank, --ranks), or else from the variables of torchrun,
/// Open MPI, PMI (MPICH, Intel MPI), PMIx and Slurm, in this order, or else assumes a single rank.
/// `ranks` without `rank` must agree with the launcher. Throws UserError (usage) for
/// contradictions.
RankPlace find_place(std::optional<int64_t> rank = {}, std::optional<int64_t> ranks = {});

/// Sets the number of threads to this process's share of the host's processors, unless
/// OMP_NUM_THREADS is set.
void divide_threads(const RankPlace& place);

}  // namespace brrr
