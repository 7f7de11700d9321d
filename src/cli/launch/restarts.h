#pragma once
// What `brrr launch --elastic` decides when a rank is lost: whether all are started again, and from
// where they go on.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/ranks/launcher_memory.h"

namespace brrr::cli {

class Restarts {
 public:
  explicit Restarts(int64_t most) : memory_(LauncherMemory::make()), most_(most) {}
  const LauncherMemory& memory() const { return memory_; }

  /// Whether a rank has begun to train since the ranks were started.
  bool has_begun() const { return memory_.reached() >= 0; }
  /// Prepares the next start after a rank was lost, and says so in one line: `what` names the rank
  /// and what happened to it. False: it was the last start; the line says why.
  bool again(const std::string& what, int ranks);

 private:
  /// Starts in a row that did not get beyond the step of those before.
  static constexpr int kMostInVain = 3;
  LauncherMemory memory_;
  int64_t most_, furthest_ = -1;
  int restarts_ = 0, in_vain_ = 0;
};

}  // namespace brrr::cli
