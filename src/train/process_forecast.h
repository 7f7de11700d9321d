#pragma once
// The process forecast (machine/process_forecast.h) of a training run: adds loaders, logs and
// checkpoints. Every run prints it beside the measured peak at its end.

#include <cstdint>

#include "machine/process_forecast.h"
#include "train/dataset.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

struct ProcessInputs {
  int64_t vocabulary = 0;    // of the model
  int64_t mapped_bytes = 0;  // of token shards
  int64_t cached_bytes = 0;  // of text that is tokenised while training
};

/// What the data of the run take. `data` may be none.
ProcessInputs inputs_of(const TrainOptions& options, const Dataset* data, int64_t vocab_size);

/// `now` was measured when the data was open: before anything was compiled, or, where `compiled`
/// says so, with `session` in it.
machine::ProcessForecast forecast_process(const TrainOptions& options, const Session& session,
                                          const ProcessInputs& inputs, const ResidentMemory& now,
                                          bool compiled = false);

}  // namespace brrr::train
