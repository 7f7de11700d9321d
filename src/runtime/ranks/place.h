#pragma once
// Where this process stands among the ranks of its run, by what started it.

#include <cstdint>
#include <optional>

#include "runtime/ranks/transport.h"

namespace brrr {

/// More ranks than any run has: a wrong number, not a large run.
inline constexpr int64_t kMostRanksOfARun = 65536;

/// What the options say (--rank, --ranks), else the variables of torchrun, Open MPI, PMI (MPICH,
/// Intel MPI), PMIx and Slurm, in this order; else a run of one. `ranks` alone has to agree with
/// what the launcher says. Throws UserError (usage) for values that contradict each other.
RankPlace find_place(std::optional<int64_t> rank = {}, std::optional<int64_t> ranks = {});

/// Gives this process its share of the host's processors as threads, unless OMP_NUM_THREADS says
/// how many it gets.
void divide_threads(const RankPlace& place);

}  // namespace brrr
