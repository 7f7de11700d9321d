#pragma once
// What --elastic adds to the training loop: ranks note their step, take peer checkpoints and go on
// from them. Does nothing in a process that was not started by an elastic launcher.

#include <optional>
#include <string>

#include "base/clock.h"
#include "runtime/ranks/communicator.h"
#include "train/elastic/elastic.h"
#include "train/elastic/peer_checkpoint.h"
#include "train/open_run.h"

namespace brrr::train {

class ElasticRun {
 public:
  /// `communicator`: null if there is one rank. Called by all ranks.
  explicit ElasticRun(Communicator* communicator);

  /// Returns options_of_rank() for this process's launcher.
  TrainOptions options(const TrainOptions& given) const;
  /// Whether this is a restart for which the newest state is in memory.
  bool goes_on_from_memory() const;
  /// Notes that the folder of a new run may be written to; files in it now belong to the run.
  void note_place_checked();
  /// Notes the run's folder, so that the launcher finds its checkpoints after a loss.
  void publish(const std::string& folder);
  /// Connects to the peer checkpoints if the run uses them.
  void open(const TrainOptions& options);
  void load(OpenRun& run) { run.load(*peers_); }

  void note_step(int64_t step);
  /// Whether to take a peer checkpoint after this step; for `auto`, by this rank's clock.
  bool wants_to_keep(int64_t step, const TrainOptions& options) const;
  void keep(OpenRun& run);

 private:
  int rank_, ranks_;
  std::optional<LauncherMemory> launcher_;
  ElasticStart start_;
  std::optional<PeerCheckpoints> peers_;
  double keep_seconds_ = 0;  // duration of the last peer checkpoint
  Stopwatch since_kept_;
};

}  // namespace brrr::train
