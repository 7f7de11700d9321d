#pragma once
// Tracks stale derived weights (passes/weights/derived_weight.h). An update makes those again that
// its program knows; when others wrote a parameter, or a program reads one that the last update
// does not know, they are stale until the refresh program has run.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "passes/weights/derived_weight.h"

namespace brrr {

class WeightRefresher {
 public:
  /// `refreshes` is off where nobody writes parameters but a loader, who makes every derived
  /// weight, once.
  explicit WeightRefresher(bool refreshes = true) : refreshes_(refreshes) {}

  /// Takes note of what a program reads and updates. Whether it brought parameters or derived
  /// weights that were not known. Throws UserError for a derived weight that is none.
  bool add(size_t program, const Graph& graph);
  void remove(size_t program) { programs_.erase(program); }

  /// Whether the engine makes a derived weight again, because it holds the sources. Else it takes
  /// their place, and whoever loads parameters makes it.
  bool is_refreshed(std::string_view name) const;
  const DerivedWeight& weight(std::string_view name) const { return weights_.find(name)->second; }
  /// Those that are refreshed.
  std::vector<DerivedWeight> refreshable() const;

  /// No program has this derived weight any longer.
  void forget(const std::string& name) {
    weights_.erase(name);
    stale_.erase(name);
  }
  /// A derived weight that is refreshed was never made.
  void must_make(const std::string& name) { stale_.insert(name); }

  /// A parameter was written by others than programs.
  void wrote(std::string_view parameter);
  bool reads_stale(size_t program) const;
  /// Whether the first program makes something stale that the second reads.
  bool must_refresh_between(size_t first, size_t second) const;
  void ran(size_t program);
  /// It may have ended anywhere: what is made of a parameter that it updates is stale.
  void failed(size_t program);
  void refreshed() { stale_.clear(); }

 private:
  using Names = std::set<std::string, std::less<>>;
  struct Use {
    Names reads;    // derived weights
    Names updates;  // parameters and derived weights
  };
  bool makes_stale(const Use& use, const DerivedWeight& weight, const std::string& name) const;

  bool refreshes_;
  std::map<std::string, DerivedWeight, std::less<>> weights_;
  Names parameters_;
  std::map<size_t, Use> programs_;
  Names stale_;
};

}  // namespace brrr
