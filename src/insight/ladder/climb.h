#pragma once
// How every ladder is climbed: round after round each rung is visited once, so that what is
// compared lies side by side in time; what was measured is kept in a file, so a climb that was
// interrupted goes on.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/options.h"
#include "insight/machine/timing.h"

namespace brrr::insight {

/// What was measured of one rung, over the rounds.
struct RungResult {
  std::string name;
  int64_t sequences = 0, tokens = 0;  // of a step
  std::vector<double> ms;             // of each visit
  int64_t arena_bytes = 0, activation_bytes = 0, state_bytes = 0;
  std::map<std::string, std::vector<double>> figures = {};  // what else a ladder looks at
  std::map<std::string, std::string> notes = {};
  /// The most processors' worth of time that other work had during one of the visits.
  double other_processors = 0;
  std::string failure = {};  // why there are no figures: "needs 9.1 GiB..."
  std::string date = {};     // of the last visit: "2026-11-22"
};

struct LadderOptions {
  int rounds = 3;
  bool quick = false;        // smaller sizes, the same comparison
  int64_t memory_limit = 0;  // rungs with which the process would need more are not climbed
  KeyValues options;         // of `train`, from the user, on top of everything; names no file
  std::string model;         // folder of the model of the inference ladder; "": random weights
  std::string version;       // of the program: figures of another one are others
  /// Results are kept here after every visit, and what is here already is not measured again.
  std::filesystem::path record;
  /// Measure what is there, too, and replace it; all of it where it cannot be read.
  bool again = false;
  /// Called with a line on what is recalled, on what could not be kept, and on a record that is
  /// replaced unread.
  std::function<void(const std::string& line)> say;
  /// Called with the visits done, of rungs times rounds.
  std::function<void(int64_t done)> progress;
  /// Asked before every visit: true ends the climb, whose record stays.
  std::function<bool()> stop;
};

/// Thrown by climb() when LadderOptions::stop said so.
struct ClimbStopped {};

/// A visit measures once and adds to the result: an entry to `ms` at least. A UserError that says
/// that memory does not suffice (exit 3) is the rung's failure; others end the climb.
using Visit = std::function<void(size_t rung, RungResult& result)>;

/// Whether figures of a record can be: those that cannot are not believed.
using IsSound = std::function<bool(const RungResult& result)>;

/// `name` is the ladder's, for people. `key` names what is measured in the record: the ladder and
/// everything that changes its figures.
std::vector<RungResult> climb(const std::string& name, const std::string& key,
                              const std::vector<std::string>& rungs, const LadderOptions& options,
                              const Visit& visit, const IsSound& is_sound);

/// Whether the result has that figure, once for each time, and each is positive.
bool has_positive(const RungResult& result, const std::string& name);

/// A figure that the ladder's visits add. Throws UserError where the record lacks it.
const std::vector<double>& figure_of(const RungResult& result, const std::string& name);

/// What to say where other work disturbed the visits to some rungs, or "".
std::string disturbance_text(const std::string& ladder, const std::vector<RungResult>& results);

inline Timing timing_of(const RungResult& result) { return timing_of(result.ms); }

}  // namespace brrr::insight
