#include "train/fit.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/memory.h"
#include "machine/device.h"
#include "models/freeze.h"
#include "passes/memory/rematerialize.h"
#include "runtime/ranks/collectives.h"
#include "train/dataset.h"
#include "train/options/lora_options.h"
#include "train/options/rank_options.h"
#include "train/tasks/task_loss.h"
#include "train/text_samples.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

// GPU memory for the context, code and libraries; an estimate that is not measured yet.
constexpr int64_t kDeviceReserve = int64_t{1} << 30;

/// What may vary besides the sizes of batches.
struct Variant {
  std::string rematerialize, optim;
  int64_t zero = 0;
};

bool is_optimizer(const std::string& name) {
  try {
    TrainOptions o;
    train_option_table().find("optim").set(o, name);
    return o.optim == name;
  } catch (const UserError&) {
    return false;
  }
}

/// The ZeRO stages that may be chosen.
std::vector<int64_t> stages(const TrainOptions& o) {
  if (o.ranks == 1 || o.was_given("zero")) return {o.zero};
  std::vector<int64_t> list;
  TrainOptions with = o;
  for (with.zero = 0; with.zero <= 3; ++with.zero) {
    try {
      validate_ranks(with);
      list.push_back(with.zero);
    } catch (const UserError&) {  // not with this optimizer
    }
  }
  return list;
}

std::vector<Variant> variants(const TrainOptions& o, FitFreedom freedom) {
  // The same optimizer with states of fewer bits.
  std::vector<std::string> optimizers{o.optim};
  if (freedom == FitFreedom::all && o.optim == "adamw" && !o.was_given("optim") &&
      !o.wants_resume() && is_optimizer("adamw_8bit"))
    optimizers.push_back("adamw_8bit");
  std::vector<Variant> list;
  std::vector<std::string> policies{"none", "auto", "blocks", "all"};
  if (o.was_given("rematerialize")) policies = {o.rematerialize};
  for (const std::string& optimizer : optimizers)
    for (const std::string& policy : policies)
      for (const int64_t zero : stages(o)) list.push_back({policy, optimizer, zero});
  return list;
}

TrainOptions with(const TrainOptions& options, const Variant& variant, int64_t batch) {
  TrainOptions o = options;
  const int64_t rows = options.batch_size * options.gradient_accumulation_steps;
  o.batch_size = batch;
  o.gradient_accumulation_steps = rows / batch;
  o.optim = variant.optim;
  o.rematerialize = variant.rematerialize;
  o.zero = variant.zero;
  // A recorded budget belongs to an earlier search.
  if (!options.was_given("activation-memory")) o.activation_memory.clear();
  // Evaluation reads the same rows in batches of another size.
  if (!options.was_given("eval-batch-size") && options.eval_batch_size > batch) {
    if (o.eval_batches > 0)
      o.eval_batches = (o.eval_batches * options.eval_batch_size + batch - 1) / batch;
    o.eval_batch_size = batch;
  }
  return o;
}

/// The plan, or the reason where no choice of recomputation keeps --activation-memory.
Plan plan_or_too_much(const TrainOptions& o, const FitContext& context) {
  try {
    return plan_of(o, context);
  } catch (const UserError& e) {
    if (e.code() != ExitCode::kNoMemory) throw;
    Plan plan;
    plan.options = o;
    plan.why_not = e.what();
    return plan;
  }
}

/// The plan of `auto` that keeps the most activations within the budget. How the arena grows with
/// the activations is known from plans only, so a few are compiled.
Plan plan_for_budget(TrainOptions o, const FitContext& context, int* compiled) {
  constexpr int kRounds = 3;
  std::unique_ptr<Session> session;
  o.rematerialize = "none";
  Plan plan = plan_of(o, context, &session);
  ++*compiled;
  if (plan.fits) return plan;
  int64_t activations = activation_bytes(session->step_program().graph());
  o.rematerialize = "auto";
  for (int round = 0; round < kRounds && !plan.fits; ++round) {
    const int64_t excess = plan.needed() - context.budget;
    activations -= excess + excess / 16;
    const int64_t mib = activations >> 20;
    if (mib < 1) break;
    o.activation_memory = fmt::format("{}MiB", mib);
    try {
      ++*compiled;
      plan = plan_of(o, context);
    } catch (const UserError&) {  // no choice keeps so few
      break;
    }
  }
  return plan;
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> list;
  for (int64_t d = 1; d * d <= n; ++d)
    if (n % d == 0) {
      list.push_back(d);
      if (d * d != n) list.push_back(n / d);
    }
  std::sort(list.begin(), list.end());
  return list;
}

