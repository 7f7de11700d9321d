#pragma once
// The training by which a number format is judged: a small model of characters on the text at hand.

#include <optional>

#include "insight/ladder/climb.h"
#include "train/dataset.h"

namespace brrr::insight {

class FormatTraining {
 public:
  /// Of the user's options it takes those that name a text.
  explicit FormatTraining(const LadderOptions& options);

  /// "char-cpu (2 layers, 2 heads, width 64), 120 steps".
  std::string model() const;
  /// What the record is kept under.
  std::string key() const;
  /// Trains with the options of a format and adds to the result: figures "loss" (validation),
  /// "skipped" (steps that were not finite) and, of fp32, "activations" and "gradients" (Magnitudes
  /// of a step at the end); notes "text" and "origin". seed 0: the default one.
  void run(const KeyValues& format, int64_t seed, RungResult& result);

 private:
  KeyValues options_;
  std::optional<train::Dataset> data_;  // read at the first run
};

}  // namespace brrr::insight
