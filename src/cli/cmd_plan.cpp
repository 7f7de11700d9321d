// brrr plan: what a run needs, before it is one: every byte, every operation, the time of a step.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/file.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "insight/plan.h"
#include "insight/timed_step.h"
#include "train/dataset.h"
#include "train/device.h"
#include "train/trainer.h"

namespace brrr::cli {
namespace {

// What `plan` understands besides the options of `train`.
struct PlanOptions {
  std::string svg, html;
  std::string measure = "once";
  bool largest_batch = false;
};

const OptionTable<PlanOptions>& plan_table() {
  static const OptionTable<PlanOptions> table = [] {
    OptionTable<PlanOptions> t;
    t.group("plan");
    t.flag("largest-batch", &PlanOptions::largest_batch,
           "find the largest micro-batch that fits into --memory-limit");
    t.text("svg", &PlanOptions::svg, "FILE", "draw memory over the step");
    t.text("html", &PlanOptions::html, "FILE", "the picture and the tables as one page");
    auto& measure = t.text("measure", &PlanOptions::measure, "",
                           "measure this machine again, to predict times (a second; done once by "
                           "itself and kept in the cache; --no-measure: not at all)");
    measure.kind = OptionKind::kFlag;
    measure.set = [](PlanOptions& o, const std::string& s) {
      o.measure = parse_bool(s) ? "again" : "never";
    };
    return t;
  }();
  return table;
}

/// The options of `train` that a run's record holds, under what was given now.
KeyValues with_record(const fs::path& folder, const KeyValues& given) {
  const fs::path record = folder / "train_config.json";
  std::error_code ignored;
  if (!fs::exists(record, ignored)) return given;
  const train::TrainOptions recorded = train::options_from_json(read_file(record), record.string());
  // What follows from an option that is given now is worked out again.
  std::set<std::string> open{"config", "resume", "overwrite", "init-from", "json",
                             "text",   "data",   "val-data",  "fit",       "memory-limit"};
  for (const auto& [key, value] : given) {
    const auto& info = train::train_option_table().find(key);
    const std::string& name = info.stands_for.empty() ? info.name : info.stands_for;
    if (name == "learning-rate") open.insert("min-lr");
    if (name == "optim")
      open.insert({"learning-rate", "min-lr", "relative-step", "momentum", "muon-learning-rate"});
    if (name == "fit") open.insert({"rematerialize", "activation-memory"});
  }
  KeyValues all;
  for (const auto& row : train::train_option_table().rows()) {
    if (!row.get || open.contains(row.name)) continue;
    for (const std::string& item : row.get(recorded))
      if (!item.empty()) all.emplace_back(row.name, item);
  }
  all.insert(all.end(), given.begin(), given.end());
  return all;
}

/// The configuration of a model folder, without opening its weights.
nn::Gpt2Config config_of(const fs::path& folder, train::TrainOptions& o) {
  nn::Gpt2Config c = io::read_gpt2_config(folder / "config.json");
  if (!o.was_given("context")) o.context = c.n_positions;
  if (o.context > c.n_positions)
    usage_error("--context {} is more than the {} positions of {}", o.context, c.n_positions,
                folder.string());
  o.n_layer = c.n_layer;
  o.n_head = c.n_head;
  o.n_embd = c.n_embd;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = o.dropout;
  return c;
}

int64_t file_bytes(const fs::path& folder, const char* extension) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == extension)
      bytes += static_cast<int64_t>(entry.file_size(ignored));
  return bytes;
}

/// Opens the data as `train` would, for the memory that it takes and for its vocabulary. Texts and
/// tokenizers that are not there are no obstacle unless they were asked for.
std::optional<train::Dataset> open_data(const train::TrainOptions& o, const std::string& folder) {
  try {
    return train::load_dataset(o, folder);
  } catch (const UserError& e) {
    if (!o.text.empty() || !o.data.empty()) throw;
    fmt::print(stderr, "note: planned without text and tokenizer, which are not on this machine\n");
    return std::nullopt;
  }
}

void print_verdict(const train::Plan& plan, const MemoryLimit& limit) {
  if (limit.bytes == std::numeric_limits<int64_t>::max()) return;
  fmt::print("\n{}: {} needed, {} is {}\n", plan.fits ? "fits" : "DOES NOT FIT",
             memory_text(plan.needed()), limit.source, memory_text(limit.bytes));
}

// Planning may be for another machine: a limit that is given counts as it is.
MemoryLimit plan_budget(const train::TrainOptions& o) {
  if (!o.memory_limit.empty()) return {parse_memory(o.memory_limit), "--memory-limit"};
  return train::memory_budget(o);
}

