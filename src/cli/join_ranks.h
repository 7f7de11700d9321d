#pragma once
// The other processes that a launcher started with this one.

#include <memory>

#include "runtime/ranks/communicator.h"
#include "train/options.h"

namespace brrr::cli {

/// train::join_ranks(); of several ranks, only the first one talks to people.
std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options);

}  // namespace brrr::cli
