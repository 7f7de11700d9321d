#pragma once
// Ladders: the optimisation tables of the literature, climbed again on this machine. Most are made
// of training steps: a rung is a name and a few options of `train`; its step is timed on random
// tokens, and its speed and memory stand beside the published ones, all as ratios to the first
// rung. The others (micro_ladders.h, precision.h, inference_ladder.h) measure other things in the
// same rounds.

#include <optional>

#include "insight/ladder/climb.h"

namespace brrr::insight {

struct Rung {
  std::string name;
  KeyValues options;  // added to the ladder's; "activation-memory" may be a share: "25%"
  /// Against the first rung, where the literature has the row.
  std::optional<double> published_speed = {}, published_memory = {};
};

struct Ladder {
  std::string name, title;
  std::string published;    // whose figures, on what
  KeyValues options;        // of every rung
  KeyValues quick;          // on top: a smaller model, the same comparison
  bool cumulative = false;  // each rung keeps those before it
  std::vector<Rung> rungs;
};

/// Every ladder that is made of training steps.
const std::vector<Ladder>& step_ladders();

/// The ladder as it is shown: where sizes differ from those that its title names, the title says
/// so.
Ladder as_climbed(const Ladder& ladder, const LadderOptions& options);

/// Climbs: each visit is a session of its own, a step to warm up and a step that counts.
std::vector<RungResult> climb(const Ladder& ladder, const LadderOptions& options);

/// An aligned table, speed and memory as ratios to the first rung beside the published ones.
std::string ladder_table(const Ladder& ladder, const std::vector<RungResult>& results);
/// One object: ladder, title, rungs.
std::string ladder_json(const Ladder& ladder, const std::vector<RungResult>& results);
/// A part of a page: bars of speed and memory with the published ones marked, and a table.
std::string ladder_section(const Ladder& ladder, const std::vector<RungResult>& results);

/// A ladder that was climbed, in the forms in which it is shown.
struct Climbed {
  std::string table, json, section;
  bool of_steps = true;          // of training; else of small operations or of inference
  std::string disturbance = {};  // what to say where other work had the processors, or ""
};
/// What `brrr ladder NAME` climbs.
struct NamedLadder {
  std::string name, summary;
  bool by_default = true;            // without a name
  const Ladder* of_steps = nullptr;  // the options of `train` change what it measures
  std::function<int64_t(const LadderOptions&)> visits;
  std::function<Climbed(const LadderOptions&)> climb;
  /// Returns whether the ladder reads an option of `train` other than --threads. Only for ladders
  /// without training steps, because the others read all of them.
  std::function<bool(const LadderOptions&, const OptionInfo&)> reads = {};
  /// Throws UserError if the ladder cannot be climbed with these options.
  std::function<void(const LadderOptions&)> check = {};
};
const std::vector<NamedLadder>& ladders();

/// All of them as one page.
std::string ladder_page(const std::vector<Climbed>& ladders);

/// A rung against another one.
struct Against {
  double speed = 0, low = 0, high = 0;  // sequences per second; the quartiles of the rung's rounds
  double memory = 0;                    // of the arena
};
/// Nothing where either was not measured.
std::optional<Against> against(const RungResult& result, const RungResult& first);
/// The last rung before `i` that was measured, in a cumulative ladder.
std::optional<Against> against_before(const Ladder& ladder, const std::vector<RungResult>& results,
                                      size_t i);
/// "0.95-1.02"; "-" of fewer than two rounds.
std::string quartiles_text(const Timing& timing, size_t rounds, int digits);
/// What of its columns a ladder of training steps has figures for.
struct LadderColumns {
  bool gain, published_speed, published_memory;
};
LadderColumns columns_of(const Ladder& ladder);
/// Of sequences or tokens, at the median.
double per_second(int64_t count, const RungResult& result);

/// Throws UserError (exit 2) where the rungs cannot be climbed with the user's options on top: one
/// of them sets what a rung sets, by whatever name, or a rung is no valid run with them. `where`
/// opens the message on each ("--batch-size", "run.toml:3: batch_size").
void check_options(const Ladder& ladder, const LadderOptions& options,
                   const std::vector<std::string>& where);

/// "name --option value ...": what a record is kept under.
std::string key_of(const std::string& ladder, const KeyValues& changes);
/// The same with the backend ("cpu:avx512"), the number of threads, the processor and the passes
/// that BRRR_DISABLE_PASS leaves out: with others the figures are others.
std::string key_on(const std::string& backend, const std::string& ladder, const KeyValues& changes);

}  // namespace brrr::insight
