#include "data/stream_batches.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/integers.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "data/permutation.h"

namespace brrr::io {
namespace {

constexpr uint32_t kPlaceStream = 0x53540000u;
constexpr uint32_t kRowOrderKey = 0x726f7773u;  // apart from the order of the chunks
constexpr int64_t kGroupChunks = 16;
constexpr uint64_t kSamples = 64, kSampleBytes = 4096;

/// Large, so that few rows are a chunk's short last one; small, so that a group is little memory.
uint64_t chunk_bytes_for(int64_t context) {
  const auto positions = static_cast<uint64_t>(context);
  constexpr uint64_t kLeast = 1 << 14, kMost = 1 << 18;
  return std::max(std::clamp(256 * positions, kLeast, kMost), 16 * positions);
}

}  // namespace

struct StreamBatches::Group {
  struct Row {
    uint32_t chunk, offset;  // ids [offset, offset + T] of that chunk, or what there is of them
  };
  int64_t number = 0;
  std::vector<std::vector<int32_t>> chunks;  // the ids of each and the one behind
  std::vector<Row> rows;                     // in the text's order
};

StreamBatches::StreamBatches(const TextFiles& text, const Tokenizer& tokenizer,
                             const BatchOptions& options)
    : text_(text),
      tokenizer_(tokenizer),
      options_(options),
      chunk_bytes_(chunk_bytes_for(options.context)) {
  check_options(options);
  BRRR_CHECK(options.mode == Sampling::kRandom || options.mode == Sampling::kEpoch,
             "a stream does not support sampling {}", name_of(options.mode));
  BRRR_CHECK(options.vocab >= tokenizer.vocab_size(), "vocab {}", options.vocab);
  if (tokenizer.cut_rule().never())
    user_error(
        "this {} tokenizer cannot tokenise a text in pieces: no place is known where splitting the "
        "text keeps its tokens; use --tokenize ahead, or make shards with `brrr data prepare`",
        tokenizer.kind());
  for (size_t file = 0; file < text.count(); ++file)
    first_chunk_.push_back(first_chunk_.back() + ceil_div(static_cast<int64_t>(text.bytes(file)),
                                                          static_cast<int64_t>(chunk_bytes_)));
  sample();
  const auto needed = static_cast<size_t>(options.context) + 1;
  const size_t found = text.count() == 0 ? 0 : ids_from({}, needed, false).size();
  if (found < needed)
    user_error("the context of {} tokens is longer than the text, which has {}", options.context,
               found);
}

StreamBatches::~StreamBatches() = default;

void StreamBatches::encode(size_t file, uint64_t begin, uint64_t end,
                           std::vector<int32_t>& ids) const {
  const std::string text = text_.read(file, begin, end);
  try {
    tokenizer_.encode(text, {.inside = begin > 0}, ids);
  } catch (const UserError& error) {
    user_error("{}, bytes {} to {}: {}", text_.path(file).string(), begin, end, error.what());
  }
}

std::vector<int32_t> StreamBatches::ids_from(TextFiles::Place place, size_t count,
                                             bool around) const {
  std::vector<int32_t> ids;
  while (ids.size() < count) {
    const double missing = static_cast<double>(count - ids.size());
    const auto step = static_cast<uint64_t>(1.2 * bytes_per_token_ * missing) + 64;
    const uint64_t end = text_.cut(place.file, place.offset + step, tokenizer_.cut_rule());
    encode(place.file, place.offset, end, ids);
    place.offset = end;
    if (end < text_.bytes(place.file)) continue;
    place = {place.file + 1, 0};
    if (place.file < text_.count()) continue;
    if (!around) break;
    place.file = 0;
  }
  ids.resize(std::min(ids.size(), count));
  return ids;
}

void StreamBatches::sample() {
  const uint64_t samples = std::min(kSamples, text_.bytes() / kSampleBytes + 1);
  uint64_t bytes = 0;
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < samples && text_.bytes() > 0; ++i) {
    const auto [file, offset] = text_.place(text_.bytes() / samples * i);
    const uint64_t begin = text_.cut(file, offset, tokenizer_.cut_rule());
    const uint64_t end = text_.cut(file, begin + kSampleBytes, tokenizer_.cut_rule());
    encode(file, begin, end, ids);
    bytes += end - begin;
  }
  if (!ids.empty()) bytes_per_token_ = static_cast<double>(bytes) / static_cast<double>(ids.size());
  tokens_ = std::llround(static_cast<double>(text_.bytes()) / bytes_per_token_);
}

