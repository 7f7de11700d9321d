#pragma once
// Batches of preference pairs. A row is a pair: the preferred sequence, then the rejected one. The
// sequences of a batch are concatenated without padding (BatchOptions::flat), and both sequences of
// a pair are always in the same batch.

#include <span>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "data/document_batches.h"
#include "data/row_order.h"
#include "data/token_source.h"

namespace brrr::io {

/// Two documents of one source: the preferred one and the other, prompts included.
struct PreferencePair {
  Document chosen, rejected;
  /// Inputs of both sequences: the last token of each is only a target.
  int64_t tokens() const {
    return chosen.end - chosen.begin - 1 + rejected.end - rejected.begin - 1;
  }
};

/// Identifies pairs and what is learnt of them (BatchSource::fingerprint).
std::string fingerprint_of(const TokenSource& source, std::span<const PreferencePair> pairs,
                           std::span<const uint8_t> learnt);

class PreferenceBatches final : public BatchSource {
 public:
  /// `options`: flat; sequences_per_row is 2, and `context` the largest number of tokens of a pair.
  /// `learnt` is the loss mask of the source, as in DocumentBatches. `reference`: log probabilities
  /// of the sequences under the reference, two for each pair; empty: not known yet, and batches
  /// have zeros. Source, pairs, `learnt` and `reference` must outlive this.
  PreferenceBatches(const TokenSource& source, std::span<const PreferencePair> pairs,
                    std::span<const uint8_t> learnt, std::span<const float> reference,
                    const BatchOptions& options);

  /// Besides the tensors of flat rows, with 2 B sequences: "reference" f32 [2 B]. Sequences 2 b and
  /// 2 b + 1 are those of pair b; the count is that of pairs.
  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override { return order_.epoch_of(index); }
  /// The last step of an epoch is filled with empty pairs.
  int64_t batches_per_pass() const override { return order_.batches_per_pass(); }
  int64_t tokens() const override { return tokens_; }
  /// Does not depend on `reference`.
  std::string fingerprint() const override { return fingerprint_of(source_, pairs_, learnt_); }

 private:
  const TokenSource& source_;
  std::span<const PreferencePair> pairs_;
  std::span<const uint8_t> learnt_;
  std::span<const float> reference_;
  BatchOptions options_;
  int64_t tokens_ = 0;
  RowOrder order_;
};

}  // namespace brrr::io
