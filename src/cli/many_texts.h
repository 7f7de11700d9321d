#pragma once
// brrr generate --prompts: the answers to many prompts, several at once.

#include "folders/model_folder.h"
#include "infer/options.h"

namespace brrr::cli {

/// Prints a JSON object for each answer as it ends, or in the order of the prompts, or, with
/// --json, a list of all. Returns the exit code: 1 if a line of the file could not be run.
int generate_many(const infer::GenerateOptions& options, const io::ModelFolder& model);

}  // namespace brrr::cli
