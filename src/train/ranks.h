#pragma once
// Connects the ranks of a run and checks what all of them must have in common before it begins.

#include <memory>
#include <string>
#include <vector>

#include "runtime/ranks/communicator.h"
#include "train/options.h"

namespace brrr::train {

/// Connects this process with the other ranks that a launcher started (brrr launch, torchrun, MPI,
/// Slurm) and sets options.ranks; returns null if there are none. If options.threads is 0, the
/// ranks of a host divide its processors. Throws UserError (exit 2) if --ranks contradicts the
/// launcher, and LostRank if a rank does not connect.
std::shared_ptr<Communicator> join_ranks(TrainOptions& options);

/// Compares the options of all ranks and `data`, which identifies the data of each rank. Called by
/// all ranks; throws UserError (exit 2) on all of them, naming a rank, its value and that of rank
/// 0. Options of single processes (threads, memory limit, printed output) may differ.
void check_agreement(Communicator& communicator, const TrainOptions& options,
                     const std::string& data);

/// Compares a text on all ranks that identifies something which must be the same on all of them,
/// such as the kernels or the weights to start from. Called by all ranks; throws UserError (exit 2)
/// on all of them if a text differs: "rank 1 has other {what} than rank 0: ...; {advice}".
void check_same(Communicator& communicator, std::string_view what, const std::string& text,
                std::string_view advice);

}  // namespace brrr::train
