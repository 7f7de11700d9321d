#include "insight/ladder/ladder.h"

#include <algorithm>

#include "base/clock.h"
#include "base/env.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/threads/parallel.h"
#include "insight/ladder/inference_ladder.h"
#include "insight/ladder/micro_ladders.h"
#include "insight/ladder/precision.h"
#include "insight/machine/machine.h"
#include "insight/profile/timed_step.h"
#include "machine/device.h"
#include "passes/memory/rematerialize.h"
#include "train/fit.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

KeyValues options_of(const Ladder& ladder, size_t rung, const KeyValues& user) {
  return train::overlaid(train::overlaid(ladder.options, ladder.rungs[rung].options), user);
}

/// The bytes that the step of these options keeps for its backward pass.
int64_t kept_bytes(const KeyValues& given) {
  const train::TrainOptions o = train::resolve(given);
  const auto session =
      train::compile_run(o, *train::model_of(o, o.vocab_size > 0 ? o.vocab_size : kCharacters));
  return activation_bytes(session->step_program().graph());
}

/// Takes a budget out of `given` that is a fraction of the activations kept without one ("25%").
std::optional<double> take_share(KeyValues& given) {
  const auto share = std::find_if(given.begin(), given.end(), [](const auto& entry) {
    return entry.first == "activation-memory" && entry.second.ends_with('%');
  });
  if (share == given.end()) return std::nullopt;
  const double percent =
      parse_real(share->second.substr(0, share->second.size() - 1), {.low = 0, .high = 100});
  given.erase(share);
  return percent / 100;
}

/// Turns such a budget into bytes.
train::TrainOptions resolved(KeyValues given) {
  if (const std::optional<double> share = take_share(given)) {
    const double bytes = *share * static_cast<double>(kept_bytes(given));
    given.emplace_back("activation-memory",
                       fmt::format("{}KiB", static_cast<int64_t>(bytes) >> 10));
  }
  return train::resolve(given);
}

void visit(const train::TrainOptions& options, int64_t memory_limit, RungResult& result) {
  TimedStep step(options, memory_limit);
  const MemoryForecast memory = step.session().forecast();
  result.sequences = step.rows();
  result.tokens = step.tokens();
  result.arena_bytes = memory.total();
  result.state_bytes = memory.parameter_bytes + memory.state_bytes;
  result.activation_bytes = activation_bytes(step.session().step_program().graph());
  step.run();
  // Short steps are repeated, so that one interruption does not decide the figure.
  constexpr double kSeconds = 0.1;
  constexpr size_t kMostSteps = 5;
  std::vector<double> ms;
  for (const Stopwatch all; ms.empty() || (ms.size() < kMostSteps && all.seconds() < kSeconds);) {
    const Stopwatch watch;
    step.run();
    ms.push_back(watch.milliseconds());
  }
  result.ms.push_back(timing_of(ms).median);
}

KeyValues changes_of(const Ladder& ladder, const LadderOptions& options) {
  return train::overlaid(options.quick ? ladder.quick : KeyValues{}, options.options);
}

/// The options without those that change no step, and without the threads, which the key has.
KeyValues of_a_step(KeyValues changes) {
  std::erase_if(changes, [](const auto& change) {
    const std::string& name = train::train_option_table().find(change.first).name;
    return name == "memory-limit" || name == "threads";
  });
  return changes;
}

/// A hash of all options of all rungs, presets and defaults included.
std::string digest_of(const Ladder& ladder, const KeyValues& changes) {
  std::string all;
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    KeyValues given = options_of(ladder, i, changes);
    const std::optional<double> share = take_share(given);
    all += fmt::format("{}{}", train::to_json(train::resolve(given)), share.value_or(0));
  }
  return sha256_hex(all).substr(0, 16);
}

