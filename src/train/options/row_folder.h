#pragma once
// --data FOLDER for conversations and preference pairs: train.jsonl and valid.jsonl in one folder,
// the layout of MLX-LM and of Hugging Face `datasets`.

#include "train/options.h"

namespace brrr::train {

/// Replaces a folder in --data by its train.jsonl and, unless --val-data or --val-fraction was
/// given, takes its valid.jsonl, validation.jsonl or val.jsonl for validation. Other tasks keep
/// their folders. Throws UserError (exit 2) for a folder without train.jsonl, and for one with
/// train.jsonl where no task was named.
void fill_row_folder(TrainOptions& options);

}  // namespace brrr::train
