#pragma once
// Forecast of a process' resident memory besides its arena. Memory that is resident already is
// measured in the calling process; the rest (packed operands, thread stacks, code pages) is
// computed from sizes. train/process_forecast.h adds the batches and logs of a training run.

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "ir/graph.h"

namespace brrr::machine {

/// Bytes of stack and heap that a thread touches, measured on x86-64 Linux with glibc.
inline constexpr int64_t kThreadBytes = int64_t{48} << 10;

/// Slack in bytes that is added to an advised memory limit, because the number of program pages
/// that the system maps differs between runs: 30 processes of the same run differed by 0.6 MiB.
inline constexpr int64_t kVariesBetweenRuns = int64_t{1} << 20;

struct ProcessForecast {
  int64_t program = 0;      // resident code, tokenizer, tokens and compiled graphs
  int64_t peak_before = 0;  // peak until now, such as during tokenisation
  int64_t arena = 0;
  int64_t packing = 0;  // packed operands of products, see backend/cpu/products/packing.h
  int64_t batches = 0;  // batches of the loaders
  int64_t threads = 0;  // stacks of compute and loader threads
  int64_t logging = 0;  // curves of the run, and sampling of tokens
  int64_t ranks = 0;    // communication buffers, and shards gathered for a checkpoint
  int64_t code = 0;     // pages of the program and its libraries that are not resident yet
  // Pages of memory-mapped inputs (shards). The system can reclaim them, so they count as resident
  // but not as needed.
  int64_t mapped = 0;

  int64_t overhead() const {
    return program + packing + batches + threads + logging + ranks + code;
  }
  /// Bytes that must fit into the memory limit of the process.
  int64_t needed() const;
  /// Forecast of the peak resident memory (VmHWM) in bytes.
  int64_t resident() const { return needed() + mapped; }
};

/// What a process does. Inference executes less of Brrr's code than training.
enum class ProcessKind : uint8_t { training, inference };

/// Forecast of a process that runs compiled programs. `now` was measured before they were compiled;
/// what they need besides their arena is added.
ProcessForecast forecast_running(std::span<const Graph* const> programs, ProcessKind kind,
                                 const ResidentMemory& now, bool on_device);

}  // namespace brrr::machine
