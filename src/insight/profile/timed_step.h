#pragma once
// The training step of some options on random tokens, for everything that measures steps.

#include <limits>
#include <memory>
#include <vector>

#include "data/batch_source.h"
#include "models/model.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::insight {

/// Characters of tiny Shakespeare: the vocabulary of presets that take theirs from a text.
inline constexpr int64_t kCharacters = 65;

/// A session with its memory, random weights and a step's worth of random tokens. No text is read
/// and no file is written.
class TimedStep {
 public:
  /// `options` are resolved; a vocabulary of 0 is kCharacters. `model`: that one, which they have
  /// adopted, instead of the one that they describe. Throws UserError (exit 3) before
  /// anything is allocated when the process, or the arena in a GPU's memory, would need more than
  /// `memory_limit`.
  explicit TimedStep(const train::TrainOptions& options,
                     int64_t memory_limit = std::numeric_limits<int64_t>::max(),
                     models::ModelPtr model = nullptr);

  /// One optimizer step, all its micro-batches; returns its loss, before the update.
  double run(Timeline* timeline = nullptr);

  const train::TrainOptions& options() const { return options_; }
  const models::Model& model() const { return *model_; }
  train::Session& session() { return *session_; }
  const train::Session& session() const { return *session_; }
  /// Rows and tokens of a step, over all micro-batches.
  int64_t rows() const;
  int64_t tokens() const;
  /// models::Model::flops_per_token, attention causal.
  double flops_per_token() const { return model_->flops_per_token(options_.context); }

 private:
  train::TrainOptions options_;
  models::ModelPtr model_;
  std::unique_ptr<train::Session> session_;
  std::vector<io::Batch> batches_;  // the micro-batches of a step, all the same
  int64_t done_ = 0;
};

}  // namespace brrr::insight