/// Adds a plan unless another policy led to the same one, as `auto` does with enough memory.
void add_new(std::vector<Plan>& plans, const Plan& plan) {
  const auto same = [&](const Plan& p) {
    return p.options.batch_size == plan.options.batch_size &&
           p.options.rematerialize == plan.options.rematerialize &&
           p.options.optim == plan.options.optim && p.options.zero == plan.options.zero;
  };
  if (std::none_of(plans.begin(), plans.end(), same)) plans.push_back(plan);
}

/// Orders plans: those that fit first, then the faster ones.
bool better(const Plan& a, const Plan& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.ms != b.ms) return a.ms < b.ms;
  return a.options.batch_size > b.options.batch_size;
}

}  // namespace

std::unique_ptr<Session> compile_run(const TrainOptions& o, const models::Model& given,
                                     std::shared_ptr<Communicator> communicator) {
  const std::shared_ptr<const models::AdaptedModel> held = with_base_held(o, given);
  const models::Model& model = held ? *held : given;
  const std::set<std::string> frozen = models::frozen_parameters(model, o.freeze);
  const TaskLoss loss(o, model);
  const auto loss_graph = [&](int64_t length) {
    Graph graph = loss.training(o.batch_size, length);
    models::freeze(graph, frozen);
    return graph;
  };
  const auto eval_graph = [&](int64_t length) {
    return loss.evaluation(o.eval_batch_size, length);
  };
  SessionOptions how = session_options(o);
  how.figures = loss.figures();
  // The base of an adapter does not change, so it is stored as products read it: in 16 bits.
  if (model.adapted() != nullptr && how.precision == DType::bf16) how.base_dtype = DType::bf16;
  how.base_quantization = quantization_of_base(o);
  how.fake_quantization = fake_quantization_of(o, model);
  Backend backend = machine::backend_for(o.device);
  if (o.ranks > 1) add_collectives(backend, o.ranks, communicator, o.overlap);
  if (communicator) how.shares.rank = communicator->rank();
  how.communicator = std::move(communicator);
  auto session =
      std::make_unique<Session>(loss_graph(loss.longest(o.batch_size)),
                                eval_graph(loss.longest(o.eval_batch_size)), backend, how);
  for (const int64_t length : batch_lengths(o, loss.is_flat(), o.batch_size))
    if (length < loss.longest(o.batch_size)) session->add_shorter(loss_graph(length));
  // Labelled data, packed documents and pairs are evaluated on batches of several sizes, other text
  // on windows of one size.
  if (learns_labels(o) || joins_sequences(o))
    for (const int64_t length : batch_lengths(o, loss.is_flat(), o.eval_batch_size))
      if (length < loss.longest(o.eval_batch_size))
        session->add_shorter_evaluation(eval_graph(length));
  if (o.writes_samples()) session->add_decode(sampling_graph(o, model));
  return session;
}

Plan plan_of(const TrainOptions& options, const FitContext& context,
             std::unique_ptr<Session>* keep) {
  std::unique_ptr<Session> session = compile_run(options, *context.model, context.communicator);
  Plan plan;
  plan.options = options;
  plan.arena = session->forecast();
  plan.process = forecast_process(options, *session, context.inputs, context.now);
  if (session->engine().backend().memory_bytes > 0)
    plan.device_bytes = plan.arena.total() + kDeviceReserve;
  plan.has_panels = session->has_panels();
  plan.fits = plan.needed() <= context.budget;
  plan.link = context.link;
  plan.ms = predict_step(*session, context.speed.value_or(machine::nominal_speed()), context.link)
                .total_ms();
  if (keep != nullptr) *keep = std::move(session);
  return plan;
}

void measure_again(Plan& plan, const FitContext& context, const Session& session) {
  machine::trim_heap();
  ResidentMemory now = resident_memory();
  if (context.plans_only) {
    now.peak = context.now.peak;
    if (context.speed) now.anonymous -= std::min(now.anonymous, context.speed->left_bytes);
  }
  plan.process = forecast_process(plan.options, session, context.inputs, now, true);
  plan.fits = plan.needed() <= context.budget;
}

