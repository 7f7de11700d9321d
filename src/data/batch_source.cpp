#include "data/batch_source.h"

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr struct {
  Sampling mode;
  std::string_view name;
} kModes[] = {{Sampling::kRandom, "random"},
              {Sampling::kEpoch, "epoch"},
              {Sampling::kSequential, "sequential"},
              {Sampling::kDocuments, "documents"},
              {Sampling::kGroupByLength, "group_by_length"}};

}  // namespace

std::string_view name_of(Sampling mode) {
  for (const auto& entry : kModes)
    if (entry.mode == mode) return entry.name;
  return "unknown";
}

Sampling sampling_from_name(std::string_view name) {
  for (const auto& entry : kModes)
    if (entry.name == name) return entry.mode;
  usage_error(
      "unknown sampling '{}': expected random, epoch, sequential, documents or group_by_length",
      name);
}

void check_options(const BatchOptions& o) {
  if (o.batch < 1) usage_error("the batch size is {}; expected at least 1", o.batch);
  if (o.context < 1) usage_error("the context is {} tokens; expected at least 1", o.context);
  if (o.batch > (int64_t{1} << 40) / o.context)
    usage_error("a batch of {} rows of {} tokens is too large for any memory", o.batch, o.context);
  BRRR_CHECK(o.batches_per_step >= 1, "{} batches per step", o.batches_per_step);
  BRRR_CHECK(o.world >= 1 && o.rank >= 0 && o.rank < o.world, "rank {} of {}", o.rank, o.world);
  BRRR_CHECK(o.vocab > 0, "vocab {}", o.vocab);
}

Batch::Text Batch::make_text(int64_t batch, int64_t context) {
  const auto positions = static_cast<size_t>(batch * context);
  count = 0;
  const auto tokens = make<int32_t>("tokens", positions, 0);
  return {tokens, make("targets", positions, kIgnoreId)};
}

size_t Batch::Tensor::size() const {
  return std::visit([](const auto& list) { return list.size(); }, numbers);
}

std::span<const std::byte> Batch::Tensor::bytes() const {
  return std::visit([](const auto& list) { return std::as_bytes(std::span(list)); }, numbers);
}

}  // namespace brrr::io
