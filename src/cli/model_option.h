#pragma once
// The --model option of the verbs that use a model.

#include <string>

#include "io/model_folder.h"

namespace brrr::cli {

/// Finds and opens the model; damaged checkpoints that were passed over are named on stderr.
io::ModelFolder open_named_model(const std::string& name);

}  // namespace brrr::cli
