#include "data/labelled/labelled_batches.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/sha256.h"

namespace brrr::io {

LabelledBatches::LabelledBatches(const std::vector<EncodedRow>& rows, std::string name,
                                 const BatchOptions& options, const LabelledBatchOptions& labelled)
    : rows_(rows), name_(std::move(name)), options_(options), labelled_(labelled) {
  check_options(options);
  if (options.mode != Sampling::kEpoch && options.mode != Sampling::kGroupByLength &&
      options.mode != Sampling::kSequential)
    usage_error(
        "sampling '{}' does not work with labelled texts; expected epoch, group_by_length or "
        "sequential",
        name_of(options.mode));
  if (rows.empty()) user_error("{} has no rows; expected texts with labels", name_);
  values_ = labelled.kind == LabelKind::kValues ? rows[0].values.size() : 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const EncodedRow& row = rows[i];
    const auto length = static_cast<int64_t>(row.ids.size());
    if (length < 1 || length > options.context)
      user_error("{}: row {} has {} tokens; expected 1 to {}, the context", name_, i + 1, length,
                 options.context);
    for (const int32_t id : row.ids)
      if (id < 0 || id >= options.vocab)
        user_error("{}: row {} has the token {}; the vocabulary has {}, numbered from 0", name_,
                   i + 1, id, options.vocab);
    BRRR_CHECK(row.types.empty() || row.types.size() == row.ids.size(), "{} types of {} tokens",
               row.types.size(), length);
    BRRR_CHECK(labelled.kind != LabelKind::kTags || row.tags.size() == row.ids.size(),
               "{} tags of {} tokens", row.tags.size(), length);
    BRRR_CHECK(labelled.kind != LabelKind::kValues || row.values.size() == values_,
               "{} values, {} in the first row", row.values.size(), values_);
    tokens_ += length;
  }
  order_.emplace(
      rows.size(), [this](size_t i) { return static_cast<int64_t>(rows_[i].ids.size()); },
      options_);
}

std::string LabelledBatches::fingerprint() const {
  Sha256 hash;
  const auto add = [&]<typename T>(const std::vector<T>& list) {
    const uint64_t size = list.size();
    hash.update(&size, sizeof size);
    hash.update(list.data(), list.size() * sizeof(T));
  };
  hash.update(fmt::format("labelled {}", static_cast<int>(labelled_.kind)));
  for (const EncodedRow& row : rows_) {
    add(row.ids);
    add(row.types);
    hash.update(&row.label, sizeof row.label);
    add(row.values);
    add(row.tags);
  }
  return hash.finish_hex();
}

void LabelledBatches::fill(int64_t index, Batch& batch) const {
  const auto [rows, length] = order_->batch(index);
  const auto B = static_cast<size_t>(options_.batch);
  std::vector<int64_t> lengths;
  for (const size_t row : rows) lengths.push_back(std::ssize(rows_[row].ids));
  const auto [tokens, begins] = batch.make_rows(lengths, options_, length, labelled_.pad);
  const size_t all = tokens.size();
  const auto targets =
      batch.make("targets", labelled_.kind == LabelKind::kTags ? all : B, kIgnoreId);
  std::span<int32_t> types;
  if (labelled_.has_types) types = batch.make<int32_t>("types", all, 0);
  std::span<float> values;
  if (values_ > 0) values = batch.make<float>("values", B * values_, 0);
  const auto put = [](const auto& list, auto into, size_t at) {
    std::ranges::copy(list, into.subspan(at).begin());
  };
  for (size_t b = 0; b < rows.size(); ++b) {
    const EncodedRow& row = rows_[rows[b]];
    put(row.ids, tokens, begins[b]);
    if (labelled_.has_types) put(row.types, types, begins[b]);
    switch (labelled_.kind) {
      case LabelKind::kClasses:
        targets[b] = row.label;
        break;
      case LabelKind::kValues:
        put(row.values, values, b * values_);
        targets[b] = 0;
        break;
      case LabelKind::kTags:
        put(row.tags, targets, begins[b]);
        break;
    }
  }
  batch.count = std::ssize(targets) - std::ranges::count(targets, kIgnoreId);
}

}  // namespace brrr::io