FitResult fit(const TrainOptions& options, const FitContext& context, FitFreedom freedom) {
  const Stopwatch watch;
  FitResult result;
  TrainOptions quiet = options;
  quiet.dump_graph.clear();
  std::optional<Plan> smallest;
  // Micro-batches by size. A resumed run keeps its own, because another one changes its bits.
  std::vector<int64_t> portions =
      divisors(options.batch_size * options.gradient_accumulation_steps);
  const int64_t slots = std::max(options.ranks, options.deterministic_ranks);
  std::erase_if(portions, [&](int64_t portion) { return portions.back() / portion % slots != 0; });
  if (options.wants_resume()) portions = {options.batch_size};
  for (const Variant& variant : variants(options, freedom)) {
    std::map<size_t, Plan> seen;
    const auto look = [&](size_t i) -> const Plan& {
      if (const auto at = seen.find(i); at != seen.end()) return at->second;
      const TrainOptions o = with(quiet, variant, portions[i]);
      if (variant.rematerialize == "auto" && !options.was_given("activation-memory"))
        return seen.emplace(i, plan_for_budget(o, context, &result.compiled)).first->second;
      ++result.compiled;
      return seen.emplace(i, plan_or_too_much(o, context)).first->second;
    };
    const size_t whole = portions.size() - 1;
    // Weight copies in panels trade memory for time, so they are dropped first.
    if (const Plan& all = look(whole); !all.fits && all.has_panels) {
      quiet.disable_pass.emplace_back(kWeightPanels);
      seen.clear();
    }
    // Memory grows with the micro-batch: bisect for the largest that fits.
    size_t fits = 0, too_much = portions.size();
    if (look(whole).fits) fits = whole;
    while (fits + 1 < too_much) {
      const size_t middle = fits + (too_much - fits) / 2;
      (look(middle).fits ? fits : too_much) = middle;
    }
    look(fits);
    for (const auto& [i, plan] : seen)
      if (plan.why_not.empty() && (!smallest || plan.needed() < smallest->needed()))
        smallest = plan;
    // The table shows the choice of this variant and the next larger one, which does not fit.
    for (const auto& [i, plan] : seen)
      if (i >= fits && i <= fits + 1) add_new(result.tried, plan);
  }
  std::stable_sort(result.tried.begin(), result.tried.end(), better);
  if (result.tried.front().fits) {
    result.best = result.tried.front();
    result.best->options.dump_graph = options.dump_graph;
  }
  if (!smallest) throw UserError(result.tried.front().why_not, ExitCode::kNoMemory);
  result.smallest = *smallest;
  result.seconds = watch.seconds();
  return result;
}

Plan largest_batch(const TrainOptions& options, const FitContext& context) {
  constexpr int64_t kMost = 1 << 16;
  const auto look = [&](int64_t batch) {
    TrainOptions o = options;
    o.batch_size = batch;
    if (!options.was_given("eval-batch-size")) o.eval_batch_size = batch;
    return plan_or_too_much(o, context);
  };
  Plan fits = look(1);
  if (!fits.fits) {
    fits.options.batch_size = 0;
    return fits;
  }
  // Bytes are nearly affine in the batch: extrapolate from the last two plans, and bisect where
  // that does not converge.
  Plan other = look(2);
  if (!other.fits) return fits;
  int64_t too_many = kMost + 1;
  for (int round = 0; fits.options.batch_size + 1 < too_many; ++round) {
    const auto bytes = [](const Plan& p) { return static_cast<double>(p.needed()); };
    const int64_t a = fits.options.batch_size, b = other.options.batch_size;
    const double slope = (bytes(other) - bytes(fits)) / static_cast<double>(b - a);
    int64_t next = a + (too_many - a) / 2;
    if (round < 8 && slope > 0) {
      const double room = (static_cast<double>(context.budget) - bytes(fits)) / slope;
      next = a + static_cast<int64_t>(std::min(room, static_cast<double>(kMost)));
      next = std::clamp(next, a + 1, too_many - 1);
    }
    Plan plan = look(next);
    if (plan.fits) {
      other = std::exchange(fits, std::move(plan));
    } else {
      too_many = next;
      if (!plan.why_not.empty()) continue;
      if (other.options.batch_size > too_many || other.options.batch_size == a)
        other = std::move(plan);
    }
  }
  return fits;
}

}  // namespace brrr::train