int64_t StreamBatches::batches_per_pass() const {
  return ceil_div(tokens_, options_.batch * options_.context);
}

std::string StreamBatches::fingerprint() const {
  Sha256 hash;
  const std::string what = fmt::format("{} of {}, chunks of {}, {} files", tokenizer_.kind(),
                                       tokenizer_.vocab_size(), chunk_bytes_, text_.count());
  hash.update(what.data(), what.size());
  for (size_t file = 0; file < text_.count(); ++file) {
    const uint64_t bytes = text_.bytes(file);
    hash.update(&bytes, sizeof bytes);
  }
  const uint64_t samples = std::min(kSamples, text_.bytes() / kSampleBytes + 1);
  for (uint64_t i = 0; i < samples; ++i) {
    const auto [file, offset] = text_.place(text_.bytes() / samples * i);
    const std::string text =
        text_.read_raw(file, offset, std::min(offset + kSampleBytes, text_.bytes(file)));
    hash.update(text.data(), text.size());
  }
  return hash.finish_hex();
}

// ---- windows anywhere

void StreamBatches::fill_window(int64_t row, std::span<int32_t> inputs,
                                std::span<int32_t> targets) const {
  const auto wide = static_cast<uint64_t>(row);
  RngStream rng({options_.seed, static_cast<uint32_t>(wide)},
                kPlaceStream + static_cast<uint32_t>(wide >> 32));
  TextFiles::Place place = text_.place(rng.next_below(text_.bytes()));
  place.offset = text_.cut(place.file, place.offset, tokenizer_.cut_rule());
  if (place.offset == text_.bytes(place.file)) place = {(place.file + 1) % text_.count(), 0};
  const std::vector<int32_t> ids = ids_from(place, inputs.size() + 1, true);
  std::copy(ids.begin(), ids.end() - 1, inputs.begin());
  std::copy(ids.begin() + 1, ids.end(), targets.begin());
}

// ---- epochs

int64_t StreamBatches::cache_bytes(int64_t rows, int64_t workers) const {
  if (options_.mode != Sampling::kEpoch) return 0;
  const double bytes_per_group = static_cast<double>(
      std::min(chunk_bytes_ * static_cast<uint64_t>(kGroupChunks), text_.bytes()));
  const double tokens = bytes_per_group / bytes_per_token_;
  const double rows_per_group = tokens / static_cast<double>(options_.context) + 1;
  const auto groups =
      std::min({static_cast<double>(groups_.size()), static_cast<double>(groups_per_epoch()),
                std::ceil(static_cast<double>(rows) / rows_per_group)});
  // One thread at a time makes a group, and a heap keeps the pieces of about one chunk: the text,
  // and ids in a vector that grows. No more heaps than these are in use.
  constexpr int64_t kHeaps = 8;
  const auto chunk = static_cast<double>(chunk_bytes_);
  const double left = chunk * (1 + 2 * sizeof(int32_t) / bytes_per_token_);
  return std::llround(groups * (tokens * sizeof(int32_t) + rows_per_group * sizeof(Group::Row)) +
                      left * static_cast<double>(std::min(workers, kHeaps)));
}

int64_t StreamBatches::groups_per_epoch() const {
  return ceil_div(first_chunk_.back(), kGroupChunks);
}

/// The ids of a chunk, and the id behind it: the target of its last token.
std::vector<int32_t> StreamBatches::encode_chunk(int64_t chunk) const {
  const auto next = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
  const auto file = static_cast<size_t>(next - first_chunk_.begin() - 1);
  const auto inside = static_cast<uint64_t>(chunk - first_chunk_[file]);
  const uint64_t begin = text_.cut(file, inside * chunk_bytes_, tokenizer_.cut_rule());
  const uint64_t end = text_.cut(file, (inside + 1) * chunk_bytes_, tokenizer_.cut_rule());
  std::vector<int32_t> ids;
  if (begin >= end) return ids;  // one long word reaches over it
  encode(file, begin, end, ids);
  if (end < text_.bytes(file)) {
    constexpr uint64_t kEnoughForOne = 64;
    const size_t count = ids.size();
    encode(file, end, text_.cut(file, end + kEnoughForOne, tokenizer_.cut_rule()), ids);
    ids.resize(count + 1);
  }
  ids.shrink_to_fit();
  return ids;
}

