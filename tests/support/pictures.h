#pragma once
// Pictures of noise with classes, as a function of their number.

#include <cmath>

#include "data/batch_source.h"
#include "models/model.h"

namespace brrr::test {

/// "pixels" [rows, C, H, W] and "targets" [rows]; row r is picture first + r.
inline io::Batch picture_batch(const models::PictureSizes& picture, int64_t rows, int64_t classes,
                               int64_t first = 0) {
  io::Batch batch;
  const auto size = static_cast<size_t>(picture.elements());
  const std::span<float> pixels = batch.make("pixels", static_cast<size_t>(rows) * size, 0.0f);
  const std::span<int32_t> targets = batch.make<int32_t>("targets", static_cast<size_t>(rows), 0);
  for (size_t r = 0; r < targets.size(); ++r) {
    const auto number = static_cast<double>(first) + static_cast<double>(r);
    for (size_t i = 0; i < size; ++i)
      pixels[r * size + i] = static_cast<float>(
          std::sin(12.9898 * static_cast<double>(i + 1) + 78.233 * (number + 1)));
    targets[r] = static_cast<int32_t>((first + static_cast<int64_t>(r)) % classes);
  }
  batch.count = rows;
  return batch;
}

/// The config.json of a small ResNet for pictures of 3 x 12 x 12 and three classes.
inline std::string tiny_resnet(const std::string& more = "") {
  return R"({"model_type": "resnet", "architectures": ["ResNetForImageClassification"], )"
         R"("stem": "cifar", "image_size": 12, "embedding_size": 8, "hidden_sizes": [8, 12], )"
         R"("depths": [1, 1], "layer_type": "basic", "id2label": {"0": "a", "1": "b", "2": "c"})" +
         more + "}";
}

}  // namespace brrr::test
