// brrr profile: where the time of a step goes, kernel by kernel, and what would help most.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "cli/run_options.h"
#include "cli/runnable_option.h"
#include "insight/plan/plan.h"
#include "insight/profile/advice.h"
#include "insight/profile/profile_page.h"
#include "train/fit.h"

namespace brrr::cli {
namespace {

using insight::Mode;

struct ProfileOptions {
  std::string model;
  bool inference = false, generate = false;
  bool advice = true;
  CachePrecision kv_cache = CachePrecision::computed;
  int64_t prompt = 0;
  double seconds = 5;
  std::string trace, html;
  std::vector<std::string> inputs, sizes;  // of an ONNX or .brrr file
};

const OptionTable<ProfileOptions>& profile_table() {
  static const OptionTable<ProfileOptions> table = [] {
    using O = ProfileOptions;
    OptionTable<O> t;
    t.group("profile");
    add_model_row(t, &O::model);
    t.flag("inference", &O::inference, "one forward batch instead of a training step");
    t.flag("generate", &O::generate, "generation of one token at a time, with the KV cache");
    t.integer("prompt", &O::prompt, 0, 1 << 20, "N",
              "generate: tokens in the cache (0: half of the context, at most 64)");
    add_cache_precision_row(t, &O::kv_cache);
    t.real("seconds", &O::seconds, {.low = 0, .high = 3600}, "X", "how long to measure");
    t.flag("advice", &O::advice, "also say what would help (--no-advice: only measurements)");
    t.text("trace", &O::trace, "FILE",
           "write three more steps as a Chrome trace (JSON), for Perfetto");
    t.text("html", &O::html, "FILE",
           "write roofline, tables and memory as one self-contained HTML page");
    add_input_rows(t);
    return t;
  }();
  return table;
}

/// Takes --precision out of `given`: a model that only runs has values that a training lacks.
std::optional<Precision> take_precision(KeyValues& given) {
  std::optional<Precision> precision;
  const auto& table = train::train_option_table();
  std::erase_if(given, [&](const auto& option) {
    const auto& [key, value] = option;
    // The word of a folder or a file that add_run_file() put there names no option.
    if (key.find(' ') != std::string::npos) return false;
    const OptionInfo& info = table.find(key);
    const bool is_flag = info.stands_for == "precision";  // --bf16, --fp16
    if (!is_flag && info.name != "precision") return false;
    try {
      if (!is_flag)
        precision = parse_precision(value, PrecisionUse::inference);
      else if (parse_bool(value))
        precision = parse_precision(info.name, PrecisionUse::inference);
    } catch (const UserError& e) {
      usage_error("--{}: {}", canonical_key(key), e.what());
    }
    return true;
  });
  return precision;
}

/// Sets the number format of inference: --precision, or, if it is not given, the format of a folder
/// with quantised weights.
void set_precision(insight::WorkloadOptions& w, const DescribedRun& run,
                   const std::optional<Precision>& given) {
  if (given) {
    w.options.precision = *given;
  } else if (!run.folder.empty() && io::holds_integers(run.folder)) {
    w.own = infer::own_precision(io::open_model(run.folder, {.reads_tokenizer = false}),
                                 machine::backend_for(w.options.device));
    w.options.precision = w.own->name;
  }
}

/// Before anything is allocated.
void check_memory(const insight::Workload& workload, const MemoryLimit& limit) {
  const int64_t needed =
      workload.forecast().total() + (workload.is_on_host() ? resident_memory().needed() : 0);
  if (needed <= limit.bytes) return;
  throw UserError(fmt::format("this needs {}, more than {}, which is {}; use a smaller "
                              "--batch-size or --context, or see `brrr plan --fit`",
                              memory_text(needed), limit.source, memory_text(limit.bytes)),
                  ExitCode::kNoMemory);
}

insight::Pictures memory_pictures(const DescribedRun& run, const insight::Ceilings& ceilings) {
  train::FitContext context;
  context.model = run.model;
  context.inputs = run.inputs();
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(run.options, context, &session);
  const insight::RunPlan planned = insight::analyse(plan, run.model, *session, ceilings.speed());
  return {insight::memory_picture(planned),
          insight::memory_picture(planned, insight::PictureWidth::phone)};
}

std::string title_of(const DescribedRun& run, Mode mode, int64_t prompt) {
  const train::TrainOptions& o = run.options;
  const std::string name = run.folder.empty() ? o.preset : run.folder.string();
  if (mode == Mode::generation)
    return fmt::format("{}: a token of generation, {} in the cache, {}", name, prompt, o.precision);
  const int64_t sequences = train::traits_of(o).sequences_per_row;
  const std::string inputs = run.model->sees_pictures() ? " pictures"
                             : sequences > 1 && mode == Mode::training
                                 ? fmt::format(" x {} sequences of {} tokens", sequences, o.context)
                                 : fmt::format(" x {} tokens", o.context);
  if (mode == Mode::inference)
    return fmt::format("{}: a forward batch of {}{}, {}", name, o.batch_size, inputs, o.precision);
  return fmt::format("{}: a training step of {}{}{}, {}, {}", name, o.batch_size,
                     o.gradient_accumulation_steps > 1
                         ? fmt::format(" x accumulation {}", o.gradient_accumulation_steps)
                         : "",
                     inputs, o.precision, o.optim);
}

/// The given options that have no part in what the mode times.
std::string without_effect(const KeyValues& given, Mode mode) {
  std::string list;
  for (const auto& [key, value] : given) {
    const std::string name = canonical_key(key);
    const auto& own = profile_table().rows();
    if (std::any_of(own.begin(), own.end(), [&](const auto& row) { return row.name == name; }))
      continue;
    const OptionInfo& info = train::train_option_table().find(key);
    const bool of_a_step = info.group == "training" || info.name == "dropout" ||
                           info.name == "init-loss-scale" || info.name == "rematerialize" ||
                           info.name == "activation-memory" || info.name == "param-dtype" ||
                           info.name.starts_with("eval-");
    const bool of_a_run = info.group == "run" || info.name == "logging-steps" ||
                          info.name.starts_with("sample-") || info.name == "samples" ||
                          info.name == "report-to" || info.name.starts_with("live") ||
                          info.name.starts_with("explain");
    const bool has_part = mode == Mode::training ||
                          (info.name == "batch-size" && mode == Mode::inference) || !of_a_step;
    if (has_part && !of_a_run) continue;
    list += (list.empty() ? "--" : ", --") + name;
  }
  return list;
}

void check_places(const ProfileOptions& own) {
  if (!own.trace.empty() && own.trace == own.html)
    usage_error("--trace and --html: expected two files; got {} for both", own.trace);
  check_place(own.trace);
  check_place(own.html);
}

double thoroughness(const ProfileOptions& own) { return own.seconds > 0.5 ? 1 : 1.0 / 3; }

/// The peaks of the processor or the GPU that runs the workload.
insight::Ceilings ceilings_of(const insight::Workload& workload, const ProfileOptions& own,
                              const MemoryLimit& limit) {
  return workload.is_on_host()
             ? insight::measure_ceilings(limit.bytes / 4, 0.03 * thoroughness(own))
             : insight::measure_device(workload.backend(), limit.bytes / 4,
                                       0.1 * thoroughness(own));
}

/// `memory_pictures` gives the pictures of memory for the page.
void write_profile(const insight::Profile& p, bool json, const ProfileOptions& own,
                   const std::function<insight::Pictures()>& memory_pictures) {
  // First what needs no place: a disk that is full takes nothing of it.
  fmt::print("{}", json ? insight::report_json(p) : insight::report(p, colour_on_stdout()));
  // One file that cannot be written takes nothing of the other.
  std::optional<UserError> failed;
  const auto write = [&](const std::string& file, auto&& text) {
    try {
      if (!file.empty()) write_named_file(file, text());
    } catch (const UserError& e) {
      if (failed)
        tell("profile: {}\n", e.what());
      else
        failed = e;
    }
  };
  write(own.trace, [&] { return insight::chrome_trace(p); });
  write(own.html, [&] { return insight::profile_page(p, memory_pictures()); });
  if (failed) throw UserError(*failed);
}

void say_progress(const std::string& line) { tell("profile: {}\n", line); }

int profile_file(const Arguments& args) {
  ProfileOptions own;
  const RunnableArguments o =
      runnable_arguments(args, profile_table(), own, {"seconds", "trace", "html"});
  check_places(own);
  use_threads(o.threads);
  const NamedRunnable runnable = open_runnable(o.model, o.device);
  const MadeInputs inputs = inputs_of(*runnable.runnable, o);
  const std::shared_ptr<infer::Runner> runner = runner_of(runnable, o);
  const Stopwatch watch;
  prepare(*runner, inputs);
  const std::unique_ptr<insight::Workload> workload =
      insight::runnable_workload(runner, inputs.values, watch.seconds());
  const insight::Ceilings ceilings =
      ceilings_of(*workload, own, machine::memory_budget(o.device, o.memory_limit));
  workload->allocate();
  say_made_up(inputs);
  insight::Profile p = insight::profile(*workload, ceilings, own.seconds, say_progress);
  say_notes(*runner);
  p.mode = Mode::inference;
  std::string sizes;
  for (const AxisSize& size : inputs.sizes) sizes += fmt::format(", {} = {}", size.name, size.size);
  p.title = fmt::format("{}: a run{}, {}", o.model, sizes, precision_of(runnable, o).name);
  write_profile(p, o.json, own, [] { return insight::Pictures(); });
  return 0;
}

int run_profile(const Arguments& typed) {
  const Arguments args = with_model_as_word(typed);
  if (module_named(args)) return profile_file(args);
  ProfileOptions own;
  KeyValues given = options_of_run(args, profile_table(), own);
  refuse_without_file(own.inputs, own.sizes);
  if (own.inference && own.generate)
    usage_error("--inference and --generate: expected one of them; got both");
  if (own.prompt > 0 && !own.generate)
    usage_error("--prompt needs --generate: nothing else has tokens in a cache");
  if (own.kv_cache != CachePrecision::computed && !own.generate)
    usage_error("--kv-cache needs --generate: nothing else has a cache");
  const Mode mode = own.generate    ? Mode::generation
                    : own.inference ? Mode::inference
                                    : Mode::training;
  if (const std::string list = without_effect(args.given, mode); !list.empty())
    tell("note: no effect on what is timed: {}\n", list);
  check_places(own);
  const std::optional<Precision> precision =
      mode == Mode::training ? std::nullopt : take_precision(given);
  DescribedRun run = describe_run(given, WantsData::if_named);
  train::TrainOptions& o = run.options;
  insight::WorkloadOptions w;
  if (o.wants_fit())
    usage_error("--fit does not apply to profile; use `brrr plan --fit` and profile what it finds");
  if (o.max_steps == 0) o.max_steps = 1000;  // of no consequence here
  if (mode == Mode::training) {
    w.ranks = join_ranks(o);
    if (w.ranks == nullptr && o.ranks > 1)
      usage_error(
          "--ranks {0}: start them by `brrr launch -n {0} profile`, mpirun, torchrun or srun; see "
          "`brrr plan` for a run that is not started",
          o.ranks);
    train::cut_into_slots(o);
  }
  if (train::by_document(o) || train::traits_of(o).sequences_per_row > 1) {
    if (mode == Mode::training)
      tell("note: rows of --sampling {} differ in length; what is timed has {} tokens in each\n",
           o.sampling, train::row_tokens(o));
    o.sampling = "random";
  }

  w.mode = mode;
  w.options = o;
  w.cache = own.kv_cache;
  if (mode != Mode::training) set_precision(w, run, precision);
  o.precision = w.options.precision;
  w.model = run.model;
  w.data = run.data ? &*run.data : nullptr;
  w.prompt = own.prompt > 0 ? own.prompt : std::min<int64_t>(64, run.model->sizes().context / 2);
  const std::unique_ptr<insight::Workload> workload = insight::make_workload(w);
  const MemoryLimit limit = train::memory_budget(o);
  check_memory(*workload, limit);
  const insight::Ceilings ceilings = ceilings_of(*workload, own, limit);
  workload->allocate();
  insight::Profile p = insight::profile(*workload, ceilings, own.seconds, say_progress);
  p.mode = w.mode;
  p.title = title_of(run, w.mode, w.prompt);
  p.evaluation_every = o.interval(o.eval_steps);
  if (w.ranks != nullptr && w.ranks->rank() > 0) {
    w.ranks->barrier();
    return 0;
  }
  if (own.advice && w.ranks == nullptr) {
    insight::AdviceOptions a;
    a.workload = w;
    a.fixed_model = !run.folder.empty();
    a.budget = limit.bytes;
    a.say = say_progress;
    p.advised = true;
    p.advice = insight::advise(p, *workload, a);
  }
  if (w.ranks != nullptr) w.ranks->barrier();
  write_profile(p, o.json, own, [&] {
    return mode == Mode::training ? memory_pictures(run, ceilings) : insight::Pictures();
  });
  return 0;
}

}  // namespace

Command profile_command() {
  std::vector<OptionInfo> options = profile_table().infos();
  const std::vector<OptionInfo> more = train::train_option_table().infos();
  options.insert(options.end(), more.begin(), more.end());
  return {
      .name = "profile",
      .summary = "where the time of a step goes, kernel by kernel, and what would help",
      .synopsis = "[FILE.toml | [--model] FOLDER | FILE.onnx | FILE.brrr] [any option of train]",
      .notes =
          "Times a training step (or --inference, --generate) of a preset, a configuration or\n"
          "a model folder, on random tokens or on --text. Each kernel is compared with the\n"
          "measured peaks of this machine: it is compute-, bandwidth- or overhead-bound.\n"
          "Run it while nothing else uses the machine. Nothing is saved: weights are random.\n"
          "For an ONNX or .brrr file it times one inference run; --input and --size say of\n"
          "what.\n",
      .options = std::move(options),
      .run = run_profile,
      .takes_positional = true,
      .options_for_help = options_for_help};
}

}  // namespace brrr::cli
