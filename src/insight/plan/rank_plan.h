#pragma once
// What training on several ranks adds to a plan: what each of them keeps, what it sends, and how
// much of that hides behind its kernels.

#include <optional>
#include <span>
#include <string>

#include "insight/plan/plan_lines.h"
#include "train/predict.h"

namespace brrr::insight {

struct RunPlan;

struct RankPlan {
  int64_t ranks = 1, zero = 0;
  machine::Link link;
  train::RankTraffic traffic;      // of a step
  std::optional<Overlap> overlap;  // where the rates of this machine are known
  // Bytes for each parameter, at the moment when they are most together.
  double kept = 0;       // weights, states of the optimizer, copies in fewer bits
  double gradients = 0;  // and their sums
  /// The ZeRO paper's figure for mixed precision with AdamW (section 5); 0 for other runs.
  double published = 0;
};
/// Computes what `plan`, which has been analysed, keeps and sends on each rank.
RankPlan rank_plan_of(const RunPlan& plan, const train::Session& session);

/// Appends the section about ranks to a plan's report.
void add_ranks(Report& report, const RankPlan& plan);
std::string rank_plan_json(const RankPlan& plan);

/// Plans of one run that differ in what ranks divide, as a table or as one object.
std::string compare_stages(std::span<const RunPlan> plans, bool colour);
std::string compare_stages_json(std::span<const RunPlan> plans);

}  // namespace brrr::insight
