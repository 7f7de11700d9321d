#pragma once
// The plan of an inference run (of a model, an ONNX file, a .brrr file): what it takes with inputs
// of given sizes. All from compiled programs; nothing is allocated unless sizes depend on data and
// it was run.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "infer/runner.h"
#include "insight/plan/plan.h"
#include "runtime/made_inputs.h"

namespace brrr::insight {

/// A tensor, or a kernel's scratch memory, that is there at the fullest moment of a program.
struct HeldTensor {
  std::string op, scope;  // of the kernel that made it
  std::string type;       // "" of scratch memory
  int64_t bytes = 0;
};

struct PlannedProgram {
  int64_t nodes = 0, kernels = 0;
  int64_t temporary_bytes = 0, constant_bytes = 0;
  Peak peak;
  std::vector<HeldTensor> held;  // at the peak, the largest first
};

struct RunnablePlan {
  std::string model, summary, backend;
  Precision precision = Precision::fp32;
  double compile_ms = 0;
  std::vector<AxisSize> sizes;
  std::vector<std::string> made;   // inputs whose numbers are made up
  std::vector<std::string> bound;  // of those, the inputs whose numbers decide about sizes
  bool was_run = false;            // to know the sizes that depend on data
  bool is_on_device = false;       // which has memory of its own, where the arena lies
  MemoryForecast arena;
  int64_t lent_bytes = 0;     // weights that stay in the mapped file
  int64_t loading_bytes = 0;  // beyond the arena in use, while weights are loaded
  machine::ProcessForecast process;
  std::vector<PlannedProgram> programs;  // in the order in which they run
  KernelPlan kernels;

  /// What a limit is held against: of the device where that has memory of its own.
  int64_t needed() const { return is_on_device ? arena.total() : process.needed(); }
};

/// `runner` is prepared, or has run, with `inputs`.
RunnablePlan plan_runnable(const infer::Runner& runner, const MadeInputs& inputs);
/// The programs of a run, in their order.
std::vector<const Program*> programs_of(const RunnableSession& session);

/// What a verb says of sizes that were guessed, before it works with them; "": none were.
std::string assumed_sizes(const MadeInputs& inputs);
/// What it says, a line each, of made-up values that decided about sizes.
std::vector<std::string> assumed_values(const MadeInputs& inputs, const RunnableSession& session);

/// Tables for people; with the list of kernels where it is wanted.
std::string report(const RunnablePlan& plan, bool lists_kernels, bool colour);
/// One object: arena_bytes, process_bytes, needed_bytes, programs, kernels, ...
std::string report_json(const RunnablePlan& plan);

}  // namespace brrr::insight
