#pragma once
// Figures of a finished run as JSON.

#include <nlohmann/json_fwd.hpp>

#include "train/trainer.h"

namespace brrr::train {

/// What `brrr report` cannot read off the steps: the last record of the run's log.
nlohmann::json figures_for_log(const TrainResult& result);

}  // namespace brrr::train
