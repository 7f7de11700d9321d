#include "train/preferences/reference_scores.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/integers.h"
#include "formats/safetensors.h"
#include "models/losses/preference_loss.h"
#include "runtime/ranks/communicator.h"
#include "train/session.h"

namespace brrr::train {
namespace {

constexpr const char *kTrain = "train", *kValidation = "validation";

}  // namespace

std::vector<float> log_probabilities(Session& session, std::unique_ptr<io::BatchSource> source,
                                     const io::LoaderOptions& options, size_t pairs,
                                     Communicator* communicator) {
  const int64_t batches = source->batches_per_pass();
  const int64_t ranks = communicator == nullptr ? 1 : communicator->ranks(),
                rank = communicator == nullptr ? 0 : communicator->rank();
  const auto per_batch = static_cast<size_t>(options.sequences());
  io::Loader loader(std::move(source), options);
  std::vector<float> all(static_cast<size_t>(batches) * per_batch), own, values;
  for (int64_t i = 0; i < batches; ++i) {
    const io::Batch& batch = loader.next();
    // Programs may contain collectives: ranks without a batch of their own repeat the last one.
    const bool is_own = i % ranks == rank;
    if (!is_own && !(i + 1 == batches && rank > i % ranks)) continue;
    session.sums(batch, models::kLogProbabilities, &values);
    BRRR_CHECK(values.size() == per_batch, "{} log probabilities of {} sequences", values.size(),
               per_batch);
    if (is_own) own.insert(own.end(), values.begin(), values.end());
  }
  // `from`: every batch of a rank.
  const auto put = [&](int64_t batch, const float* from, size_t count) {
    for (size_t at = 0; at < count; at += per_batch, batch += ranks)
      std::copy_n(from + at, per_batch, all.begin() + batch * static_cast<int64_t>(per_batch));
  };
  if (communicator == nullptr) {
    put(0, own.data(), own.size());
  } else {
    own.resize(static_cast<size_t>(ceil_div(batches, ranks)) * per_batch);
    const auto gathered = communicator->gather(std::as_bytes(std::span(own)));
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t theirs = ceil_div(batches - r, ranks);
      put(r, reinterpret_cast<const float*>(gathered[static_cast<size_t>(r)].data()),
          static_cast<size_t>(std::max<int64_t>(theirs, 0)) * per_batch);
    }
  }
  all.resize(2 * pairs);
  for (size_t i = 0; i < all.size(); ++i)
    if (!std::isfinite(all[i]))
      user_error(
          "the model gives the {} answer of pair {} the log probability {}: a model that is sound "
          "gives finite ones",
          i % 2 == 0 ? "chosen" : "rejected", i / 2 + 1, all[i]);
  return all;
}

void write_reference(const fs::path& file, const ReferenceScores& scores,
                     const ReferenceData& data) {
  std::vector<io::TensorView> tensors;
  for (const auto& [name, values] :
       {std::pair{kTrain, &scores.train}, {kValidation, &scores.validation}})
    tensors.push_back({name,
                       DType::f32,
                       {std::ssize(*values) / 2, int64_t{2}},
                       std::as_bytes(std::span(*values))});
  io::write_safetensors(file, tensors, {{kTrain, data.train}, {kValidation, data.validation}});
}

ReferenceScores read_reference(const fs::path& path, const ReferenceData& data) {
  const io::SafetensorsFile file(path);
  const auto read = [&](const char* name, const std::string& of, size_t pairs) {
    const io::TensorView* tensor = file.find(name);
    const auto named = file.metadata().find(name);
    if (tensor == nullptr || tensor->dtype != DType::f32 || tensor->shape.rank() != 2 ||
        tensor->shape.size(1) != 2 || named == file.metadata().end())
      user_error("{}: not the log probabilities of a reference: it has no '{}' as f32 pairs",
                 file.what(), name);
    if (named->second != of || tensor->shape.size(0) != static_cast<int64_t>(pairs))
      user_error(
          "{}: the run has the reference's log probabilities of other {} pairs than those it is "
          "given now; name the same files",
          file.what(), name);
    std::vector<float> values(2 * pairs);
    io::copy_as_f32(*tensor, values);
    return values;
  };
  return {read(kTrain, data.train, data.train_pairs),
          read(kValidation, data.validation, data.validation_pairs)};
}

}  // namespace brrr::train
