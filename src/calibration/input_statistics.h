#pragma once
// Statistics of the inputs of linear layers: Gram matrices and magnitudes of each channel, summed
// over calibration rows by running the model in fp32 with additional outputs.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibration/observed_model.h"
#include "infer/room.h"
#include "passes/weights/weight_choice.h"
#include "runtime/runnable.h"
#include "runtime/runnable_session.h"

namespace brrr::calibration {

/// The rows that a layer multiplies, [rows, width].
struct InputStatistics {
  int64_t width = 0, rows = 0;
  std::vector<float> gram;  // [width, width]: the sum of xᵀ x
  std::vector<float> most;  // [width]: the largest magnitude of each input
  std::vector<float> mean;  // [width]: the mean magnitude of each input
};

/// By the name of the weight that multiplies the rows. Weights that multiply the same rows share
/// their statistics.
using StatisticsByWeight =
    std::map<std::string, std::shared_ptr<const InputStatistics>, std::less<>>;

/// The statistics of the rows that a weight multiplies; valid until the next call.
using StatisticsOf = std::function<const InputStatistics&(const std::string& weight)>;

/// Runs the model in fp32 on all of `runs` and sums up what the products with `weights` (names of
/// parameters) read. Weights that no product reads are left out. Throws UserError (exit 3) where
/// there is too little memory, and for inputs of a layer that are not finite.
StatisticsByWeight gather_statistics(const std::shared_ptr<const Runnable>& model,
                                     const ParameterSet& weights, const CalibrationRuns& runs,
                                     const infer::Memory& memory = {});

}  // namespace brrr::calibration
