#pragma once
// What all ranks of a run must have in common before it begins.

#include <string>

#include "runtime/ranks/communicator.h"
#include "train/options.h"

namespace brrr::train {

/// Compares the options of all ranks, and `data`, which identifies what each reads. Called by all
/// ranks; throws UserError (exit 2) on all of them, naming a rank, what it has and what rank 0 has.
/// What belongs to a process (threads, memory limit, output for people) may differ.
void check_agreement(Communicator& communicator, const TrainOptions& options,
                     const std::string& data);

/// The text that each rank gives, in the order of ranks.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

}  // namespace brrr::train
