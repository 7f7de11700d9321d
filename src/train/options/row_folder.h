#pragma once
// A folder of conversations or of preference pairs, as MLX-LM and `datasets` lay it out.

#include "train/options.h"

namespace brrr::train {

/// Replaces a folder in --data by its train.jsonl and, unless --val-data or --val-fraction was
/// given, takes its valid.jsonl, validation.jsonl or val.jsonl for validation. Other tasks keep
/// their folders. Throws UserError (exit 2) for a folder without train.jsonl, and for one with
/// train.jsonl where no task was named.
void fill_row_folder(TrainOptions& options);

}  // namespace brrr::train