NamedLadder of_steps(const Ladder& ladder, std::string summary) {
  NamedLadder n;
  n.of_steps = &ladder;
  n.name = ladder.name;
  n.summary = std::move(summary);
  n.visits = [&ladder](const LadderOptions& o) {
    return o.rounds * static_cast<int64_t>(ladder.rungs.size());
  };
  n.climb = [&ladder](const LadderOptions& o) {
    const auto results = climb(ladder, o);
    const Ladder shown = as_climbed(ladder, o);
    return Climbed{ladder_table(shown, results), ladder_json(shown, results),
                   ladder_section(shown, results), true, disturbance_text(shown.name, results)};
  };
  return n;
}

}  // namespace

Ladder as_climbed(const Ladder& ladder, const LadderOptions& options) {
  Ladder shown = ladder;
  if (const KeyValues changes = changes_of(ladder, options); !changes.empty())
    shown.title += "; here" + key_of("", changes);
  return shown;
}

std::string key_of(const std::string& ladder, const KeyValues& changes) {
  std::string key = ladder;
  for (const auto& [name, value] : changes)
    key += fmt::format(" --{} {}", canonical_key(name), value);
  return key;
}

std::string key_on(const std::string& backend, const std::string& ladder,
                   const KeyValues& changes) {
  std::string key =
      fmt::format("{} on {}, {} threads", key_of(ladder, changes), backend, thread_count());
  if (const std::string cpu = read_machine().cpu; !cpu.empty()) key += ", " + cpu;
  for (const char* left_out : {"BRRR_DISABLE_PASS", "BRRR_DISABLE_KERNEL"})
    if (const auto names = env::get(left_out)) key += ", without " + *names;
  return key;
}

void check_options(const Ladder& ladder, const LadderOptions& options,
                   const std::vector<std::string>& where) {
  const auto& table = train::train_option_table();
  const auto name_of = [&](const std::string& key) {
    const OptionInfo& info = table.find(key);
    return info.stands_for.empty() ? info.name : info.stands_for;
  };
  for (size_t at = 0; at < where.size(); ++at)
    for (const Rung& rung : ladder.rungs)
      for (const auto& [key, value] : rung.options)
        if (name_of(key) == name_of(options.options[at].first))
          usage_error("{}: the rungs of the ladder {} differ in it; leave it out", where[at],
                      ladder.name);
  const KeyValues changes = changes_of(ladder, options);
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    KeyValues given = options_of(ladder, i, changes);
    take_share(given);
    try {
      train::resolve(given);
    } catch (const UserError& e) {
      usage_error("ladder {}, rung '{}': {}", ladder.name, ladder.rungs[i].name, e.what());
    }
  }
}

std::vector<RungResult> climb(const Ladder& ladder, const LadderOptions& options) {
  const KeyValues changes = changes_of(ladder, options);
  std::vector<std::string> names;
  for (const Rung& rung : ladder.rungs) names.push_back(rung.name);
  const train::TrainOptions first = resolved(options_of(ladder, 0, changes));
  const std::string key =
      fmt::format("{}, options {}",
                  key_on(machine::backend_for(first.device).name, ladder.name, of_a_step(changes)),
                  digest_of(ladder, of_a_step(changes)));
  return climb(
      ladder.name, key, names, options,
      [&](size_t i, RungResult& r) {
        visit(resolved(options_of(ladder, i, changes)), options.memory_limit, r);
      },
      [](const RungResult& r) { return r.sequences > 0 && r.tokens > 0 && r.arena_bytes > 0; });
}

const std::vector<NamedLadder>& ladders() {
  static const std::vector<NamedLadder> list = [] {
    const std::vector<Ladder>& steps = step_ladders();
    std::vector<NamedLadder> all{
        of_steps(steps[0], "GPT-2 from fp32, node by node, to a fused optimizer"),
        of_steps(steps[1], "accumulation, checkpointing, precision and optimizers on GPT-2 124M"),
        of_steps(steps[2], "the same on GPT-2 medium; runs only if named, because it takes long"),
        fusion_ladder(),
        overhead_ladder(),
        of_steps(steps[3], "powers of two, awkward sizes and their neighbours"),
        precision_ladder(steps[4]),
        inference_ladder()};
    all[2].by_default = false;
    return all;
  }();
  return list;
}

}  // namespace brrr::insight
