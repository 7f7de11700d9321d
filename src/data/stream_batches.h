#pragma once
// Batches from text that is tokenised while it is needed: nothing is read ahead of time, and only a
// few pieces of the text are in memory. Still a batch is a pure function of (text, tokenizer,
// options, index).
//
//   kRandom  A row begins at the first cut (TextFiles::cut: nearly always the space before a word)
//            at or behind a uniformly random byte, and has the T + 1 tokens from there on. Behind
//            the last file comes the first.
//   kEpoch   The text is cut into chunks of about the same number of bytes; each epoch takes them
//            in another random order, a group of chunks at a time, and gives the rows of a group in
//            random order. A row lies in one chunk; the last row of a chunk may be shorter. Every
//            token but the first of each file is a target once per epoch.
//
// Tokens are those of each file tokenised as a whole, as far as cuts are safe. How many there are
// is not known: tokens() and batches_per_pass() are estimates from samples, an epoch is not.

#include <array>
#include <deque>
#include <memory>
#include <mutex>

#include "data/batch_source.h"
#include "data/text_files.h"
#include "text/tokenizer.h"

namespace brrr::io {

class StreamBatches final : public BatchSource {
 public:
  /// `text` and `tokenizer` must outlive this. Throws UserError: the context is longer than the
  /// text, or a number is out of range.
  StreamBatches(const TextFiles& text, const Tokenizer& tokenizer, const BatchOptions& options);
  ~StreamBatches() override;

  /// Throws UserError: a file changed, is no text at the place, or holds what the tokenizer lacks.
  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override;
  int64_t batches_per_pass() const override;
  int64_t tokens() const override { return tokens_; }
  std::string fingerprint() const override;
  /// How many rows a group has shows when it is read; so where the group of a row begins is part of
  /// a loader's state.
  Anchor anchor(int64_t index) const override;
  bool start_from(const Anchor& anchor, int64_t index) override;
  /// Bytes of the groups that are kept while `workers` threads read the first `rows` rows, and of
  /// what making them leaves on the heaps of the threads.
  int64_t cache_bytes(int64_t rows, int64_t workers) const;

 private:
  struct Group;  // the rows of some chunks
  void fill_window(int64_t row, std::span<int32_t> inputs, std::span<int32_t> targets) const;
  int64_t fill_row(int64_t row, std::span<int32_t> inputs, std::span<int32_t> targets) const;
  /// Ids of [begin, end) of a file, both cuts.
  void encode(size_t file, uint64_t begin, uint64_t end, std::vector<int32_t>& ids) const;
  /// The first `count` ids from a cut on, through the following files, and around at the end where
  /// `around` is set.
  std::vector<int32_t> ids_from(TextFiles::Place place, size_t count, bool around) const;
  void sample();  // sets bytes_per_token_, tokens_
  int64_t groups_per_epoch() const;
  std::vector<int32_t> encode_chunk(int64_t chunk) const;
  std::shared_ptr<const Group> read_group(int64_t group) const;
  /// The start of the group that holds `row`. The lock must be held.
  Anchor find(int64_t row) const;
  std::shared_ptr<const Group> cached(int64_t group) const;

  const TextFiles& text_;
  const Tokenizer& tokenizer_;
  BatchOptions options_;
  uint64_t chunk_bytes_;
  std::vector<int64_t> first_chunk_{0};  // of each file; one more than there are files
  double bytes_per_token_ = 1;
  int64_t tokens_ = 0;

  mutable std::mutex mutex_;
  mutable std::deque<Anchor> starts_{Anchor{}};  // of consecutive groups
  mutable std::array<std::shared_ptr<const Group>, 3> groups_;
};

}  // namespace brrr::io
