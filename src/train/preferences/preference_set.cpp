#include "train/preferences/preference_set.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/integers.h"
#include "formats/safetensors.h"
#include "models/losses/preference_loss.h"
#include "runtime/ranks/communicator.h"
#include "train/session.h"

namespace brrr::train {
namespace {

constexpr const char *kTrainPart = "train", *kValidationPart = "validation";

/// Computes the log probabilities of a part's pairs; nullopt if the pass was stopped.
std::optional<std::vector<float>> log_probabilities(const PreferencePart& part,
                                                    const ReferencePass& pass, int64_t done) {
  Communicator* const communicator = pass.communicator;
  const int64_t ranks = communicator == nullptr ? 1 : communicator->ranks(),
                rank = communicator == nullptr ? 0 : communicator->rank();
  std::unique_ptr<io::BatchSource> source = part.batches(pass.loader);
  const int64_t batches = source->batches_per_pass();
  const auto per_batch = static_cast<size_t>(pass.loader.sequences());
  const auto is_stopped = [&] { return pass.stops && pass.stops(); };
  io::Loader loader(std::move(source), pass.loader);
  std::vector<float> all(static_cast<size_t>(batches) * per_batch), own, values;
  for (int64_t i = 0; i < batches; ++i) {
    const io::Batch& batch = loader.next();
    done += batch.count;
    // Programs may contain collectives: ranks without a batch of their own repeat the last one.
    const bool is_own = i % ranks == rank;
    if (!is_own && !(i + 1 == batches && rank > i % ranks)) continue;
    pass.session.sums(batch, models::kLogProbabilities, &values);
    BRRR_CHECK(values.size() == per_batch, "{} log probabilities of {} sequences", values.size(),
               per_batch);
    if (is_own) own.insert(own.end(), values.begin(), values.end());
    if (pass.progress) pass.progress(done);
    if (communicator == nullptr && is_stopped()) return std::nullopt;
  }
  // Copies the batches of one rank, which are every ranks-th one, to their places.
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
    // Ranks stop together.
    const std::vector<uint8_t> told =
        communicator->gather_values(static_cast<uint8_t>(is_stopped() ? 1 : 0));
    if (std::ranges::find(told, 1) != told.end()) return std::nullopt;
  }
  return all;
}

}  // namespace

void PreferencePart::set_reference(std::vector<float> values) {
  values.resize(2 * pairs.size());
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      user_error(
          "the model gives the {} answer of pair {} the log probability {}: a model that is sound "
          "gives finite ones",
          i % 2 == 0 ? "chosen" : "rejected", i / 2 + 1, values[i]);
  reference = std::move(values);
}

std::unique_ptr<io::BatchSource> PreferencePart::batches(const io::BatchOptions& options) const {
  return std::make_unique<io::PreferenceBatches>(tokens, pairs, learnt, reference, options);
}

std::string PreferencePart::fingerprint() const {
  return pairs.empty() ? "" : io::fingerprint_of(tokens, pairs, learnt);
}

int64_t PreferencePart::longest() const {
  int64_t most = 0;
  for (const io::PreferencePair& pair : pairs)
    for (const io::Document& d : {pair.chosen, pair.rejected})
      most = std::max(most, d.end - d.begin - 1);  // the last token is only a target
  return most;
}

bool PreferenceSet::compute_reference(const ReferencePass& pass) {
  std::optional<std::vector<float>> of_train = log_probabilities(train, pass, 0);
  if (!of_train) return false;
  std::optional<std::vector<float>> of_validation = std::vector<float>();
  if (!validation.pairs.empty())
    of_validation = log_probabilities(validation, pass, std::ssize(train.pairs));
  if (!of_validation) return false;
  train.set_reference(*std::move(of_train));
  validation.set_reference(*std::move(of_validation));
  return true;
}

void PreferenceSet::write_reference(const fs::path& file) const {
  std::vector<io::TensorView> tensors;
  for (const auto& [name, part] : {std::pair{kTrainPart, &train}, {kValidationPart, &validation}})
    tensors.push_back({name,
                       DType::f32,
                       {std::ssize(part->reference) / 2, int64_t{2}},
                       std::as_bytes(std::span(part->reference))});
  io::write_safetensors(
      file, tensors,
      {{kTrainPart, train.fingerprint()}, {kValidationPart, validation.fingerprint()}});
}

void PreferenceSet::read_reference(const fs::path& path) {
  const io::SafetensorsFile file(path);
  for (const auto& [name, part] : {std::pair{kTrainPart, &train}, {kValidationPart, &validation}}) {
    const io::TensorView* tensor = file.find(name);
    const auto named = file.metadata().find(name);
    if (tensor == nullptr || tensor->dtype != DType::f32 || tensor->shape.rank() != 2 ||
        tensor->shape.size(1) != 2 || named == file.metadata().end())
      user_error("{}: not the log probabilities of a reference: it has no '{}' as f32 pairs",
                 file.what(), name);
    if (named->second != part->fingerprint() || tensor->shape.size(0) != std::ssize(part->pairs))
      user_error(
          "{}: the run has the reference's log probabilities of other {} pairs than those it is "
          "given now; name the same files",
          file.what(), name);
    part->reference.resize(2 * part->pairs.size());
    io::copy_as_f32(*tensor, part->reference);
  }
}

}  // namespace brrr::train
