#pragma once
// Which of several ways to compute the same thing is fastest here: measured once, remembered on
// disk. The first way that runs is the default: another is taken only where it was measured faster
// by more than the measurements of either scatter. What is remembered decides for ever (delete the
// file to measure again), because another way may round differently. Beside each choice stands what
// every way took and how far its rounds lay apart, for people.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::cuda {

class Autotune {
 public:
  /// Milliseconds of one run of a way; infinity when it does not run.
  using Measure = std::function<double(size_t way)>;

  /// `file`: remembers what save() wrote; "": nothing is remembered. A damaged line is ignored.
  explicit Autotune(fs::path file);

  /// The way to take. `key` says what is computed and where; `ways` name themselves for ever.
  size_t choose(const std::string& key, const std::vector<std::string>& ways,
                const Measure& measure);
  /// What was chosen before, nothing when it was not or is none of the ways.
  std::optional<size_t> remembered(const std::string& key,
                                   const std::vector<std::string>& ways) const;
  /// Writes what was chosen since the last time.
  void save();
  /// How many keys were measured, not remembered.
  int measured() const { return measured_; }

  static constexpr int kRounds = 5;           // of every way, interleaved; the median counts
  static constexpr int kMostRounds = 9;       // where a gain is small, or within the spread
  static constexpr double kLeastGain = 0.02;  // that another way than the first must bring
  static constexpr double kSureGain = 0.1;    // that needs no more rounds
  // A way that took so many times the best in each of the first two rounds is not run again.
  static constexpr double kHopeless = 1.25;
  static constexpr int kRoundsOfHopeless = 2;

 private:
  struct Choice {
    std::string way;
    std::string times;    // "0.412 0.53 inf": milliseconds, in the order of the ways
    std::string spreads;  // "0.003 0.01 -": milliseconds between rounds of one way
  };
  static std::map<std::string, Choice> read_lines(const fs::path& file);
  fs::path file_;
  std::map<std::string, Choice> chosen_;
  int measured_ = 0;
  bool is_saved_ = true;
};

}  // namespace brrr::cuda
