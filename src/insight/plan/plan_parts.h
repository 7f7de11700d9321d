#pragma once
// What the report of a plan, its picture and its page share: the rows and the sentences, once.

#include <string>
#include <vector>

#include "insight/plan/plan.h"

namespace brrr::insight {

/// Two lines: the model, and how it is trained.
std::string title(const RunPlan& plan);
/// "1.23 G".
std::string flops_text(double flops);

/// What the arena holds at the fullest moment of a step.
std::vector<NamedBytes> memory_rows(const RunPlan& plan);
/// What the process has beside the arena.
std::vector<NamedBytes> process_rows(const RunPlan& plan);
std::string peak_text(const RunPlan& plan);
/// Layers that keep the same become one row.
std::vector<NamedBytes> alike_as_one(const std::vector<NamedBytes>& layers);

struct WorkRow {
  ClassFlops flops;
  double ms = 0;  // predicted; 0 where no time is
};
/// The classes of operations, and "all" at the end.
std::vector<WorkRow> work_rows(const RunPlan& plan);
std::string predicted_text(const RunPlan& plan);
/// What to say of predictions by rates that were measured beside other work, or "".
std::string disturbance_text(const RunPlan& plan);
/// The time of all kernels; the plan has kernels with times.
std::string kernels_text(const RunPlan& plan);
/// What it takes to use the model: a heading, and the sum.
std::string use_title(const RunPlan& plan);
std::string use_text(const RunPlan& plan);

/// Where the picture of memory has its moments and what they hold, as JSON for the page's script.
std::string picture_moments(const RunPlan& plan);

}  // namespace brrr::insight
