#pragma once
// Fitting a run into a memory budget. Everything is decided from compiled plans, whose bytes are
// exact, before anything is allocated: how many sequences go through at once (the tokens of a step
// stay the same), what is kept for the backward pass, what ranks divide among them (ZeRO) and, when
// that may change, how wide the optimizer's states are.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine/memory_budget.h"
#include "models/model.h"
#include "train/predict.h"
#include "train/process_forecast.h"

namespace brrr::train {

/// The programs of a run, compiled and not allocated.
/// `communicator` null: one rank, or a plan for the ranks that the options name.
std::unique_ptr<Session> compile_run(const TrainOptions& options, const models::Model& model,
                                     std::shared_ptr<Communicator> communicator = nullptr);

/// One way to do the run.
struct Plan {
  TrainOptions options;
  MemoryForecast arena;
  machine::ProcessForecast process;
  double ms = 0;  // predicted for a step; on a nominal machine where this one was not measured
  machine::Link link = machine::usual_shared_memory();  // between ranks
  bool fits = false;
  bool has_panels = false;  // derived weights in two orders (the pass weight_panels)
  std::string why_not;      // not empty: it was not even compiled, and there are no figures
  /// Of a GPU: what it needs of that GPU's memory. 0: the arena is the process'.
  int64_t device_bytes = 0;

  /// What must fit into the budget.
  int64_t needed() const { return device_bytes > 0 ? device_bytes : process.needed(); }
};

/// What the search needs to know besides the options.
struct FitContext {
  models::ModelPtr model;
  ProcessInputs inputs;
  ResidentMemory now;
  std::optional<machine::MachineSpeed> speed;
  int64_t budget = 0;                                   // bytes for Plan::needed()
  machine::Link link = machine::usual_shared_memory();  // between ranks
  int64_t left_by_search = 0;  // that an earlier search turned out to leave in the process
  std::shared_ptr<Communicator> communicator = nullptr;
  bool plans_only = false;  // the run is another process, without the peak of this one's search
};

/// The plan of the options as they are; `keep` gets the compiled session.
Plan plan_of(const TrainOptions& options, const FitContext& context,
             std::unique_ptr<Session>* keep = nullptr);

/// What the next search must keep free, after one that kept `left` free and whose choice was
/// reckoned to need `reckoned` bytes and turned out to need `needed`: all that the searches left
/// behind, however little of it was too much, and a little more, for it leaves something, too.
constexpr int64_t room_to_leave(int64_t left, int64_t reckoned, int64_t needed) {
  return std::max(left, needed - reckoned) + (int64_t{1} << 18);
}

/// The plan again, when `session` is there: what compiling and searching have left in the process
/// is measured instead of reckoned.
void measure_again(Plan& plan, const FitContext& context, const Session& session);

enum class FitFreedom {
  memory,  // micro-batch, accumulation, rematerialisation, ZeRO: the maths of the step stays
  all      // and the optimizer
};

struct FitResult {
  std::optional<Plan> best;  // predicted fastest of those that fit
  std::vector<Plan> tried;   // the most promising of each kind, the best first
  Plan smallest;             // the least memory that was found
  int compiled = 0;          // plans looked at
  double seconds = 0;
};
FitResult fit(const TrainOptions& options, const FitContext& context, FitFreedom freedom);

/// The largest micro-batch that fits, everything else as in the options; 0: not even one sequence
/// does. The accumulation stays, so the step grows with it.
Plan largest_batch(const TrainOptions& options, const FitContext& context);

/// "batch 2 x accumulation 4": the part of a plan that fit() chooses, in a few words.
std::string description(const TrainOptions& options);
/// "124.5 MiB in one arena = 40.0 weights + ...".
std::string arena_parts(const Session& session, const TrainOptions& options);

/// The plans that were looked at as an aligned table, the chosen one marked; a line each.
std::vector<std::string> fit_table(const FitResult& result);

/// machine::memory_budget of the options.
inline MemoryLimit memory_budget(const TrainOptions& o) {
  return machine::memory_budget(o.device, o.memory_limit);
}

/// By how much the run does not fit and what would: for a UserError with exit code 3.
std::string refusal(const Plan& wanted, const FitResult& found, const FitContext& context,
                    const MemoryLimit& limit);

/// Compiles the run; with --fit the one that fits and is predicted fastest, whose options replace
/// those given. Throws UserError (exit 3) for what does not fit. `say` gets lines for people.
struct SettledRun {
  Plan plan;
  std::unique_ptr<Session> session;
  MemoryLimit limit;
};
SettledRun settle_run(const TrainOptions& options, const models::ModelPtr& model,
                      const ProcessInputs& inputs,
                      const std::function<void(const std::string&)>& say,
                      std::shared_ptr<Communicator> communicator = nullptr);

}  // namespace brrr::train
