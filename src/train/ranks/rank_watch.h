#pragma once
// RankWatch: how the ranks of a run spend their steps, and which of them holds the others up. Pure
// logic over what each rank measured; the same on all ranks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace brrr::train {

/// What one rank measured in one step, or in a mean step of several.
struct RankStep {
  double seconds = 0;         // of the whole step
  double waited_seconds = 0;  // of them for other ranks, by the thread that computes
  double bytes_sent = 0;
  double process_bytes = 0;  // resident; 0 if the system does not say

  double computed_seconds() const { return seconds - waited_seconds; }
};

class RankWatch {
 public:
  /// Steps that are looked at together, and the least seconds that they take together.
  static constexpr int64_t kBlockSteps = 20;
  static constexpr double kBlockSeconds = 1;

  /// `hosts`: the name of each rank's host.
  explicit RankWatch(std::vector<std::string> hosts);

  /// Takes what each rank measured in a step. The first time that a rank is found to be a
  /// straggler, returns a line about it: "rank 3 (host) is 1.3x slower than the median of the
  /// others, ...".
  std::optional<std::string> add(std::span<const RankStep> ranks);

  /// The mean step of each rank since the last call; empty if there was none.
  std::vector<RankStep> take_means();

 private:
  struct Sum {
    std::vector<RankStep> ranks;
    int64_t steps = 0;
    void add(std::span<const RankStep> readings);
    std::vector<RankStep> means() const;
  };
  std::optional<std::string> look_at_block(const std::vector<RankStep>& means);

  std::vector<std::string> hosts_;
  Sum since_taken_, block_;
  int64_t steps_ = 0;
  int last_slowest_ = -1;    // in the last block; -1: no rank was much slower
  std::vector<bool> named_;  // stragglers, each once
};

}  // namespace brrr::train
