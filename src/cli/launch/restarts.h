#pragma once
// Decides for `brrr launch --elastic` whether ranks are started again after one was lost, and from
// where they go on.

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/ranks/launcher_memory.h"

namespace brrr::cli {

class Restarts {
 public:
  explicit Restarts(int64_t most) : memory_(LauncherMemory::make()), most_(most) {}
  const LauncherMemory& memory() const { return memory_; }

  /// Whether a rank has begun to train since the last start.
  bool has_begun() const { return memory_.reached() >= 0; }
  /// The ranks of the next start.
  struct Left {
    int ranks = 1;
    std::string note;  // "; b does not answer and is left out", or nothing
  };
  /// Prepares the next start after a rank was lost and prints one line about it. `what` names the
  /// rank and what happened to it; `find_left` is called only if there is a next start. Returns
  /// false if there is none; the line says why.
  bool again(const std::string& what, const std::function<Left()>& find_left);

 private:
  /// Number of consecutive starts without a new step after which the launcher gives up.
  static constexpr int kMostInVain = 3;
  LauncherMemory memory_;
  int64_t most_, furthest_ = -1;
  int restarts_ = 0, in_vain_ = 0;
};

}  // namespace brrr::cli
