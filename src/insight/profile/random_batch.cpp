#include "insight/profile/random_batch.h"

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

void fill_random_batch(const train::TrainOptions& options, const models::Model& model,
                       const io::BatchOptions& layout, int64_t index, io::Batch& batch) {
  const models::ModelSizes sizes = model.sizes();
  if (sizes.picture)
    return fill_random_pictures(*sizes.picture, layout.batch, sizes.vocabulary, index, batch);
  constexpr uint32_t kTextSeed = 7;
  const RngKey key{kTextSeed, static_cast<uint32_t>(index)};
  const train::TaskTraits& traits = train::traits_of(options);
  const models::Task task = model.task();
  const bool has_values = task.head == models::Head::values;
  const bool scores_rows = has_values || task.head == models::Head::classes;
  const int64_t per_row = traits.sequences_per_row;
  const auto rows = static_cast<size_t>(layout.batch);
  const auto labels = static_cast<uint64_t>(task.labels.size());
  const auto vocabulary = static_cast<uint64_t>(sizes.vocabulary);
  const std::vector<int64_t> lengths(rows * static_cast<size_t>(per_row), options.context);
  const std::span<int32_t> tokens =
      batch.make_rows(lengths, layout, per_row * options.context, 0).tokens;
  const auto targets = batch.make<int32_t>("targets", scores_rows ? rows : tokens.size(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto words = philox(key, 0, i);
    tokens[i] = static_cast<int32_t>(words[0] % vocabulary);
    if (i < targets.size() && !has_values)
      targets[i] = static_cast<int32_t>(words[1] % (labels > 0 ? labels : vocabulary));
  }
  batch.make<int32_t>("types", tokens.size(), 0);
  if (has_values) batch.make("values", rows * labels, 0.5f);
  batch.count = std::ssize(targets);
  if (traits.has_reference) {
    batch.make("reference", static_cast<size_t>(layout.sequences()), 0.0f);
    batch.count = layout.batch;
  }
}

}  // namespace brrr::insight
