// From a budget to a run that keeps it, or to the refusal that says what would.
#include <algorithm>
#include <limits>

#include "base/human.h"
#include "base/memory.h"
#include "machine/device.h"
#include "train/fit.h"

namespace brrr::train {
std::string description(const TrainOptions& o) {
  std::string text = fmt::format("batch {}", o.batch_size);
  if (o.gradient_accumulation_steps > 1)
    text += fmt::format(" x accumulation {}", o.gradient_accumulation_steps);
  if (o.rematerialize != "none") text += fmt::format(", rematerialize {}", o.rematerialize);
  if (o.ranks > 1) text += fmt::format(", ZeRO {} on {}", o.zero, counted(o.ranks, "rank"));
  if (o.optim != "adamw") text += ", " + o.optim;
  if (std::find(o.disable_pass.begin(), o.disable_pass.end(), kWeightPanels) !=
      o.disable_pass.end())
    text += fmt::format(", without {}", kWeightPanels);
  return text;
}

std::string arena_parts(const Session& session, const TrainOptions& o) {
  const MemoryForecast f = session.forecast();
  const int64_t copies = session.bytes_of(Role::derived), cache = session.bytes_of(Role::cache);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "{:.1f} MiB in one arena = {:.1f} weights + {:.1f} optimizer{}{}{} + {:.1f} activations and "
      "gradients",
      mib(f.total()), mib(f.parameter_bytes), mib(f.state_bytes - copies - cache),
      o.gradient_accumulation_steps > 1 ? " and gradient sums" : "",
      copies > 0 ? fmt::format(" + {:.1f} low-precision copies", mib(copies)) : "",
      cache > 0 ? fmt::format(" + {:.1f} cache of samples", mib(cache)) : "",
      mib(f.temporary_bytes + f.constant_bytes));
}

namespace {

/// What the plan needs in a process that has searched for it.
int64_t with_search(const Plan& plan, const FitContext& context) {
  return plan.needed() + context.left_by_search;
}

/// The plan, but with evaluation in portions of no more than `rows`; nothing where they are now.
std::optional<Plan> with_evaluation_of(int64_t rows, const Plan& plan, const FitContext& context) {
  if (plan.options.eval_batch_size <= rows) return std::nullopt;
  TrainOptions o = plan.options;
  o.eval_batch_size = rows;
  o.dump_graph.clear();
  return plan_of(o, context);
}

}  // namespace

std::string refusal(const Plan& wanted, const FitResult& found, const FitContext& context,
                    const MemoryLimit& limit) {
  std::string text =
      fmt::format("the run does not fit: {} needs {} ({} of it the arena), and {} is {}. ",
                  description(wanted.options), memory_text(wanted.needed()),
                  memory_text(wanted.arena.total()), limit.source, memory_text(limit.bytes));
  const auto fits = [&](const std::optional<Plan>& plan) {
    return plan && with_search(*plan, context) <= context.budget;
  };
  std::string by_evaluation;  // with less of it at once, all else as it is
  if (const auto plan = with_evaluation_of(wanted.options.batch_size, wanted, context); fits(plan))
    by_evaluation =
        fmt::format("; with --eval-batch-size {} it runs in {}", plan->options.eval_batch_size,
                    memory_text(with_search(*plan, context)));
  // What was found may not keep the budget beside what the search has left.
  if (found.best && fits(*found.best))
    return text + fmt::format("With --fit it runs as {} in {}{}", description(found.best->options),
                              memory_text(with_search(*found.best, context)), by_evaluation);
  const Plan& least = found.smallest;
  const std::string how = description(least.options);
  text += fmt::format("The smallest budget that fits is --memory-limit {}",
                      memory_at_least(with_search(least, context) + machine::kVariesBetweenRuns));
  if (how != description(wanted.options))
    text += fmt::format(" {} ({})",
                        least.options.optim == wanted.options.optim ? "--fit" : "--fit=all", how);
  text += by_evaluation;
  constexpr int64_t kWorthSaying = int64_t{1} << 20;
  std::optional<Plan> little;
  if (by_evaluation.empty()) little = with_evaluation_of(1, least, context);
  const bool less_evaluation =
      fits(little) || (little && least.needed() - little->needed() >= kWorthSaying);
  const int64_t states = wanted.arena.parameter_bytes + wanted.arena.state_bytes;
  if (context.now.needed() + states > context.budget)
    return text + fmt::format("; weights and optimizer states alone are {}: use a smaller model{}",
                              memory_text(states),
                              less_evaluation ? " and a smaller --eval-batch-size" : "");
  return text + fmt::format("; or use a smaller {}--context or model",
                            less_evaluation ? "--eval-batch-size, " : "");
}

