#pragma once
// Peer checkpoints hold the training state of a checkpoint in memory that outlives the ranks
// (runtime/ranks/launcher_memory.h). Each rank copies one part: its shards, and 1/N of every tensor
// that all N ranks hold. A part says which bytes of which tensor it holds, so that any number of
// ranks can read it back, at any stage of ZeRO.

#include <string>

#include "runtime/engine.h"
#include "runtime/ranks/launcher_memory.h"

namespace brrr::train {

/// Returns the bytes of a rank's part of one generation.
int64_t peer_checkpoint_bytes(const Engine& engine, int rank, int ranks);

class PeerCheckpoints {
 public:
  /// `memory` must outlive this object.
  PeerCheckpoints(LauncherMemory& memory, int rank, int ranks);
  PeerCheckpoints(const PeerCheckpoints&) = delete;
  PeerCheckpoints& operator=(const PeerCheckpoints&) = delete;
  ~PeerCheckpoints();

  /// Copies this rank's part of the state after `step` steps; `trainer_state` is its JSON. Called
  /// by all ranks between two steps. The older of the two generations is replaced, so that the
  /// newer one remains if a rank is lost meanwhile. Throws UserError if memory runs out.
  void keep(const Engine& engine, int64_t step, const std::string& trainer_state);
  /// Fills the engine's states from the newest complete generation, and returns `trainer_state`.
  std::string load(Engine& engine);

 private:
  std::byte* region(int generation, const LauncherMemory::Part& part);

  LauncherMemory& memory_;
  int rank_, ranks_;
  int next_ = 0;  // the generation to write next
  struct Mapping {
    std::byte* data = nullptr;
    LauncherMemory::Part part;
  } mapped_[LauncherMemory::kGenerations];
};

}  // namespace brrr::train
