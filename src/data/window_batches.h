#pragma once
// Windows of T tokens, cut from one stream of tokens: the targets are the inputs one token further
// on.

#include "data/batch_source.h"
#include "data/token_source.h"

namespace brrr::io {

class WindowBatches final : public BatchSource {
 public:
  /// `source` must outlive this. Throws UserError: the context is longer than the text, or a number
  /// is out of range.
  WindowBatches(const TokenSource& source, const BatchOptions& options);

  /// Throws UserError, with the place, for an id outside the vocabulary.
  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override;
  int64_t batches_per_pass() const override;
  int64_t tokens() const override { return source_.tokens(); }
  std::string fingerprint() const override { return source_.fingerprint(); }

 private:
  int64_t row_offset(int64_t row) const;  // -1: an empty row

  const TokenSource& source_;
  BatchOptions options_;
  int64_t windows_ = 0;  // rows of T tokens in the source
};

}  // namespace brrr::io