std::vector<std::string> fit_table(const FitResult& result) {
  std::vector<std::string> lines{fmt::format("  {:>7} {:>13}  {:<18} {:<11} {:>10} {:>9}", "batch",
                                             "accumulation", "rematerialize", "optimizer", "memory",
                                             "predicted")};
  for (const Plan& p : result.tried) {
    const TrainOptions& o = p.options;
    const bool chosen = &p == &result.tried.front() && p.fits;
    if (!p.why_not.empty()) {
      lines.push_back(fmt::format("  {:>7} {:>13}  {:<18} {:<11} {}", o.batch_size,
                                  o.gradient_accumulation_steps, o.rematerialize, o.optim,
                                  p.why_not));
      continue;
    }
    const std::string policy = o.rematerialize +
                               (o.activation_memory.empty() ? "" : " " + o.activation_memory) +
                               (o.ranks > 1 ? fmt::format(", ZeRO {}", o.zero) : "");
    lines.push_back(fmt::format("{} {:>7} {:>13}  {:<18} {:<11} {:>10} {:>9}{}", chosen ? '>' : ' ',
                                o.batch_size, o.gradient_accumulation_steps, policy, o.optim,
                                memory_text(p.needed()), duration_text(1e-3 * p.ms),
                                p.fits ? "" : "  does not fit"));
  }
  return lines;
}

namespace {}  // namespace

/// What the searches up to now have left in the process.
static int64_t left_on_heap(const FitContext& context) {
  machine::trim_heap();
  return std::max<int64_t>(0, resident_memory().needed() - context.now.needed());
}

SettledRun settle_run(const TrainOptions& options, const models::ModelPtr& model,
                      const ProcessInputs& inputs,
                      const std::function<void(const std::string&)>& say,
                      std::shared_ptr<Communicator> communicator) {
  constexpr int kRounds = 5;
  SettledRun run;
  run.limit = memory_budget(options);
  FitContext context{model, inputs, resident_memory(), std::nullopt, run.limit.bytes};
  context.communicator = std::move(communicator);
  if (!options.wants_fit()) {
    run.plan = plan_of(options, context, &run.session);
    const int64_t reckoned = run.plan.needed();
    measure_again(run.plan, context, *run.session);
    if (run.plan.fits) return run;
    context.left_by_search = std::max<int64_t>(0, run.plan.needed() - reckoned);
    run.session.reset();
    FitResult found;  // kept beside what the search itself leaves
    for (int round = 0; round < kRounds; ++round) {
      FitContext left = context;
      left.budget -= context.left_by_search;
      found = fit(options, left, FitFreedom::memory);
      context.left_by_search =
          std::max(context.left_by_search, room_to_leave(left_on_heap(context), 0, 0));
      if (!found.best || with_search(*found.best, context) <= context.budget) break;
    }
    throw UserError(refusal(run.plan, found, context, run.limit), ExitCode::kNoMemory);
  }
  // What a GPU reaches is not measured yet: plans are compared on a nominal machine.
  if (machine::backend_for(options.device).memory_bytes == 0)
    context.speed = machine::machine_speed(machine::Measure::once, run.limit.bytes);
  const FitFreedom freedom = options.fit == "all" ? FitFreedom::all : FitFreedom::memory;
  // The search itself takes memory, which shows when it is over; then there is less for the run.
  FitResult found;
  for (int round = 0; round < kRounds && !run.plan.fits; ++round) {
    run.session.reset();
    FitContext left = context;
    left.budget -= context.left_by_search;
    found = fit(options, left, freedom);
    if (!found.best) break;
    run.plan = plan_of(found.best->options, left, &run.session);
    const int64_t reckoned = run.plan.needed();
    measure_again(run.plan, context, *run.session);
    if (!run.plan.fits)
      context.left_by_search = room_to_leave(context.left_by_search, reckoned, run.plan.needed());
  }
  if (!run.plan.fits) {
    found.best.reset();
    run.session.reset();
    context.left_by_search = std::max(context.left_by_search, left_on_heap(context));
    throw UserError(refusal(plan_of(options, context), found, context, run.limit),
                    ExitCode::kNoMemory);
  }
  say(fmt::format("fit: {} in {} ({}); {} compiled in {}", description(found.best->options),
                  memory_text(run.limit.bytes), run.limit.source, counted(found.compiled, "plan"),
                  duration_text(found.seconds)));
  for (const std::string& line : fit_table(found)) say(line);
  if (const TrainOptions& best = run.plan.options;
      model->sees_pictures() && best.batch_size != options.batch_size)
    say(fmt::format(
        "note: batch norm takes the mean and the variance of each micro-batch, which now are those "
        "of {} instead of {}; results differ from a run with --batch-size {}",
        counted(best.batch_size, "picture"), with_commas(options.batch_size), options.batch_size));
  if (const machine::ProcessForecast& p = run.plan.process; p.needed() > p.overhead() + p.arena)
    say(fmt::format("note: the peak of this process was {}{}; the run needs {}",
                    memory_text(p.peak_before),
                    context.speed && context.speed->when == machine::kMeasuredNow
                        ? ", while this machine was measured"
                        : "",
                    memory_text(p.overhead() + p.arena)));
  return run;
}

}  // namespace brrr::train
