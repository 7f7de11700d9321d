#pragma once
// What a model for pictures is trained on: pictures with classes, for training and for validation.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/batch_source.h"
#include "models/model.h"
#include "train/options.h"

namespace brrr::train {

struct TaskPictures {
  using MakeBatches = std::function<std::unique_ptr<io::BatchSource>(const io::BatchOptions&)>;
  std::vector<std::string> labels;  // the names of the classes
  MakeBatches train, val;           // val is null where there is nothing to validate on
  int64_t image_size = 0;           // of the model's input
  /// The text of preprocessor_config.json: how a picture becomes the input of the model.
  std::string preprocessor;
  std::string description;         // one line for the user
  std::vector<std::string> notes;  // what the user should know of the data
  int64_t cached_bytes = 0;        // of decoded pictures that are kept
};

/// Whether pictures are mixes of two (--mixup).
bool mixes_pictures(const TrainOptions& options);

/// Finds the pictures of --data and --val-data for a model that begins as `known`, which a run from
/// scratch has not, in `folder`. Throws UserError.
TaskPictures load_pictures(const TrainOptions& options, const models::ModelPtr& known,
                           const fs::path& folder);

}  // namespace brrr::train
