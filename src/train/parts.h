#pragma once
// What the options mean to the parts of a run that they set up.

#include "data/loader.h"
#include "models/gpt2/gpt2_config.h"
#include "optim/schedule.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

/// The configuration of the model that the options describe.
models::Gpt2Config model_config(const TrainOptions& options, int64_t vocab_size);

/// How the options ask for steps to be compiled and run.
SessionOptions session_options(const TrainOptions& options);

/// The learning rate over the steps.
optim::Schedule schedule_of(const TrainOptions& options);

/// In which order the training data come, and who prepares them.
io::LoaderOptions loader_options(const TrainOptions& options, int64_t vocab_size);

}  // namespace brrr::train
