#pragma once
// Ladders: the optimisation tables of the literature, climbed again on this machine. A rung is a
// name and a few options of `train`; its training step is timed on random tokens, and its speed and
// memory stand beside the published ones, all as ratios to the first rung.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "insight/bench.h"

namespace brrr::insight {

struct Rung {
  std::string name;
  KeyValues options;  // added to the ladder's; "activation-memory" may be a share: "25%"
  /// Against the first rung, where the literature has the row.
  std::optional<double> published_speed = {}, published_memory = {};
};

struct Ladder {
  std::string name, title;
  std::string published;  // whose figures, on what
  KeyValues options;      // of every rung
  KeyValues quick;        // on top: a smaller model, the same comparison
  std::vector<Rung> rungs;
};

/// Every ladder that is made of training steps.
const std::vector<Ladder>& ladders();

/// What was measured of one rung, over the rounds.
struct RungResult {
  std::string name;
  int64_t sequences = 0, tokens = 0;  // of a step
  std::vector<double> ms;             // one step in each round
  int64_t arena_bytes = 0, activation_bytes = 0, state_bytes = 0;
  std::string failure;  // why there are no figures: "needs 9.1 GiB..."
};

struct LadderOptions {
  int rounds = 3;
  int64_t memory_limit = 0;  // rungs whose arena is larger are not climbed
  KeyValues options;         // of the user, on top of everything
  /// Results are kept here after every step, and what is here already is not measured again.
  std::filesystem::path record;
  /// Called with the visits done, of rungs times rounds.
  std::function<void(int64_t done)> progress;
};

/// Climbs: each round visits every rung, with a session of its own, a step to warm up and a step
/// that counts.
std::vector<RungResult> climb(const Ladder& ladder, const LadderOptions& options);

/// The quartiles of the rounds.
Timing timing_of(const RungResult& result);

/// An aligned table, speed and memory as ratios to the first rung beside the published ones.
std::string ladder_table(const Ladder& ladder, const std::vector<RungResult>& results);
/// One object: ladder, title, rungs.
std::string ladder_json(const Ladder& ladder, const std::vector<RungResult>& results);

struct ClimbedLadder {
  const Ladder* ladder = nullptr;
  std::vector<RungResult> results;
};
/// All of them as one page: bars of speed and memory with the published ones marked, and tables.
std::string ladder_page(const std::vector<ClimbedLadder>& ladders);

/// A rung against the first one.
struct Against {
  double speed = 0, low = 0, high = 0;  // sequences per second; the quartiles of the rung's rounds
  double memory = 0;                    // of the arena
};
/// Nothing where either was not measured.
std::optional<Against> against(const RungResult& result, const RungResult& first);
/// Of sequences or tokens, at the median.
double per_second(int64_t count, const RungResult& result);

}  // namespace brrr::insight
