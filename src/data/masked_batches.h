#pragma once
// Batches for masked language modelling (Devlin et al., "BERT", NAACL 2019, section 3.1): a row is
// [CLS] text [SEP], padded or with the next row behind it (BatchOptions::flat). Some tokens of the
// text are chosen; most of them are replaced by [MASK], and the model is to tell which they were.
// The text comes from another source: windows, documents or a stream, made with options_for_text().
//
// Masks are a pure function of the seed and of the row's number in the endless sequence of rows, so
// each epoch masks anew, a resumed run is the run that was not, and a step has the same masks
// however it is cut into batches.

#include <memory>
#include <vector>

#include "data/batch_source.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct MaskOptions {
  int32_t cls = 0, sep = 0, pad = 0, mask = 0;
  int64_t vocab = 0;
  /// Never chosen and never drawn; the four above belong to them, named or not.
  std::vector<int32_t> special_ids;
  double probability = 0.15;  // that a token, or a word, is chosen; in (0, 1]
  /// The parts of the chosen tokens that become [MASK] and a random token; the rest stays.
  double masked = 0.8, randomised = 0.1;
  /// Not empty: whole words are chosen. For each id, whether it continues the word before it.
  std::vector<bool> continues_word;
  bool has_types = false;  // types are given, all zero
};

/// How texts are masked for a masked language model with this tokenizer. Throws UserError where it
/// lacks a token that this takes.
MaskOptions mask_options(const Tokenizer& tokenizer, double probability);

/// For each id, whether it continues the word before it, as decoding shows: behind a word its text
/// follows without a space and begins with a letter or a digit. So do WordPiece's tokens of "##",
/// and those of byte-level BPE that do not begin with a space. All false where no token is a word.
std::vector<bool> ids_that_continue_words(const Tokenizer& tokenizer);

class MaskedBatches final : public BatchSource {
 public:
  /// The options of a source of padded rows of text that, with [CLS] and [SEP] around them, make
  /// batches of these. Throws UserError (usage) for a context below 3.
  static BatchOptions options_for_text(const BatchOptions& options);

  /// `text` was made with options_for_text(options). Throws UserError (usage) for a number that is
  /// out of range or a vocabulary of special tokens alone.
  MaskedBatches(std::unique_ptr<BatchSource> text, const BatchOptions& options,
                const MaskOptions& mask);

  /// `targets` has the chosen tokens at their places, `count` is their number. Each row has
  /// one at least, unless all its tokens are special. The text of a row are the inputs of the
  /// other source that have a target.
  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override { return text_->epoch_of(index); }
  int64_t batches_per_pass() const override { return text_->batches_per_pass(); }
  int64_t tokens() const override { return text_->tokens(); }
  /// That of the text and how it is masked.
  std::string fingerprint() const override;
  Anchor anchor(int64_t index) const override { return text_->anchor(index); }
  bool start_from(const Anchor& anchor, int64_t index) override {
    return text_->start_from(anchor, index);
  }

 private:
  int64_t mask_row(int64_t row, std::span<int32_t> inputs, std::span<int32_t> targets) const;
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }

  std::unique_ptr<BatchSource> text_;
  BatchOptions options_;
  MaskOptions mask_;
  std::vector<bool> special_;          // for each id
  std::vector<int32_t> replacements_;  // the ids that a random token is drawn from
};

}  // namespace brrr::io
