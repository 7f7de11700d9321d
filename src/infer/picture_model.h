#pragma once
// PictureModel: the classes or the feature vectors of pictures, by a model of models/. A picture
// has the same result in any batch.

#include <functional>
#include <memory>
#include <span>

#include "data/images/augment.h"
#include "data/images/image_set.h"
#include "folders/model_folder.h"
#include "infer/encoder.h"
#include "infer/evaluate_task.h"

namespace brrr::infer {

class PictureModel {
 public:
  /// Opened without a tokenizer. Throws UserError for a model that sees no pictures, and (exit 3)
  /// where a batch does not fit the memory.
  PictureModel(const io::ModelFolder& model, const Backend& backend, const EncoderOptions& options);

  const io::PictureForm& form() const { return form_; }
  /// Pictures of a batch.
  int64_t batch() const { return batch_; }
  /// pixels: [n, C, H, W] of form(). Calls `on_picture` with the logits or the vector of each.
  void run(std::span<const float> pixels,
           const std::function<void(size_t picture, std::span<const float>)>& on_picture);

 private:
  models::ModelPtr model_;
  io::PictureForm form_;
  int64_t batch_;
  std::unique_ptr<Runner> runner_;
};

/// Scores a model on pictures with the model's classes. Up to `skip_bad_images` pictures that
/// cannot be read do not count. Throws UserError for one more, and for a model that gives NaN.
struct PictureEvaluationOptions {
  EncoderOptions run = {};
  int64_t skip_bad_images = 0;
  int64_t max_pixels = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};
  /// Divides the batches among these ranks, which all get the whole result. Null: no others.
  Communicator* communicator = nullptr;
};
TaskEvaluation evaluate_pictures(const io::ModelFolder& model, const io::ImageSet& set,
                                 const Backend& backend, const PictureEvaluationOptions& options);

}  // namespace brrr::infer