/// With --largest-batch or --fit: the options that the search finds. Exit code 3 when nothing fits.
train::TrainOptions searched(const train::TrainOptions& o, const train::FitContext& context,
                             const MemoryLimit& limit, bool largest_batch) {
  if (largest_batch) {
    const train::Plan plan = train::largest_batch(o, context);
    if (!plan.fits)
      throw UserError(
          fmt::format("not even one sequence fits: it needs {}, and {} is {}",
                      memory_text(plan.needed()), limit.source, memory_text(limit.bytes)),
          ExitCode::kNoMemory);
    fmt::print(stderr, "largest batch that fits: {} ({} is {})\n", plan.options.batch_size,
               limit.source, memory_text(limit.bytes));
    return plan.options;
  }
  if (!o.wants_fit()) return o;
  const train::FitResult found =
      train::fit(o, context, o.fit == "all" ? train::FitFreedom::all : train::FitFreedom::memory);
  for (const std::string& line : train::fit_table(found)) fmt::print(stderr, "{}\n", line);
  if (!found.best)
    throw UserError(train::refusal(train::plan_of(o, context), found, context, limit),
                    ExitCode::kNoMemory);
  return found.best->options;
}

/// The options of `train` and ours, apart.
KeyValues train_options_of(const Arguments& args, PlanOptions& own) {
  KeyValues given;
  const std::vector<OptionInfo> infos = plan_table().infos();
  for (const auto& [key, value] : args.given) {
    const std::string name = canonical_key(key);
    if (std::any_of(infos.begin(), infos.end(), [&](const auto& i) { return i.name == name; }))
      plan_table().set(own, plan_table().find(key), value, "--" + name);
    else
      given.emplace_back(key, value);
  }
  if (args.positional.size() > 1)
    usage_error("expected one TOML file or model folder; got '{}' and '{}'", args.positional[0],
                args.positional[1]);
  for (const std::string& word : args.positional)
    given.emplace_back(word.ends_with(".toml") ? "config" : "init-from", word);
  return given;
}

int run_plan(const Arguments& args) {
  PlanOptions own;
  const KeyValues given = train_options_of(args, own);
  train::TrainOptions o = train::resolve(given);
  fs::path folder;
  if (o.init_from != "scratch") {
    folder = io::find_model(o.init_from);
    o = train::resolve(with_record(folder, given));
  }
  use_threads(o.threads);
  ::setenv("BRRR_OFFLINE", "1", 1);  // a plan downloads nothing
  const MemoryLimit limit = plan_budget(o);
  const std::optional<train::Dataset> data = open_data(o, folder.string());
  train::FitContext context;
  if (!folder.empty())
    context.config = config_of(folder, o);
  else
    context.config = train::model_config(o, data               ? data->tokenizer->vocab_size()
                                            : o.vocab_size > 0 ? o.vocab_size
                                                               : insight::kCharacters);
  if (o.max_steps == 0) o.max_steps = 1000;  // decides only how long the curves get
  context.inputs = train::inputs_of(o, data ? &*data : nullptr, context.config.vocab_size);
  if (!folder.empty()) context.inputs.weights_bytes = file_bytes(folder, ".safetensors");
  context.budget = limit.bytes;
  context.now = resident_memory();
  // What a GPU reaches is not measured yet: no times are predicted for one.
  if (train::backend_for(o.device).memory_bytes == 0)
    context.speed = train::machine_speed(own.measure == "never"   ? train::Measure::never
                                         : own.measure == "again" ? train::Measure::again
                                                                  : train::Measure::once,
                                         limit.bytes);
  o = searched(o, context, limit, own.largest_batch);

  std::unique_ptr<train::Session> session;
  train::Plan plan = train::plan_of(o, context, &session);
  train::measure_again(plan, context, *session);
  const insight::RunPlan run = insight::analyse(plan, context.config, *session, context.speed);
  if (!own.svg.empty()) write_file_atomically(own.svg, insight::memory_picture(run));
  if (!own.html.empty()) write_file_atomically(own.html, insight::memory_page(run));
  if (o.json) {
    fmt::print("{}", insight::report_json(run));
  } else {
    fmt::print("{}", insight::report(run, colour_on_stdout()));
    print_verdict(plan, limit);
  }
  // A limit that was named and is not kept is an answer that scripts can read.
  return plan.fits || o.memory_limit.empty() ? 0 : static_cast<int>(ExitCode::kNoMemory);
}

}  // namespace

Command plan_command() {
  std::vector<OptionInfo> options = plan_table().infos();
  const std::vector<OptionInfo> more = train::train_option_table().infos();
  options.insert(options.end(), more.begin(), more.end());
  return {.name = "plan",
          .summary = "what a run needs: every byte, every operation, the time of a step",
          .synopsis = "[FILE.toml | MODEL_FOLDER] [any option of train]",
          .notes =
              "Nothing is allocated but the plan. The same options as `brrr train`; or a run, a\n"
              "checkpoint or a Hugging Face folder to plan its training. With --memory-limit the\n"
              "exit code is 3 when the run does not fit.\n",
          .options = std::move(options),
          .run = run_plan,
          .takes_positional = true};
}

}  // namespace brrr::cli
