#pragma once
// A folder of conversations or of preference pairs, as MLX-LM and `datasets` lay it out.

#include "train/options.h"

namespace brrr::train {

/// Replaces a folder in --data by its train.jsonl and, unless --val-data was given, makes its
/// valid.jsonl, validation.jsonl or val.jsonl the validation file. Other tasks keep their folders.
void fill_row_folder(TrainOptions& options);

}  // namespace brrr::train
