#pragma once
// One layer of options over those below it: a preset, a file, or the command line. Later layers win
// over earlier ones; within a layer no order counts, so settings that contradict each other are
// refused.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "train/options.h"

namespace brrr::train {

/// An option as it was given. `where` ("--n-layer", "run.toml:3: n_layer") opens the message of a
/// refused value, `unknown_where` that of an unknown key.
struct PlacedOption {
  std::string key, value, where, unknown_where;
  std::string typed = {};  // the value as it was given, where `value` is its translation
};

/// Appends the option, or what it says in our names (foreign_names.h). Throws UserError (exit 2)
/// for an unknown key and for a value without a meaning here.
void append_in_our_names(std::vector<PlacedOption>& all, const PlacedOption& option);

/// Sets fields of `options`, which must outlive it. A list that a layer names starts empty, so that
/// it replaces the list below.
class OptionLayer {
 public:
  enum class Source { preset, file, command_line };

  /// `given`: receives the canonical names of what is set; null: nobody asked for it, as in a
  /// preset.
  OptionLayer(TrainOptions& options, Source source, std::set<std::string>* given);

  /// Throws UserError (exit 2) for a refused value or an unknown key, and where an earlier setting
  /// of this layer contradicts the new one.
  void set(const PlacedOption& option);

 private:
  using Row = OptionTable<TrainOptions>::Row;
  struct Setting {
    const Row* row;
    std::string value, where, typed;
  };

  void refuse_contradiction(const Setting& now) const;
  bool depends_on_order(const Setting& a, const Setting& b) const;
  std::string shown(const Setting& setting) const;

  TrainOptions& options_;
  const TrainOptions below_;
  Source source_;
  std::set<std::string>* given_;
  std::set<std::string> lists_;                   // named in this layer
  std::multimap<std::string, Setting> settings_;  // by the field that they set
};

}  // namespace brrr::train
