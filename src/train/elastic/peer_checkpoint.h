#pragma once
// Peer checkpoints: the training state as a checkpoint has it, in memory that outlives the ranks
// (runtime/ranks/launcher_memory.h). Each rank copies its part: its shards, and of a whole tensor
// one of as many pieces as there are ranks. Parts say which bytes of which tensor they hold, so
// any number of ranks reads them back, with any stage of ZeRO.

#include <string>

#include "runtime/engine.h"
#include "runtime/ranks/launcher_memory.h"

namespace brrr::train {

/// What a rank's part takes, in bytes, of one generation.
int64_t peer_checkpoint_bytes(const Engine& engine, int rank, int ranks);

class PeerCheckpoints {
 public:
  /// `memory` must outlive this object.
  PeerCheckpoints(LauncherMemory& memory, int rank, int ranks);
  PeerCheckpoints(const PeerCheckpoints&) = delete;
  PeerCheckpoints& operator=(const PeerCheckpoints&) = delete;
  ~PeerCheckpoints();

  /// Copies this rank's part of the state after `step` steps; `trainer_state`: to_json() of it.
  /// Called by all ranks between two steps. The older of the two generations is replaced, so that
  /// the newer one is there if a rank ends meanwhile. Throws UserError where memory runs out.
  void keep(const Engine& engine, int64_t step, const std::string& trainer_state);
  /// Fills the engine's states from the newest complete generation, and returns `trainer_state`.
  std::string load(Engine& engine);

 private:
  std::byte* region(int generation, const LauncherMemory::Part& part);

  LauncherMemory& memory_;
  int rank_, ranks_;
  int next_ = 0;  // the generation that is written next
  struct Mapping {
    std::byte* data = nullptr;
    LauncherMemory::Part part;
  } mapped_[LauncherMemory::kGenerations];
};

}  // namespace brrr::train
