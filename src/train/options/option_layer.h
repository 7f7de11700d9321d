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

/// An option and the place where it was given. `where` ("--n-layer", "run.toml:3: n_layer") is the
/// prefix of the error message for a refused value, `unknown_where` for an unknown key.
struct PlacedOption {
  std::string key, value, where, unknown_where;
  std::string typed = {};  // the original value, if the option was translated; else empty
};

/// Appends the option to `all`. A name of another program is replaced by the options of ours that
/// it stands for (in_our_names()). Throws UserError (exit 2) for an unknown key and for a value of
/// such a name that no option of ours corresponds to.
void append_in_our_names(std::vector<PlacedOption>& all, const PlacedOption& option);

/// Sets fields of `options`, which must outlive it. A list that a layer names starts empty, so that
/// it replaces the list below.
class OptionLayer {
 public:
  enum class Source { preset, file, command_line };

  /// `given`: receives the canonical names of what is set; null: nobody asked for it, as in a
  /// preset.
  OptionLayer(TrainOptions& options, Source source, std::set<std::string>* given);

  /// Sets one option. Throws UserError (exit 2) if the key is unknown, the value is refused, or an
  /// earlier setting of this layer contradicts it.
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
