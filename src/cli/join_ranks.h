#pragma once
// The other processes that a launcher started with this one.

#include <cstdint>
#include <memory>

#include "folders/model_folder.h"
#include "runtime/ranks/shared_work.h"
#include "train/options.h"

namespace brrr::cli {

/// train::join_ranks(); of several ranks, only the first one talks to people.
std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options);

/// Connects this process with the other ranks of a verb other than `train`, and silences all ranks
/// but rank 0. Null: the process is alone.
std::shared_ptr<Communicator> join_to_share_work(int64_t threads);
/// Rethrows what ended this rank; if that is not a SharedError, it is printed whatever the rank,
/// and ends the others.
[[noreturn]] void rethrow_of_rank(Communicator& communicator);

/// Compares what `identify` returns on each rank, a text that identifies `what` ("data"). Called by
/// all ranks. Throws UserError (exit 2) on all of them if a rank differs. Does nothing if
/// `communicator` is null.
void check_same_files(Communicator* communicator, std::string_view what,
                      const std::function<std::string()>& identify);
/// Compares the weights and settings of a model and the kernels of `device` in the same way,
/// because ranks that divide the work of a verb must compute with one model.
void check_same_models(Communicator* communicator, const io::ModelFolder& model,
                       const std::string& device);

/// Runs a verb whose work the ranks of a launcher divide; null: the process is alone. Only rank 0
/// prints and writes files: what the others print goes nowhere, except an error that rank 0 does
/// not have, too. `open(communicator)` returns a pointer to what `run` gets; it exchanges
/// nothing, and if it throws a UserError on any rank, all throw it. `run` is called on all ranks
/// with the same data, so that they fail alike, and returns the exit code. `threads`: of --threads.
template <typename Open, typename Run>
int share_work(int64_t threads, Open&& open, Run&& run) {
  const std::shared_ptr<Communicator> communicator = join_to_share_work(threads);
  if (communicator == nullptr) return run(*open(nullptr));
  try {
    decltype(open(nullptr)) opened;
    run_on_all(communicator.get(), [&] { opened = open(communicator.get()); });
    return run_alike(communicator.get(), [&] { return run(*opened); });
  } catch (...) {
    rethrow_of_rank(*communicator);
  }
}

}  // namespace brrr::cli
