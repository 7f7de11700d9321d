#pragma once
// One layer of options over those below it: a preset, a file, or the command line. Later layers win
// over earlier ones; within a layer no order counts, so settings that contradict each other are
// refused.

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "train/options.h"

namespace brrr::train {

/// Sets fields of `options`, which must outlive it. A list that a layer names starts empty, so that
/// it replaces the list below.
class OptionLayer {
 public:
  enum class Source { preset, file, command_line };

  /// `given`: receives the canonical names of what is set; null: nobody asked for it, as in a
  /// preset.
  OptionLayer(TrainOptions& options, Source source, std::set<std::string>* given);

  /// `where` ("--n-layer", "run.toml:3: n_layer") opens the message of a refused value,
  /// `unknown_where` that of an unknown key. Throws UserError (exit 2) for these, and where an
  /// earlier setting of this layer contradicts the new one.
  void set(std::string_view key, const std::string& value, const std::string& where,
           const std::string& unknown_where);
  /// The same for a word of the command line.
  void set_from_command_line(const std::string& key, const std::string& value);

 private:
  using Row = OptionTable<TrainOptions>::Row;
  struct Setting {
    const Row* row;
    std::string value, where;
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
