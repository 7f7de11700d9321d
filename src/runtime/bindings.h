#pragma once
// Bindings: dynamic sizes mean one set of programs for each combination of sizes, compiled when it
// is first asked for and kept while there is room. The programs are the engine's: they share its
// state and its temporary bytes, so what a binding takes for itself is little.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace brrr {

class Bindings {
 public:
  /// The compiled graphs of a binding, one for each of its programs.
  using Compile = std::function<std::vector<Graph>()>;
  /// Told the key of a binding that was dropped.
  using OnDrop = std::function<void(const std::string& key)>;

  explicit Bindings(Engine& engine, const ProgramOptions& options = {}, OnDrop on_drop = {})
      : engine_(engine), options_(options), on_drop_(std::move(on_drop)) {}
  /// What all bindings may take for themselves (own_bytes()), but for the one that is used; 0, as
  /// it is at first: any number.
  void set_budget(int64_t bytes) { budget_ = bytes; }

  /// Bindings that are used from now on stay until the next call, whatever the budget.
  void pin() { pinned_from_ = uses_ + 1; }

  /// The engine's ids of the programs of a binding, compiled where they are not there. `key` tells
  /// bindings apart, `name` ("batch 1, length 64") names this one in errors. Beyond the budget, or
  /// where the engine's limit leaves no room, the bindings that were used longest ago are dropped.
  /// Throws UserError (exit 3) for a binding that does not fit alone.
  std::span<const size_t> get(const std::string& key, const std::string& name,
                              const Compile& compile);
  /// The programs of a binding that is there; else none.
  std::span<const size_t> find(const std::string& key) const;
  /// Whether a binding of these graphs fits into the engine's limit if it is the only one.
  bool fits_alone(const std::vector<Graph>& graphs) const;
  void clear();
  /// Drops those that are not pinned; false: there was none.
  bool drop_unpinned();

  size_t size() const { return entries_.size(); }
  /// The programs of every binding.
  std::vector<size_t> programs() const;
  /// What all bindings take for themselves: constants, graphs and kernels.
  int64_t own_bytes() const;

 private:
  struct Entry {
    std::vector<size_t> programs;
    mutable uint64_t used = 0;  // when, by uses_
  };
  using Entries = std::map<std::string, Entry>;
  std::vector<Program> compiled(const std::vector<Graph>& graphs) const;
  /// What the engine would need with this binding alone.
  int64_t bytes_alone(std::span<const Program> programs) const;
  void drop(Entries::iterator entry);
  /// Drops the least recently used binding that is not pinned; false: there is none.
  bool drop_oldest();

  Engine& engine_;
  ProgramOptions options_;
  OnDrop on_drop_;
  int64_t budget_ = 0;
  Entries entries_;
  mutable uint64_t uses_ = 0;
  uint64_t pinned_from_ = UINT64_MAX;  // entries that were used before it may go
};

}  // namespace brrr
