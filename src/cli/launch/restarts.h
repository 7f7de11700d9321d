#pragma once
// What `brrr launch --elastic` decides when a rank is lost: whether all are started again, and from
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

  /// Whether a rank has begun to train since the ranks were started.
  bool has_begun() const { return memory_.reached() >= 0; }
  /// Prepares the next start after a rank was lost, and says so in one line: `what` names the rank
  /// and what happened to it. `find_left` is called if they are started again. False: it was the
  /// last start; the line says why.
  struct Left {
    int ranks = 1;
    std::string note;  // "; b does not answer and is left out", or nothing
  };
  bool again(const std::string& what, const std::function<Left()>& find_left);

 private:
  /// Starts in a row that did not get beyond the step of those before.
  static constexpr int kMostInVain = 3;
  LauncherMemory memory_;
  int64_t most_, furthest_ = -1;
  int restarts_ = 0, in_vain_ = 0;
};

}  // namespace brrr::cli
