#pragma once
// What a process has resident besides its arena. What is there already is measured, in the process
// that asks; what comes later is computed from sizes: packed operands of products, batches in
// flight, threads, logs (train/process_forecast.h adds those of a training run).

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "ir/graph.h"

namespace brrr::machine {

/// What a thread touches of its stack and heap, measured on x86-64 Linux with glibc.
inline constexpr int64_t kThreadBytes = int64_t{48} << 10;

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

/// A process in which programs run: what it has `now`, before they were compiled, and what they
/// take beside their arena.
ProcessForecast forecast_running(std::span<const Graph* const> programs, const ResidentMemory& now,
                                 bool on_device);

}  // namespace brrr::machine
