#include "data/document_batches.h"

#include <algorithm>

#include "base/errors.h"
#include "base/integers.h"
#include "base/sha256.h"
#include "data/permutation.h"

namespace brrr::io {
namespace {

// LengthGroupedSampler of Hugging Face's transformers sorts within this many batches.
constexpr int64_t kMegabatch = 50;

}  // namespace

std::vector<Document> find_documents(const TokenSource& source, int32_t end_of_text) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<Document> documents;
  std::vector<int32_t> ids(kBlock);
  int64_t begin = 0;
  for (int64_t at = 0; at < source.tokens(); at += kBlock) {
    const auto block =
        std::span(ids).first(static_cast<size_t>(std::min(kBlock, source.tokens() - at)));
    source.read(at, block);
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] != end_of_text) continue;
      const int64_t end = at + static_cast<int64_t>(i) + 1;
      documents.push_back({begin, end});
      begin = end;
    }
  }
  if (begin < source.tokens()) documents.push_back({begin, source.tokens()});
  return documents;
}

std::vector<int64_t> quarter_lengths(int64_t context) {
  constexpr int64_t kMultiple = 8;
  std::vector<int64_t> lengths;
  for (int64_t quarter = 1; quarter <= 4; ++quarter) {
    const int64_t length =
        std::min(context, kMultiple * ceil_div(ceil_div(context * quarter, 4), kMultiple));
    if (lengths.empty() || length > lengths.back()) lengths.push_back(length);
  }
  return lengths;
}

int64_t document_rows(const std::vector<Document>& documents, int64_t context) {
  int64_t rows = 0;
  for (const Document& d : documents)
    if (d.end - d.begin > 1) rows += ceil_div(d.end - d.begin - 1, context);
  return rows;
}

DocumentBatches::DocumentBatches(const TokenSource& source, const std::vector<Document>& documents,
                                 const BatchOptions& options)
    : source_(source),
      options_(options),
      batch_rows_(options.batch * options.world),
      step_rows_(batch_rows_ * options.batches_per_step) {
  check_options(options);
  const int64_t T = options.context;
  rows_.reserve(static_cast<size_t>(document_rows(documents, T)));
  for (const Document& d : documents)
    for (int64_t at = d.begin; at + 1 < d.end; at += T)
      rows_.push_back({at, std::min(T, d.end - 1 - at)});
  if (rows_.empty())
    user_error("{} has no document of two tokens or more to train on", source.description());
  for (size_t i = 0; i < rows_.size(); ++i) {
    tokens_ += rows_[i].length;
    if (rows_[i].length > rows_[longest_].length) longest_ = i;
  }
  const auto rows = static_cast<int64_t>(rows_.size());
  const int64_t steps = options.mode == Sampling::kGroupByLength
                            ? std::clamp(rows / (4 * step_rows_), int64_t{1}, kMegabatch)
                            : 1;
  megabatch_rows_ = steps * step_rows_;
}

int64_t DocumentBatches::batches_per_pass() const {
  return ceil_div(static_cast<int64_t>(rows_.size()), step_rows_) * options_.batches_per_step;
}

std::string DocumentBatches::fingerprint() const {
  Sha256 hash;
  const std::string source = source_.fingerprint();
  hash.update(source.data(), source.size());
  hash.update(rows_.data(), rows_.size() * sizeof(Row));
  return hash.finish_hex();
}

// Random rows, the longest first within the megabatch; the longest of all opens the epoch, so that
// the first step needs the most memory. As LengthGroupedSampler, but a function of the place.
std::shared_ptr<const DocumentBatches::Megabatch> DocumentBatches::megabatch(int64_t epoch,
                                                                             int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ && last_->epoch == epoch && last_->number == number) return last_;
  }
  auto made = std::make_shared<Megabatch>();
  made->epoch = epoch;
  made->number = number;
  const Permutation order(rows_.size(), {options_.seed, static_cast<uint32_t>(epoch)});
  const bool grouped = options_.mode == Sampling::kGroupByLength;
  const auto begin = static_cast<uint64_t>(number * megabatch_rows_);
  const auto end = std::min(begin + static_cast<uint64_t>(megabatch_rows_), order.size());
  for (uint64_t i = begin; i < end; ++i) {
    size_t row = order(i);
    if (grouped) {  // the longest and the first change places
      if (row == longest_)
        row = order(0);
      else if (i == 0)
        row = longest_;
    }
    made->rows.push_back(rows_[row]);
  }
  if (grouped)
    std::stable_sort(made->rows.begin(), made->rows.end(),
                     [](const Row& a, const Row& b) { return a.length > b.length; });
  const std::lock_guard lock(mutex_);
  last_ = made;
  return made;
}

void DocumentBatches::fill(int64_t index, Batch& batch) const {
  const int64_t epoch = epoch_of(index);
  const int64_t first = index % batches_per_pass() * batch_rows_;  // row of the epoch
  const auto rows_of = megabatch(epoch, first / megabatch_rows_);
  // A batch of the last step may have nothing left.
  const auto begin = std::min(static_cast<size_t>(first % megabatch_rows_), rows_of->rows.size());
  const auto count = std::min(static_cast<size_t>(batch_rows_), rows_of->rows.size() - begin);
  const auto rows = std::span(rows_of->rows).subspan(begin, count);
  int64_t longest = 0;  // of all ranks: they must agree
  for (const Row& row : rows) longest = std::max(longest, row.length);
  const auto& lengths = options_.lengths;
  const auto fitting = std::lower_bound(lengths.begin(), lengths.end(), longest);
  const int64_t T = fitting == lengths.end() ? options_.context : *fitting;

  batch.clear(options_.batch, T);
  for (int64_t b = 0; b < options_.batch; ++b) {
    const auto at = static_cast<size_t>(b * options_.world + options_.rank);
    if (at >= rows.size()) continue;
    const auto [offset, length] = rows[at];
    const auto n = static_cast<size_t>(length);
    const auto inputs = std::span(batch.inputs).subspan(static_cast<size_t>(b * T), n);
    const auto targets = std::span(batch.targets).subspan(static_cast<size_t>(b * T), n);
    source_.read(offset, inputs);
    source_.read(offset + 1, targets);
    source_.check_ids(inputs, offset, options_.vocab);
    source_.check_ids(targets, offset + 1, options_.vocab);
    batch.real_tokens += length;
  }
}

}  // namespace brrr::io
