#pragma once
// What --task dpo trains on: pairs of answers to a prompt, of which one is preferred.

#include <string>

#include "train/dataset.h"

namespace brrr::train {

/// Reads, renders and encodes the pairs of --data and --val-data, or holds out every k-th one.
/// `model_folder` is as for chat_dataset(); without --data there is only validation. Sequences that
/// are longer than the context lose their end; pairs of which nothing is left to compare are left
/// out, with a note. Throws UserError that names the line.
Dataset preference_dataset(const TrainOptions& options, const std::string& model_folder);

}  // namespace brrr::train
