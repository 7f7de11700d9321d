#include "data/document_batches.h"

#include <algorithm>

#include "base/errors.h"
#include "base/integers.h"
#include "base/sha256.h"

namespace brrr::io {

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
    : source_(source), options_(options) {
  check_options(options);
  const int64_t T = options.context;
  rows_.reserve(static_cast<size_t>(document_rows(documents, T)));
  for (const Document& d : documents)
    for (int64_t at = d.begin; at + 1 < d.end; at += T)
      rows_.push_back({at, std::min(T, d.end - 1 - at)});
  if (rows_.empty())
    user_error("{} has no document of two tokens or more to train on", source.description());
  for (const Row& row : rows_) tokens_ += row.length;
  order_.emplace(
      rows_.size(), [this](size_t i) { return rows_[i].length; }, options_);
}

std::string DocumentBatches::fingerprint() const {
  Sha256 hash;
  const std::string source = source_.fingerprint();
  hash.update(source.data(), source.size());
  hash.update(rows_.data(), rows_.size() * sizeof(Row));
  return hash.finish_hex();
}

void DocumentBatches::fill(int64_t index, Batch& batch) const {
  const auto [rows, T] = order_->batch(index);
  const Batch::Text all = batch.make_text(options_.batch, T);
  for (size_t b = 0; b < rows.size(); ++b) {
    const auto [offset, length] = rows_[rows[b]];
    const auto n = static_cast<size_t>(length), begin = b * static_cast<size_t>(T);
    const auto inputs = all.tokens.subspan(begin, n);
    const auto targets = all.targets.subspan(begin, n);
    source_.read(offset, inputs);
    source_.read(offset + 1, targets);
    source_.check_ids(inputs, offset, options_.vocab);
    source_.check_ids(targets, offset + 1, options_.vocab);
    batch.count += length;
  }
}

}  // namespace brrr::io
