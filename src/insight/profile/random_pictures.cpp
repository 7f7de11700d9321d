#include "insight/profile/random_pictures.h"

#include <algorithm>

#include "base/rng.h"

namespace brrr::insight {

void fill_random_pictures(const models::PictureSizes& picture, int64_t rows, int64_t classes,
                          int64_t index, io::Batch& batch) {
  constexpr uint32_t kPictureSeed = 11;
  const RngKey key{kPictureSeed, static_cast<uint32_t>(index)};
  const auto count = static_cast<size_t>(rows * picture.elements());
  const std::span<float> pixels = batch.make("pixels", count, 0.0f);
  const auto sum_of_four = [](const auto& words) {
    float sum = 0;
    for (const uint32_t word : words) sum += uniform_from_bits(word) - 0.5f;
    return 1.732f * sum;  // of variance 1
  };
  for (size_t i = 0; i < count; ++i) pixels[i] = sum_of_four(philox(key, 0, i));
  const std::span<int32_t> targets = batch.make<int32_t>("targets", static_cast<size_t>(rows), 0);
  for (size_t row = 0; row < targets.size(); ++row)
    targets[row] = static_cast<int32_t>(philox(key, 1, row)[0] %
                                        static_cast<uint64_t>(std::max<int64_t>(1, classes)));
  batch.count = rows;
}

}  // namespace brrr::insight
