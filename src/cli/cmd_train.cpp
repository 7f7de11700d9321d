// brrr train: text in, a trained model and its run folder out.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/join_ranks.h"
#include "formats/json_file.h"
#include "infer/generator.h"
#include "insight/pages/live_page.h"
#include "machine/device.h"
#include "runtime/ranks/communicator.h"
#include "runtime/ranks/launcher_memory.h"
#include "train/run_folder.h"
#include "train/text_samples.h"
#include "train/trainer.h"

namespace brrr::cli {
namespace {

/// The command that uses a run of --qat in its precision: `quantize`, or `generate` for formats
/// that folders do not have, which quantises while loading.
std::string quantisation_of(const train::TrainResult& r) {
  const std::string &qat = r.options.qat, run = shell_word(r.run_dir.string());
  if (qat == "none") return "";
  if (qat == "int4" || r.options.architecture == "gpt2")
    return r.task.head == models::Head::next_token
               ? fmt::format("   {} generate --model {} --precision {}", env::program(), run, qat)
               : "";
  const int64_t group = r.options.qat_group_size;
  return fmt::format("   {} quantize {} --output {}{}{}", env::program(), run,
                     shell_word(r.run_dir.string() + "-" + qat),
                     qat == "int8" ? "" : " --method weight-only",
                     qat == "int4-weight-only"
                         ? " --bits 4" + (group > 0 ? fmt::format(" --group-size {}", group) : "")
                         : "");
}

/// A command that shows what the model has learnt.
std::string use_of(const train::TrainResult& r) {
  const std::string program = env::program(), model = shell_word(r.run_dir.string());
  switch (r.task.head) {
    case models::Head::next_token:
      return fmt::format("{} generate --model {}{}", program, model,
                         train::renders_conversations(r.options) ? " --chat" : "");
    case models::Head::masked_token:
      return fmt::format("echo 'A text with a [MASK] in it.' | {} fill-mask --model {}", program,
                         model);
    default:
      if (train::learns_pictures(r.options))
        return fmt::format("{} classify --model {} --images PICTURE...", program, model);
      return r.options.text2_column.empty()
                 ? fmt::format("echo 'A text.' | {} classify --model {}", program, model)
                 : fmt::format(
                       "printf 'A text.\\tAnother text.\\n' | {} classify --model {} --pairs",
                       program, model);
  }
}

void print_summary(const train::TrainResult& r) {
  const bool of_pictures = train::learns_pictures(r.options);
  const char* const unit = of_pictures ? "images" : "tokens";
  const double mib = 1.0 / (1 << 20);
  tell(
      "\n{} in {} with start, evaluations and saving; {} a step and {} {}/s at the end; on "
      "average {}{} {}/s while training, {:.2f}% of that waiting for data; first step after {}\n",
      counted(r.steps, "step"), duration_text(r.seconds), duration_text(1e-3 * r.recent.step_ms),
      with_commas(std::llround(r.recent.tokens_per_second)), unit,
      of_pictures ? "" : fmt::format("{:.1f} samples/s and ", r.samples_per_second),
      with_commas(std::llround(r.tokens_per_second)), unit, 100 * r.waiting_share,
      duration_text(r.first_step_seconds));
  if (r.val_loss) {
    train::Score score{*r.val_loss, r.val_tokens, r.metrics};
    score.decided_by = r.options.metric_for_best_model;
    const bool was_better = r.best_step >= 0 && r.best_step < r.steps && !r.ends_with_best &&
                            *r.best_val_loss < *r.val_loss;
    tell("validation {} on {}{}\n", score.str(),
         counted(r.val_tokens, train::traits_of(r.options).scored),
         was_better
             ? fmt::format("; the best evaluation was {:.4f} at step {} (kept as checkpoint-{:06})",
                           *r.best_val_loss, r.best_step, r.best_step)
             : "");
  }
  tell(
      "memory: arena {:.1f} MiB (forecast {:.1f}), process at its peak {:.1f} MiB (forecast "
      "{:.1f})\n",
      mib * static_cast<double>(r.arena_bytes), mib * static_cast<double>(r.forecast.total()),
      mib * static_cast<double>(r.process_peak_bytes),
      mib * static_cast<double>(r.process_forecast.resident()));
  if (!r.health_summary.empty()) tell("health: {}\n", r.health_summary);
  const std::string run = r.run_dir.string();
  tell("model {0}/{1}   curve {0}/loss.svg   log {0}/log.jsonl\n", run,
       io::holds_adapter(r.run_dir) ? io::kAdapterWeights : io::kSingleWeights);
  tell("next: {0}   {1} report {2}{3}\n", use_of(r), env::program(), shell_word(run),
       quantisation_of(r));
}

/// Prints samples of the final model. With --sample-steps the run has written them already, unless
/// it ends with the weights of an earlier step.
void print_samples(train::TrainResult& r) {
  if (r.samples_step != r.steps || r.ends_with_best) {
    const train::TrainOptions& options = r.options;
    const io::ModelFolder model = io::open_model(r.run_dir);
    const train::TextSamples samples(options, *model.tokenizer);
    infer::Generator generator(
        model.definition, machine::backend_for(options.device), model.weights,
        {.precision = dtype_of_precision(options.precision), .positions = samples.positions()});
    const int64_t step = r.ends_with_best ? r.best_step : r.steps;
    r.samples = samples.write(
        step, [&](std::span<const int32_t> prompt, int64_t count, infer::Sampler sampler) {
          return generator.generate(prompt, count, std::move(sampler));
        });
    r.samples_step = step;
    tell("\n{}\n", train::sample_block(step, r.samples));
  }
  train::write_samples(r.run_dir, r.samples_step, r.samples);
}

/// Trains, with --live beside a page that is told how the run ended.
train::TrainResult train_watched(const train::TrainOptions& options,
                                 const std::shared_ptr<Communicator>& communicator,
                                 std::optional<insight::LivePage>& live) {
  const bool is_first = communicator == nullptr || communicator->rank() == 0;
  if (!options.wants_live() || !is_first) return train::train(options, nullptr, communicator);
  live.emplace(static_cast<int>(options.live_port));
  try {
    train::TrainResult result = train::train(options, &*live, communicator);
    const std::string run = shell_word(result.run_dir.string());
    if (result.signal != 0)
      live->ended("stopped", fmt::format("stopped by a signal after saving; go on with: {} train "
                                         "--resume {}",
                                         env::program(), run));
    else
      live->ended("finished",
                  fmt::format("finished; open it again with: {} report {}", env::program(), run));
    return result;
  } catch (const std::exception& e) {
    live->ended("failed", e.what());
    throw;
  }
}

/// Tells the launcher of an elastic run on several hosts how this rank ended; it sees only mpirun.
void note_end(LauncherMemory::End end, const std::string& sentence) {
  if (!LauncherMemory::is_of_several_hosts()) return;
  if (auto memory = LauncherMemory::inherited()) memory->set_end(end, sentence);
}

}  // namespace

int train_main(const train::TrainOptions& given) {
  train::TrainOptions options = given;
  const std::shared_ptr<Communicator> communicator = join_ranks(options);
  const bool is_first = communicator == nullptr || communicator->rank() == 0;
  std::optional<insight::LivePage> live;
  train::TrainResult result;
  try {
    result = train_watched(options, communicator, live);
  } catch (const LostRank& e) {
    const bool is_abandoned = dynamic_cast<const AbandonedRun*>(&e) != nullptr;
    note_end(is_abandoned ? LauncherMemory::End::failed : LauncherMemory::End::lost, e.what());
    // The launcher of an elastic run says what it does about it.
    if (LauncherMemory::is_set())
      set_tell_sink([](std::string_view) {});
    else
      set_tell_sink({});
    throw;
  } catch (const std::exception& e) {
    note_end(LauncherMemory::End::failed, e.what());
    set_tell_sink({});  // every rank says what ended it
    throw;
  }
  if (!is_first) return result.signal == 0 ? 0 : 128 + result.signal;
  if (result.signal != 0 && result.steps == 0) {
    tell(
        "\nstopped by a signal before the first step, so there is no checkpoint; begin again with "
        "the same command and --overwrite\n");
  } else if (result.signal != 0) {
    tell("\nstopped by a signal after saving step {}; go on with: {} train --resume {}\n",
         result.steps, env::program(), shell_word(result.run_dir.string()));
  } else if (!result.was_complete) {
    try {
      if (result.options.samples > 0 && result.task.head == models::Head::next_token)
        print_samples(result);
    } catch (const UserError& e) {  // the training is done: a sample is only to look at
      tell("no sample: {}\n", e.what());
    }
    print_summary(result);
  }
  if (options.json) fmt::print("{}\n", train::result_json(result));
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace brrr::cli
