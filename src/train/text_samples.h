#pragma once
// Texts that a model writes while it trains (--sample-steps) and at the end of its run. What they
// are is a function of the options, the step and the weights: a run that is killed and resumed
// writes the same ones. The program that continues them is one of the session's, so that it reads
// the parameters in training and its memory is part of the plan; nothing that a step reads is
// changed.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "sampling/sampler.h"
#include "text/tokenizer.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

/// The decoding graph of a session whose run writes samples. Throws UserError (exit 2) for a model
/// that continues no text.
Graph sampling_graph(const TrainOptions& options, const models::Model& model);

class TextSamples {
 public:
  /// The new tokens after a prompt.
  using Continue = std::function<std::vector<int32_t>(std::span<const int32_t> prompt,
                                                      int64_t count, infer::Sampler sampler)>;
  /// Throws UserError (exit 2) for a --sample-prompt that the tokenizer refuses. `tokenizer`
  /// outlives it.
  TextSamples(const TrainOptions& options, const io::Tokenizer& tokenizer);

  /// --samples texts of the model after that step.
  std::vector<std::string> write(int64_t step, const Continue& more) const;
  /// The positions that a text takes.
  int64_t positions() const;

 private:
  const io::Tokenizer& tokenizer_;
  std::vector<int32_t> prompt_;
  bool shows_prompt_;  // the user gave one
  int64_t tokens_, count_;
  infer::Sampling sampling_;
};

/// Continues texts with the parameters of the session, whose graph sampling_graph() made; to be
/// used until they change. `stops`: asked after each token.
TextSamples::Continue continue_with(Session& session, const TrainOptions& options,
                                    const models::Model& model, std::function<bool()> stops);

/// For the terminal, indented, whatever bytes the texts hold; no newline at the end.
std::string sample_block(int64_t step, const std::vector<std::string>& texts);

}  // namespace brrr::train
