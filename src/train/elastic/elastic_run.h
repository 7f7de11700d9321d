#pragma once
// What --elastic adds to the loop of a run: ranks note how far they are, keep peer checkpoints, and
// go on from them. In a process that no elastic launcher started, nothing happens.

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
  /// `communicator`: null where one rank runs alone. Called by all ranks.
  explicit ElasticRun(Communicator* communicator);

  /// options_of_rank() by what this process's launcher says.
  TrainOptions options(const TrainOptions& given) const;
  /// Whether the ranks were started again and find the newest state in memory.
  bool goes_on_from_memory() const;
  /// The place of a new run may be written to: what is in it from now on is the run's own.
  void note_place_checked();
  /// From here on the launcher can start the ranks again where they were.
  void publish(const std::string& folder);
  /// Connects to the peer checkpoints, if the options ask for them.
  void open(const TrainOptions& options);
  void load(OpenRun& run) { run.load(*peers_); }

  void note_step(int64_t step);
  /// Whether this step is to be kept; with `auto` by this rank's clock.
  bool wants_to_keep(int64_t step, const TrainOptions& options) const;
  void keep(OpenRun& run);

 private:
  int rank_, ranks_;
  std::optional<LauncherMemory> launcher_;
  ElasticStart start_;
  std::optional<PeerCheckpoints> peers_;
  double keep_seconds_ = 0;  // that the last one took
  Stopwatch since_kept_;
};

}  // namespace brrr::train
