#include "data/batch_source.h"

#include <numeric>

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
  BRRR_CHECK(o.vocab > 0, "vocab {}", o.vocab);
}

Batch::Text Batch::make_text(int64_t batch, int64_t context) {
  const auto positions = static_cast<size_t>(batch * context);
  count = 0;
  const auto tokens = make<int32_t>("tokens", positions, 0);
  return {tokens, make("targets", positions, kIgnoreId)};
}

Batch::TokenRows Batch::make_rows(std::span<const int64_t> lengths, const BatchOptions& options,
                                  int64_t length, int32_t pad) {
  const auto B = static_cast<size_t>(options.sequences());
  BRRR_CHECK(lengths.size() <= B, "{} rows in a batch of {}", lengths.size(), B);
  TokenRows rows{{}, std::vector<size_t>(B)};
  if (!options.flat) {
    const auto T = static_cast<size_t>(length);
    rows.tokens = make("tokens", B * T, pad);
    const auto counts = make<int32_t>("lengths", B, 1);
    for (size_t b = 0; b < B; ++b) {
      rows.begins[b] = b * T;
      if (b < lengths.size()) counts[b] = std::max(1, static_cast<int32_t>(lengths[b]));
    }
    return rows;
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto fitting = std::ranges::lower_bound(options.lengths, tokens);
  const int64_t most = options.batch * options.context;
  const auto N = static_cast<size_t>(fitting == options.lengths.end() ? most : *fitting);
  BRRR_CHECK(tokens <= static_cast<int64_t>(N), "{} tokens in a batch of {}", tokens, N);
  rows.tokens = make("tokens", N, pad);
  const auto starts = make<int32_t>("starts", B + 1, 0);
  const auto positions = make<int32_t>("positions", N, 0);
  for (size_t b = 0; b < B; ++b) {
    rows.begins[b] = static_cast<size_t>(starts[b]);
    const int32_t row = b < lengths.size() ? static_cast<int32_t>(lengths[b]) : 0;
    starts[b + 1] = starts[b] + row;
    std::iota(positions.begin() + starts[b], positions.begin() + starts[b + 1], 0);
  }
  return rows;
}

std::vector<Batch::Row> Batch::rows(int64_t of_equal_length) const {
  std::vector<Row> list;
  const std::vector<int32_t>&starts = ids("starts"), &lengths = ids("lengths");
  for (size_t b = 0; b + 1 < starts.size(); ++b)
    list.push_back(
        {static_cast<size_t>(starts[b]), static_cast<size_t>(starts[b + 1] - starts[b])});
  if (!starts.empty()) return list;
  const size_t all = lengths.empty() ? static_cast<size_t>(of_equal_length) : lengths.size();
  const size_t width = positions() / all;
  for (size_t b = 0; b < all; ++b)
    list.push_back({b * width, lengths.empty() ? width : static_cast<size_t>(lengths[b])});
  return list;
}

Batch Batch::owned() const {
  Batch copy = *this;
  for (Tensor& t : copy.tensors)
    if (const std::span<const std::byte> bytes = t.bytes(); t.is_borrowed())
      t.numbers = std::vector(bytes.begin(), bytes.end());
  return copy;
}

size_t Batch::Tensor::size() const {
  return std::visit([](const auto& list) { return list.size(); }, numbers);
}

std::span<const std::byte> Batch::Tensor::bytes() const {
  return std::visit([](const auto& list) { return std::as_bytes(std::span(list)); }, numbers);
}

}  // namespace brrr::io
