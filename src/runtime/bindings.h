#pragma once
// Bindings: dynamic sizes mean one set of programs for each combination of sizes, compiled when it
// is first asked for and kept while there is room. The programs are the engine's: they share its
// state and its temporary bytes, so what a binding takes for itself is little.

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace brrr {

/// The sizes that programs are compiled for.
struct Binding {
  int64_t batch = 1, length = 0;
  auto operator<=>(const Binding&) const = default;
  /// "batch 1, length 64"
  std::string str() const;
};

class Bindings {
 public:
  /// The compiled graphs of a binding, one for each of its programs.
  using Compile = std::function<std::vector<Graph>(const Binding&)>;

  explicit Bindings(Engine& engine, const ProgramOptions& options = {})
      : engine_(engine), options_(options) {}
  /// What all bindings may take for themselves (own_bytes()), but for the one that is used; 0, as
  /// it is at first: any number.
  void set_budget(int64_t bytes) { budget_ = bytes; }

  /// The engine's ids of the binding's programs, compiled where they are not there. Beyond the
  /// budget, or where the engine's limit leaves no room, the bindings that were used longest ago
  /// are dropped. Throws UserError (exit 3) for a binding that does not fit alone, with the largest
  /// length that would.
  std::span<const size_t> get(const Binding& binding, const Compile& compile);
  /// The programs of a binding that is there; else none.
  std::span<const size_t> find(const Binding& binding) const;

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
  std::vector<Program> compiled(const Binding& binding, const Compile& compile) const;
  /// What the engine would need with this binding alone.
  int64_t bytes_alone(std::span<const Program> programs) const;
  [[noreturn]] void refuse(const Binding& binding, int64_t needed, const Compile& compile) const;
  void drop_oldest();

  Engine& engine_;
  ProgramOptions options_;
  int64_t budget_ = 0;
  std::map<Binding, Entry> entries_;
  mutable uint64_t uses_ = 0;
};

}  // namespace brrr
