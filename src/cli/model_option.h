#pragma once
// The --model option of the verbs that use a model.

#include <cstdint>
#include <string>
#include <vector>

#include "folders/model_folder.h"
#include "runtime/device.h"

namespace brrr::cli {

/// Finds the model's folder; damaged checkpoints that were passed over are named on stderr.
fs::path find_named_model(const std::string& name);
/// Finds and opens the model; damaged checkpoints that were passed over are named on stderr.
io::ModelFolder open_named_model(const std::string& name);

/// What --memory-limit leaves for weights and programs beside what the process has; 0, for any
/// number, where it was not given. A GPU has memory of its own. Throws UserError (exit 3).
int64_t arena_limit(const std::string& memory_limit, const Backend& backend);

/// Where a text begins when nothing was asked for: the begin-of-text token where the tokenizer puts
/// one before texts, else a newline, or the first token of a vocabulary that has none.
std::vector<int32_t> default_prompt(const io::Tokenizer& tokenizer);

}  // namespace brrr::cli
