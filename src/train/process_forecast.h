#pragma once
// The process forecast (machine/process_forecast.h) of a training run, with loaders, logs and
// checkpoints. Each run prints it at its end, beside the measured peak.

#include <cstdint>

#include "machine/process_forecast.h"
#include "train/dataset.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

struct ProcessInputs {
  int64_t vocabulary = 0;    // size of the model's vocabulary
  int64_t mapped_bytes = 0;  // bytes of token shards
  int64_t cached_bytes = 0;  // bytes of text that is tokenised while training
};

/// Returns the inputs for a run's data, which may be null.
ProcessInputs inputs_of(const TrainOptions& options, const Dataset* data, int64_t vocab_size);

/// `now` was measured when the data was open. `compiled`: it was measured after `session` had been
/// compiled, not before.
machine::ProcessForecast forecast_process(const TrainOptions& options, const Session& session,
                                          const ProcessInputs& inputs, const ResidentMemory& now,
                                          bool compiled = false);

}  // namespace brrr::train
