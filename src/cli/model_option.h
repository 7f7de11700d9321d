#pragma once
// The --model option of the verbs that use a model.

#include <cstdint>
#include <string>
#include <vector>

#include "folders/model_folder.h"

namespace brrr::cli {

/// Finds and opens the model; damaged checkpoints that were passed over are named on stderr.
io::ModelFolder open_named_model(const std::string& name);

/// Where a text begins when nothing was asked for: the begin-of-text token where the tokenizer puts
/// one before texts, else a newline, or the first token of a vocabulary that has none.
std::vector<int32_t> default_prompt(const io::Tokenizer& tokenizer);

}  // namespace brrr::cli
