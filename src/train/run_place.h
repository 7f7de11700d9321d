#pragma once
// Where a new run writes: chosen and checked before any work is done, taken when it begins.

#include <string>

#include "base/file.h"
#include "train/options.h"

namespace brrr::train {

/// The folder as messages and commands show it: without a slash at its end.
fs::path without_last_slash(const std::string& folder);

/// Throws UserError when --output-dir cannot be made or written to, or holds files that the run
/// would replace and --overwrite was not given. Changes nothing.
void check_run_folder(const TrainOptions& options);

/// Creates --output-dir, or the first free runs/<preset>-<n>, which no other process then gets.
fs::path make_run_folder(const TrainOptions& options);

/// Removes what a run writes, and no file that the user put there.
void remove_old_run(const fs::path& run);

}  // namespace brrr::train
