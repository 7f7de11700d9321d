#pragma once
// Joining the ranks of a run, and what all of them must have in common before it begins.

#include <memory>
#include <string>
#include <vector>

#include "runtime/ranks/communicator.h"
#include "train/options.h"

namespace brrr::train {

/// Connects this process with the other ranks that a launcher started (brrr launch, torchrun, MPI,
/// Slurm) and sets options.ranks; null: the process is alone. Unless options.threads says how many
/// threads to use, the ranks of a host divide its processors. Throws UserError (exit 2) where
/// --ranks contradicts the launcher, LostRank when a rank does not come.
std::shared_ptr<Communicator> join_ranks(TrainOptions& options);

/// Compares the options of all ranks, and `data`, which identifies what each reads. Called by all
/// ranks; throws UserError (exit 2) on all of them, naming a rank, what it has and what rank 0 has.
/// What belongs to a process (threads, memory limit, output for people) may differ.
void check_agreement(Communicator& communicator, const TrainOptions& options,
                     const std::string& data);

/// Compares a text of all ranks that identifies something of theirs, such as the kernels or the
/// weights to start from: where they differ, what every rank has whole would drift apart. Called by
/// all ranks; throws UserError (exit 2) on all of them: "rank 1 has other {what} than rank 0: ...;
/// {advice}".
void check_same(Communicator& communicator, std::string_view what, const std::string& text,
                std::string_view advice);

}  // namespace brrr::train
