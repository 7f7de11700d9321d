#pragma once
// A model's folder as what can be exported: Model::exchange for any batch and length.

#include <memory>

#include "folders/model_folder.h"
#include "modules/onnx/export/trial_source.h"

namespace brrr::infer {

/// Weights of a folder as f32, each read when it is first asked for and kept.
class FolderWeights {
 public:
  explicit FolderWeights(std::shared_ptr<const io::ModelFolder> folder);
  std::span<const std::byte> get(std::string_view parameter);

 private:
  std::shared_ptr<const io::ModelFolder> folder_;
  std::map<std::string, std::vector<float>> rooms_;
};

/// Its sizes are batch_size and sequence_length, and past_sequence_length `with_cache`.
onnx::TrialSource model_source(const std::shared_ptr<const io::ModelFolder>& folder,
                               bool with_cache);

}  // namespace brrr::infer
