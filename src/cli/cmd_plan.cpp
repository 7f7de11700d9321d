// brrr plan: what a run needs, before it is one: every byte, every operation, the time of a step.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/run_options.h"
#include "cli/runnable_option.h"
#include "insight/plan/plan.h"
#include "insight/plan/runnable_plan.h"
#include "machine/device.h"
#include "models/adapters/adapted_model.h"
#include "train/options/rank_options.h"

namespace brrr::cli {
namespace {

// What `plan` understands besides the options of `train`.
struct PlanOptions {
  std::string model;
  std::string svg, html, kernel_rates, link;
  std::string measure = "once";
  bool largest_batch = false, kernels = false, inference = false, compare_zero = false;
  CachePrecision kv_cache = CachePrecision::computed;
  std::vector<std::string> inputs, sizes;  // of an ONNX or .brrr file
};

const OptionTable<PlanOptions>& plan_table() {
  static const OptionTable<PlanOptions> table = [] {
    OptionTable<PlanOptions> t;
    t.group("plan");
    add_model_row(t, &PlanOptions::model);
    t.flag("inference", &PlanOptions::inference,
           "plan one inference run of a model's folder instead of its training, as of a file");
    add_cache_precision_row(t, &PlanOptions::kv_cache);
    t.flag("largest-batch", &PlanOptions::largest_batch,
           "find the largest micro-batch that fits in --memory-limit");
    t.flag("kernels", &PlanOptions::kernels,
           "list the kernels of a step with launches, FLOPs, bytes and predicted times");
    auto& rates = t.text(
        "kernel-rates", &PlanOptions::kernel_rates, "NAME=N,...",
        "rates assumed for a GPU in --kernels: products, attention and attention-grad in TFLOP/s "
        "on 16-bit operands, memory in TB/s, launch in us; default: fractions of its data sheet");
    rates.set = [](PlanOptions& o, const std::string& text) {
      insight::parse_kernel_rates(text);
      o.kernel_rates = text;
      o.kernels = true;
    };
    t.text("svg", &PlanOptions::svg, "FILE", "draw memory over the step");
    t.text("html", &PlanOptions::html, "FILE", "write the picture and the tables as one HTML page");
    auto& link =
        t.text("link", &PlanOptions::link, "RATE,LATENCY",
               "what connects ranks that are each on a machine like this one, such as 1Gbit,50us "
               "or 12GB/s,5us; default: all on this machine, connected by its memory");
    link.set = [](PlanOptions& o, const std::string& text) {
      machine::parse_link(text);
      o.link = text;
    };
    t.flag("compare-zero", &PlanOptions::compare_zero,
           "compare what ranks divide, --zero 0 to 3: bytes per parameter, bytes sent, times");
    auto& measure =
        t.text("measure", &PlanOptions::measure, "",
               "measure this machine again to predict times (takes a second; otherwise done once "
               "and cached, unless the processors were busy; --no-measure: never)");
    measure.kind = OptionKind::kFlag;
    measure.set = [](PlanOptions& o, const std::string& s) {
      o.measure = parse_bool(s) ? "again" : "never";
    };
    add_input_rows(t);
    return t;
  }();
  return table;
}

void print_verdict(bool fits, int64_t needed, const MemoryLimit& limit) {
  if (limit.bytes == std::numeric_limits<int64_t>::max()) return;
  fmt::print("\n{}: {} needed, {} is {}\n", fits ? "fits" : "DOES NOT FIT", memory_text(needed),
             limit.source, memory_text(limit.bytes));
}

// Planning may be for another machine: a limit that is given counts as it is.
MemoryLimit plan_budget(const train::TrainOptions& o) {
  if (o.memory_limit.empty()) return train::memory_budget(o);
  const MemoryLimit limit{parse_memory(o.memory_limit), "--memory-limit"};
  const Backend backend = machine::backend_for(o.device);
  const bool on_device = backend.memory_bytes > 0;
  const int64_t there = on_device ? backend.memory_bytes : installed_memory();
  if (there > 0 && limit.bytes > there)
    tell("note: --memory-limit {} is more than the {} of {}\n", memory_text(limit.bytes),
         memory_text(there), on_device ? backend.name : "this machine");
  return limit;
}

/// The options of a search, and what it has to say.
struct Searched {
  train::TrainOptions options;
  std::vector<std::string> lines;
};

/// With --largest-batch or --fit: the options that the search finds. Exit code 3 when nothing fits.
Searched searched(const train::TrainOptions& o, const train::FitContext& context,
                  const MemoryLimit& limit, bool largest_batch) {
  if (largest_batch) {
    const train::Plan plan = train::largest_batch(o, context);
    if (!plan.fits)
      throw UserError(
          fmt::format("not even one sequence fits: it needs {}, and {} is {}",
                      memory_text(plan.needed()), limit.source, memory_text(limit.bytes)),
          ExitCode::kNoMemory);
    return {plan.options,
            {fmt::format("largest batch that fits: {} ({} is {})", plan.options.batch_size,
                         limit.source, memory_text(limit.bytes))}};
  }
  if (!o.wants_fit()) return {o, {}};
  const train::FitResult found =
      train::fit(o, context, o.fit == "all" ? train::FitFreedom::all : train::FitFreedom::memory);
  if (!found.best)
    throw UserError(train::refusal(train::plan_of(o, context), found, context, limit),
                    ExitCode::kNoMemory);
  return {found.best->options, train::fit_table(found)};
}

machine::Measure measure_of(const PlanOptions& own) {
  return own.measure == "never"   ? machine::Measure::never
         : own.measure == "again" ? machine::Measure::again
                                  : machine::Measure::once;
}

/// The given options of `train` that have no part in a plan: where a run is kept, how it is
/// watched, how fast it learns.
std::string without_part(const KeyValues& given) {
  constexpr std::string_view kNames[] = {"learning-rate",     "min-lr",
                                         "lr-scheduler-type", "warmup-steps",
                                         "lr-decay-steps",    "adam-beta1",
                                         "adam-beta2",        "adam-epsilon",
                                         "weight-decay",      "max-grad-norm",
                                         "report-to",         "seed",
                                         "data-seed",         "muon-learning-rate",
                                         "eval-steps",        "eval-batches",
                                         "logging-steps",     "load-best-model-at-end",
                                         "disable-tqdm",      "sample-prompt",
                                         "output-dir",        "sample-temperature",
                                         "run-name",          "save-steps",
                                         "save-total-limit",  "resume",
                                         "overwrite",         "init-loss-scale"};
  std::string list;
  for (const auto& [key, value] : given) {
    const std::string name = canonical_key(key);
    const auto& own = plan_table().rows();
    if (std::ranges::any_of(own, [&](const auto& row) { return row.name == name; })) continue;
    const OptionInfo& info = train::train_option_table().find(key);
    if (std::ranges::find(kNames, info.stands_for.empty() ? info.name : info.stands_for) !=
        std::end(kNames))
      list += (list.empty() ? "--" : ", --") + name;
  }
  return list;
}

/// One run of a file, or of a folder with --inference.
int plan_inference(const Arguments& args) {
  PlanOptions own;
  const RunnableArguments o = runnable_arguments(
      args, plan_table(), own, {"inference", "kernels", "measure", "kernel-rates"});
  use_threads(o.threads);
  const NamedRunnable runnable = open_runnable(o.model, o.device);
  const MadeInputs inputs = inputs_of(*runnable.runnable, o);
  // A plan may be for another machine: it is not refused, unless sizes depend on data.
  const Stopwatch watch;
  std::shared_ptr<infer::Runner> runner = runner_of(runnable, o, Refuses::never);
  prepare(*runner, inputs);
  const bool must_run = !runner->is_complete();
  if (must_run) {
    runner.reset();
    runner = runner_of(runnable, o);
    runner->run(inputs.values);
  }
  say_notes(*runner);
  insight::RunnablePlan plan = insight::plan_runnable(*runner, inputs);
  plan.compile_ms = 1e3 * watch.seconds();
  plan.model = o.model;
  plan.precision = precision_of(runnable, o).name;
  plan.was_run = must_run;
  const MemoryLimit limit = machine::memory_budget(o.device, o.memory_limit);
  std::vector<train::Session::ProgramUse> programs;
  for (const Program* program : insight::programs_of(runner->session()))
    programs.push_back({"run", program, 1});
  std::optional<machine::MachineSpeed> speed;
  if (!plan.is_on_device) speed = machine::machine_speed(measure_of(own), limit.bytes);
  plan.kernels = insight::kernels_of(programs, runner->session().engine().backend(), speed,
                                     insight::parse_kernel_rates(own.kernel_rates));
  const bool fits = plan.needed() <= limit.bytes;
  if (o.json) {
    fmt::print("{}", insight::report_json(plan));
  } else {
    fmt::print("{}", insight::report(plan, own.kernels, colour_on_stdout()));
    print_verdict(fits, plan.needed(), limit);
  }
  return fits || o.memory_limit.empty() ? 0 : static_cast<int>(ExitCode::kNoMemory);
}

bool asks_for_inference(const Arguments& args) {
  PlanOptions own;
  for (const auto& [key, value] : args.given)
    if (canonical_key(key) == "inference")
      plan_table().set(own, plan_table().find(key), value, "--inference");
  if (own.inference && args.positional.size() != 1)
    usage_error("--inference plans one run of a model: name its folder");
  return own.inference;
}

/// The stages of ZeRO that go with the other options.
int compare_stages(const train::TrainOptions& given, const train::FitContext& context) {
  if (given.ranks == 1) usage_error("--compare-zero compares what ranks divide: add --ranks N");
  std::vector<insight::RunPlan> plans;
  for (int64_t zero = 0; zero <= 3; ++zero) {
    train::TrainOptions o = given;
    o.zero = zero;
    train::validate_ranks(o);
    std::unique_ptr<train::Session> session;
    const train::Plan plan = train::plan_of(o, context, &session);
    plans.push_back(insight::analyse(plan, context.model, *session, context.speed));
  }
  fmt::print("{}", given.json ? insight::compare_stages_json(plans)
                              : insight::compare_stages(plans, colour_on_stdout()));
  return 0;
}

/// The same run without its adapter: all weights are trained.
insight::FullTuning full_tuning(const train::TrainOptions& options,
                                const train::FitContext& context, const models::ModelPtr& base) {
  train::TrainOptions o = options;
  o.lora_r = 0;
  o.dump_graph.clear();
  train::FitContext full = context;
  full.model = base;
  const train::Plan plan = train::plan_of(o, full);
  return {plan.arena.total(), plan.process.resident(), full.speed ? plan.ms : 0};
}

int run_plan(const Arguments& typed) {
  const Arguments args = with_model_as_word(typed);
  if (module_named(args) || asks_for_inference(args)) return plan_inference(args);
  PlanOptions own;
  const KeyValues given = options_of_run(args, plan_table(), own);
  refuse_without_file(own.inputs, own.sizes);
  if (const std::string list = without_part(args.given); !list.empty())
    tell("note: no effect on a plan: {}\n", list);
  DescribedRun run = describe_run(given, WantsData::if_there);
  train::TrainOptions& o = run.options;
  train::cut_into_slots(o);
  if (!own.link.empty() && o.ranks == 1)
    usage_error("--link says what connects ranks: add --ranks N");
  const MemoryLimit limit = plan_budget(o);
  train::FitContext context;
  if (!own.link.empty()) context.link = machine::parse_link(own.link);
  context.model = run.model;
  if (o.max_steps == 0) o.max_steps = 1000;  // decides only how long the curves get
  context.inputs = run.inputs();
  context.budget = limit.bytes;
  context.now = resident_memory();
  context.plans_only = true;
  // What a GPU reaches is not measured yet: no times are predicted for one.
  if (machine::backend_for(o.device).memory_bytes == 0)
    context.speed = machine::machine_speed(measure_of(own), limit.bytes);
  if (own.compare_zero) return compare_stages(o, context);
  // A search takes memory of its own, which shows when it is over: then there is less.
  constexpr int kRounds = 5;
  std::unique_ptr<train::Session> session;
  train::Plan plan;
  Searched found;
  for (int round = 0; round < kRounds && !plan.fits; ++round) {
    session.reset();
    train::FitContext left = context;
    left.budget -= context.left_by_search;
    found = searched(o, left, limit, own.largest_batch);
    plan = train::plan_of(found.options, left, &session);
    const int64_t reckoned = plan.needed();
    train::measure_again(plan, context, *session);
    if (!plan.fits)
      context.left_by_search =
          train::room_to_leave(context.left_by_search, reckoned, plan.needed());
    if (!own.largest_batch && !o.wants_fit()) break;
  }
  o = found.options;
  for (const std::string& line : found.lines) tell("{}\n", line);
  // Beside a JSON object these lines go to standard error.
  const auto explain = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      if (o.json)
        tell("{}\n", line);
      else
        fmt::print("{}\n", line);
  };
  if (o.explain) explain(notes_of(session->report()));
  if (o.explain_dispatch)
    explain(summary(session->step_program().graph(), session->step_program().dispatch()));
  insight::RunPlan planned =
      insight::analyse(plan, context.model, *session, context.speed, own.kv_cache);
  if (const models::AdaptedModel* adapted = context.model->adapted())
    planned.full = full_tuning(o, context, adapted->base());
  if (own.kernels)
    insight::add_kernels(planned, *session, insight::parse_kernel_rates(own.kernel_rates));
  if (!own.svg.empty()) write_named_file(own.svg, insight::memory_picture(planned));
  if (!own.html.empty()) write_named_file(own.html, insight::memory_page(planned));
  if (o.json) {
    fmt::print("{}", insight::report_json(planned));
  } else {
    fmt::print("{}", insight::report(planned, colour_on_stdout()));
    print_verdict(plan.fits, plan.needed(), limit);
  }
  // A limit that was named and is not kept is an answer that scripts can read.
  return plan.fits || o.memory_limit.empty() ? 0 : static_cast<int>(ExitCode::kNoMemory);
}

}  // namespace

Command plan_command() {
  std::vector<OptionInfo> options = plan_table().infos();
  const std::vector<OptionInfo> more = train::train_option_table().infos();
  options.insert(options.end(), more.begin(), more.end());
  return {
      .name = "plan",
      .summary = "predict what a run needs: every byte, every operation, the time of a step",
      .synopsis = "[FILE.toml | [--model] FOLDER | FILE.onnx | FILE.brrr] [any option of train]",
      .notes =
          "Allocates nothing but the plan. Takes the options of `brrr train`, or a run, a\n"
          "checkpoint or a Hugging Face folder whose training to plan. With --memory-limit the\n"
          "exit code is 3 if the run does not fit. For an ONNX or .brrr file it predicts one\n"
          "inference run; --input and --size say of what.\n",
      .options = std::move(options),
      .run = run_plan,
      .takes_positional = true,
      .options_for_help = options_for_help};
}

}  // namespace brrr::cli
