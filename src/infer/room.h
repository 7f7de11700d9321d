#pragma once
// Whether inference fits into the memory that there is. Programs are compiled first, then what the
// process will take with them is reckoned as for training (machine/process_forecast.h), and only
// then is anything allocated.

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "runtime/engine.h"

namespace brrr::infer {

/// The memory that an inference may take, and what it should advise when that is too little.
struct Memory {
  MemoryLimit limit;   // of the process, or of a device with memory of its own; 0 bytes: none
  std::string advice;  // "take --precision bf16 or fewer --max-new-tokens"
  bool is_only_planned = false;  // what does not fit is told by a plan, not refused
  /// Whether weights that do not fit in panels may be read in the memory-mapped file, whose pages
  /// do not count against the limit.
  bool reads_in_place = true;
};

/// The memory of a model's folder: all of its weights count against the limit.
inline Memory counting_all(Memory memory) {
  memory.reads_in_place = false;
  return memory;
}

class Room {
 public:
  /// What the process has now counts as needed: its files should be open, and no engine allocated.
  Room(const Backend& backend, Memory memory);

  /// Sets the engine's limit to what is left beside a process that runs its programs and `next`.
  /// `more`: bytes that will be taken outside of programs.
  void set_limit(Engine& engine, const Graph& next, int64_t more = 0);

  /// Measures the process anew, with the engine's programs compiled and nothing allocated, and sets
  /// the limit to what is left beside it.
  void measure(Engine& engine, int64_t more = 0);
  /// The latest measurement of the process.
  const ResidentMemory& now() const { return now_; }

  /// What the engine takes, of the device or of the host, at the most: while its parameters are
  /// loaded, or while a program runs.
  int64_t most_at_once(const Engine& engine) const;

  /// Whether the engine can be allocated and its parameters loaded within the limit.
  bool fits(const Engine& engine) const;
  bool may_read_in_place() const { return memory_.reads_in_place; }
  /// Throws UserError (exit 3), with the numbers and the way out, where it does not fit.
  void check(const Engine& engine) const;

  /// f(), whose refusal for want of memory is told with the limit and the way out.
  template <typename F>
  auto run(const F& f) const {
    try {
      return f();
    } catch (const UserError& e) {
      if (e.code() != ExitCode::kNoMemory || !has_limit()) throw;
      refuse(e.what());
    }
  }

 private:
  bool has_limit() const { return memory_.limit.bytes > 0; }
  void set_limit_beside(Engine& engine, const std::vector<const Graph*>& graphs, int64_t more);
  [[noreturn]] void refuse(const std::string& why) const;

  Memory memory_;
  ResidentMemory now_;
  bool on_device_;
  int64_t beside_ = 0;  // what the process takes beside the engine
};

}  // namespace brrr::infer
