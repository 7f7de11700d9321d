#pragma once
// RankWatch finds out how the ranks of a run spend their steps and which of them delays the others.
// It is pure logic over the measurements of all ranks, with the same result on each of them.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace brrr::train {

/// The measurements of one rank in one step, or their means over several steps.
struct RankStep {
  double seconds = 0;         // duration of the step
  double waited_seconds = 0;  // part of it in which the computing thread waited for other ranks
  double bytes_sent = 0;
  double process_bytes = 0;  // resident memory; 0 if unknown

  double computed_seconds() const { return seconds - waited_seconds; }
};

class RankWatch {
 public:
  /// Ranks are compared in blocks of at least so many steps and so many seconds.
  static constexpr int64_t kBlockSteps = 20;
  static constexpr double kBlockSeconds = 1;

  /// `hosts`: the name of each rank's host.
  explicit RankWatch(std::vector<std::string> hosts);

  /// Adds the measurements of all ranks in a step. Returns a line about a straggler the first time
  /// that a rank is found to be one: "rank 3 (host) is 1.3x slower than the median of the others,
  /// ...".
  std::optional<std::string> add(std::span<const RankStep> ranks);

  /// Returns the mean step of each rank since the last call; empty if there was no step.
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
  int last_slowest_ = -1;    // the straggler of the last block; -1: none
  std::vector<bool> named_;  // whether a rank was reported, which happens once
};

}  // namespace brrr::train
