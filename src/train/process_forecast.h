#pragma once
// What a run will have resident besides its arena. What is there already is measured, in the
// process that asks; what comes later is reckoned from sizes: packed operands of products, batches
// in flight, threads, logs. Forecast and measurement stand side by side at the end of every run.

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "train/dataset.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

/// How many pages of the program the system maps differs between runs: a limit that is advised has
/// room for so many more.
inline constexpr int64_t kVariesBetweenRuns = int64_t{1} << 19;

struct ProcessForecast {
  int64_t program = 0;      // the program, libraries, tokenizer, tokens, compiled graphs
  int64_t peak_before = 0;  // the most that was resident until now: a text being tokenised
  int64_t arena = 0;
  int64_t packing = 0;  // operands of products, see backend/cpu/products/packing.h
  int64_t batches = 0;  // of the loaders
  int64_t threads = 0;  // stacks of the team and of the loaders
  int64_t logging = 0;  // curves of the run, and choosing the tokens of samples
  int64_t code = 0;     // of the program and its libraries that was not run yet
  // Pages of mapped inputs (shards). The system takes them back when memory
  // runs short, so they count to what is resident and not to what must fit.
  int64_t mapped = 0;

  int64_t overhead() const { return program + packing + batches + threads + logging + code; }
  /// What must fit into the memory that the process may use.
  int64_t needed() const;
  /// What the system will report as the most that was resident (VmHWM).
  int64_t resident() const { return needed() + mapped; }
};

struct ProcessInputs {
  int64_t vocabulary = 0;    // of the model
  int64_t mapped_bytes = 0;  // of token shards
  int64_t cached_bytes = 0;  // of text that is tokenised while training
};

/// A process in which programs run: what it has `now`, before they were compiled, and what they
/// take beside their arena.
ProcessForecast forecast_running(std::span<const Graph* const> programs, const ResidentMemory& now,
                                 bool on_device);

/// What the data of the run take. `data` may be none.
ProcessInputs inputs_of(const TrainOptions& options, const Dataset* data, int64_t vocab_size);

/// `now` was measured when the data was open: before anything was compiled, or, where `compiled`
/// says so, with `session` in it.
ProcessForecast forecast_process(const TrainOptions& options, const Session& session,
                                 const ProcessInputs& inputs, const ResidentMemory& now,
                                 bool compiled = false);

}  // namespace brrr::train
