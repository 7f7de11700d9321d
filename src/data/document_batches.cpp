#include "data/document_batches.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/errors.h"
#include "base/integers.h"
#include "base/sha256.h"
#include "data/permutation.h"

namespace brrr::io {
namespace {

constexpr uint32_t kPackingStream = 0x50414b00u;

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

int64_t split_documents(const std::vector<Document>& documents, int64_t context) {
  return std::ranges::count_if(documents,
                               [&](const Document& d) { return d.end - d.begin - 1 > context; });
}

PackedRows pack_rows(std::span<const int64_t> lengths, int64_t capacity, int64_t most,
                     uint32_t seed) {
  BRRR_CHECK(most >= 1, "{} sequences in a row", most);
  // Sort by decreasing length, equal lengths in random order.
  std::vector<uint32_t> sorted(lengths.size());
  const Permutation order(lengths.size(), {seed, kPackingStream});
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = static_cast<uint32_t>(order(i));
  std::ranges::stable_sort(sorted, std::greater(), [&](uint32_t i) { return lengths[i]; });
  struct OpenRow {
    size_t row;
    int64_t sequences;
  };
  std::map<int64_t, std::vector<OpenRow>> open;  // by the free tokens of the row
  std::vector<uint32_t> row_of(lengths.size());
  size_t rows = 0;
  for (const uint32_t i : sorted) {
    const int64_t length = lengths[i];
    BRRR_CHECK(length >= 1 && length <= capacity, "a sequence of {} tokens", length);
    OpenRow to{rows, 0};
    int64_t room = capacity;
    if (const auto fitting = open.lower_bound(length); fitting != open.end()) {
      room = fitting->first;
      to = fitting->second.back();
      fitting->second.pop_back();
      if (fitting->second.empty()) open.erase(fitting);
    } else {
      ++rows;
    }
    row_of[i] = static_cast<uint32_t>(to.row);
    if (++to.sequences < most && room > length) open[room - length].push_back(to);
  }
  PackedRows packed;
  packed.ends.resize(rows);
  for (const uint32_t row : row_of) ++packed.ends[row];
  for (size_t r = 1; r < rows; ++r) packed.ends[r] += packed.ends[r - 1];
  packed.order.resize(lengths.size());
  std::vector<size_t> next(rows);
  for (size_t r = 1; r < rows; ++r) next[r] = packed.ends[r - 1];
  for (const uint32_t i : sorted) packed.order[next[row_of[i]]++] = i;
  return packed;
}

DocumentBatches::DocumentBatches(const TokenSource& source, const std::vector<Document>& documents,
                                 const BatchOptions& options, std::span<const uint8_t> learnt)
    : source_(source), learnt_(learnt), options_(options) {
  check_options(options);
  BRRR_CHECK(learnt.empty() || std::ssize(learnt) == source.tokens(), "{} marks for {} tokens",
             learnt.size(), source.tokens());
  const int64_t T = options.context;
  rows_.reserve(static_cast<size_t>(document_rows(documents, T)));
  for (const Document& d : documents)
    for (int64_t at = d.begin; at + 1 < d.end; at += T)
      rows_.push_back({at, std::min(T, d.end - 1 - at)});
  if (rows_.empty())
    user_error("{} has no document of two tokens or more to train on", source.description());
  for (const Row& row : rows_) tokens_ += row.length;
  if (!options.flat) {
    order_.emplace(
        rows_.size(), [this](size_t i) { return rows_[i].length; }, options_);
    return;
  }
  std::vector<int64_t> lengths;
  lengths.reserve(rows_.size());
  for (const Row& row : rows_) lengths.push_back(row.length);
  packed_ = pack_rows(lengths, T, options.sequences_per_row, options.seed);
  const auto tokens_of = [this](size_t row) {
    int64_t sum = 0;
    for (const uint32_t i : packed_->row(row)) sum += rows_[i].length;
    return sum;
  };
  order_.emplace(packed_->rows(), tokens_of, options_);
}

std::string DocumentBatches::fingerprint() const {
  Sha256 hash;
  const std::string source = source_.fingerprint();
  hash.update(source.data(), source.size());
  hash.update(rows_.data(), rows_.size() * sizeof(Row));
  hash.update(learnt_.data(), learnt_.size());
  if (packed_) hash.update(packed_->order.data(), packed_->order.size() * sizeof(uint32_t));
  return hash.finish_hex();
}

int64_t read_with_targets(const TokenSource& source, int64_t begin, std::span<const uint8_t> learnt,
                          int64_t vocabulary, std::span<int32_t> inputs,
                          std::span<int32_t> targets) {
  source.read(begin, inputs);
  source.read(begin + 1, targets);
  source.check_ids(inputs, begin, vocabulary);
  source.check_ids(targets, begin + 1, vocabulary);
  if (learnt.empty()) return std::ssize(targets);
  int64_t scored = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (learnt[static_cast<size_t>(begin) + 1 + i] != 0)
      ++scored;
    else
      targets[i] = kIgnoreId;
  }
  return scored;
}

void DocumentBatches::fill(int64_t index, Batch& batch) const {
  const auto [rows, T] = order_->batch(index);
  if (!packed_) {
    const Batch::Text all = batch.make_text(options_.batch, T);
    for (size_t b = 0; b < rows.size(); ++b) {
      const Row& row = rows_[rows[b]];
      const auto n = static_cast<size_t>(row.length), begin = b * static_cast<size_t>(T);
      batch.count += read_with_targets(source_, row.offset, learnt_, options_.vocab,
                                       all.tokens.subspan(begin, n), all.targets.subspan(begin, n));
    }
    return;
  }
  std::vector<uint32_t> chosen;
  std::vector<int64_t> lengths;
  for (const size_t row : rows)
    for (const uint32_t i : packed_->row(row)) {
      chosen.push_back(i);
      lengths.push_back(rows_[i].length);
    }
  const auto [tokens, begins] = batch.make_rows(lengths, options_, T, 0);
  const auto targets = batch.make("targets", tokens.size(), kIgnoreId);
  batch.count = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto n = static_cast<size_t>(lengths[i]);
    batch.count += read_with_targets(source_, rows_[chosen[i]].offset, learnt_, options_.vocab,
                                     tokens.subspan(begins[i], n), targets.subspan(begins[i], n));
  }
}

}  // namespace brrr::io
