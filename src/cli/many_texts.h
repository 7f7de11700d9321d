#pragma once
// brrr generate --prompts: the answers to many prompts, several at once.

#include "folders/model_folder.h"
#include "infer/options.h"

namespace brrr::cli {

/// Answers every prompt of --prompts and prints a JSON object per answer: when it ends, in the
/// order of the prompts (--ordered), or all in one list (--json). Returns the exit code: 1 if a
/// line of the file is invalid, which does not keep the others from running.
int generate_many(const infer::GenerateOptions& options, const io::ModelFolder& model);

}  // namespace brrr::cli
