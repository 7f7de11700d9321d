#pragma once
// Connects a verb with the other ranks that a launcher started, and divides its work among them.

#include <cstdint>
#include <memory>

#include "folders/model_folder.h"
#include "runtime/ranks/shared_work.h"
#include "train/options.h"

namespace brrr::cli {

/// Calls train::join_ranks() and silences all ranks but rank 0.
std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options);

/// Connects this process with the other ranks of a verb other than `train`, and silences all ranks
/// but rank 0. Returns null if there are no others.
std::shared_ptr<Communicator> join_to_share_work(int64_t threads);
/// Rethrows the current exception. Unless it is a SharedError, it is printed on every rank that has
/// it, and ends the other ranks.
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

/// Runs a verb whose work is divided among the ranks of a launcher. Only rank 0 prints and writes
/// files; the output of the others is discarded, except errors that rank 0 does not have. `open`
/// takes the communicator (null without other ranks) and returns a pointer to the argument of
/// `run`. `open` must not call collectives; a UserError that it throws on one rank is thrown on
/// all. `run` returns the exit code. All ranks call `run` with the same data, so either all ranks
/// fail or none. `threads`: the value of --threads.
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
