#pragma once
// The text whose tokens a model is calibrated on.

#include <string>
#include <vector>

#include "calibration/input_statistics.h"
#include "folders/model_folder.h"

namespace brrr::calibration {

struct CalibrationText {
  CalibrationRuns runs;     // of one window of the text each
  int64_t tokens = 0;       // in all runs
  std::string description;  // "tiny Shakespeare"
};

/// Windows of at most `most` tokens in all, spread evenly over the text. `files`: text files, one
/// text per line for an encoder; empty: the beginning of the default text, of which measurements
/// take the end. Throws UserError for text that is too short or that the tokenizer does not know.
CalibrationText calibration_text(const io::ModelFolder& model,
                                 const std::vector<std::string>& files, int64_t most);

/// The forward pass that takes those windows.
std::shared_ptr<const Runnable> calibrated_runnable(const io::ModelFolder& model);

}  // namespace brrr::calibration
