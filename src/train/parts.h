#pragma once
// What the options mean to the parts of a run that they set up.

#include "data/loader.h"
#include "models/model.h"
#include "optim/schedule.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

/// The model that the options describe, for a tokenizer of that many tokens. Throws UserError
/// (exit 2) for a --vocab-size below it.
models::ModelPtr model_of(const TrainOptions& options, int64_t vocab_size);

/// A batch of a loader, as a session takes it; valid as long as it is.
inline Batch batch_of(const io::Batch& b) {
  return token_batch(b.inputs, b.targets, b.real_tokens);
}

/// How the options ask for steps to be compiled and run.
SessionOptions session_options(const TrainOptions& options);

/// The learning rate over the steps.
optim::Schedule schedule_of(const TrainOptions& options);

/// In which order the training data come, and who prepares them.
io::LoaderOptions loader_options(const TrainOptions& options, int64_t vocab_size);

}  // namespace brrr::train