std::shared_ptr<const StreamBatches::Group> StreamBatches::read_group(int64_t number) const {
  auto group = std::make_shared<Group>();
  group->number = number;
  const int64_t epoch = number / groups_per_epoch(), inside = number % groups_per_epoch();
  const int64_t chunks = first_chunk_.back(), begin = inside * kGroupChunks;
  const Permutation order(static_cast<uint64_t>(chunks),
                          {options_.seed, static_cast<uint32_t>(epoch)});
  for (int64_t i = begin; i < std::min(begin + kGroupChunks, chunks); ++i) {
    const auto chunk = static_cast<uint32_t>(group->chunks.size());
    group->chunks.push_back(encode_chunk(static_cast<int64_t>(order(static_cast<uint64_t>(i)))));
    for (size_t offset = 0; offset + 1 < group->chunks.back().size();
         offset += static_cast<size_t>(options_.context))
      group->rows.push_back({chunk, static_cast<uint32_t>(offset)});
  }
  return group;
}

std::shared_ptr<const StreamBatches::Group> StreamBatches::cached(int64_t number) const {
  auto& slot = groups_[static_cast<size_t>(number) % groups_.size()];
  if (!slot || slot->number != number) slot = read_group(number);
  return slot;
}

Anchor StreamBatches::find(int64_t row) const {
  BRRR_CHECK(row >= starts_.front().row, "row {} before {}", row, starts_.front().row);
  for (int64_t empty = 0;;) {
    const Anchor last = starts_.back();
    if (row < last.row) break;
    const auto rows = static_cast<int64_t>(cached(last.group)->rows.size());
    if (row < last.row + rows) return last;
    starts_.push_back({last.group + 1, last.row + rows});
    empty = rows > 0 ? 0 : empty + 1;
    if (empty > groups_per_epoch())
      user_error("no file of the text has two tokens; name a text with words");
  }
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), row,
                                     [](int64_t r, const Anchor& start) { return r < start.row; });
  return *std::prev(next);
}

int64_t StreamBatches::fill_row(int64_t row, std::span<int32_t> inputs,
                                std::span<int32_t> targets) const {
  std::shared_ptr<const Group> group;
  Anchor start;
  {
    const std::lock_guard lock(mutex_);
    start = find(row);
    group = cached(start.group);
  }
  const Permutation order(group->rows.size(),
                          {options_.seed ^ kRowOrderKey, static_cast<uint32_t>(start.group)});
  const auto [chunk, offset] = group->rows[order(static_cast<uint64_t>(row - start.row))];
  const std::vector<int32_t>& ids = group->chunks[chunk];
  const size_t n = std::min(inputs.size(), ids.size() - 1 - offset);
  const auto from = ids.begin() + offset;
  std::copy_n(from, n, inputs.begin());
  std::copy_n(from + 1, n, targets.begin());
  return static_cast<int64_t>(n);
}

void StreamBatches::fill(int64_t index, Batch& batch) const {
  const Batch::Text all = batch.make_text(options_.batch, options_.context);
  const auto T = static_cast<size_t>(options_.context);
  for (int64_t b = 0; b < options_.batch; ++b) {
    const int64_t row = options_.row(index, b);
    const auto inputs = all.tokens.subspan(static_cast<size_t>(b) * T, T);
    const auto targets = all.targets.subspan(static_cast<size_t>(b) * T, T);
    if (options_.mode == Sampling::kEpoch) {
      batch.count += fill_row(row, inputs, targets);
    } else {
      fill_window(row, inputs, targets);
      batch.count += options_.context;
    }
  }
}

int64_t StreamBatches::epoch_of(int64_t index) const {
  return anchor(index).group / groups_per_epoch();
}

Anchor StreamBatches::anchor(int64_t index) const {
  if (options_.mode != Sampling::kEpoch) return {};
  const std::lock_guard lock(mutex_);
  return find(index * options_.batch);
}

bool StreamBatches::start_from(const Anchor& anchor, int64_t index) {
  if (options_.mode != Sampling::kEpoch) return anchor == Anchor{};
  const std::lock_guard lock(mutex_);
  const int64_t row = index * options_.batch - anchor.row;
  if (row < 0 || row >= static_cast<int64_t>(cached(anchor.group)->rows.size())) return false;
  starts_.assign(1, anchor);
  return true;
}

}  // namespace brrr::io
