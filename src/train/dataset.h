#pragma once
// What a run trains on: a tokenizer, and tokens or examples for training and for validation.

#include <functional>
#include <memory>
#include <string>

#include "data/batch_source.h"
#include "data/document_batches.h"
#include "data/loader.h"
#include "data/masked_batches.h"
#include "data/text_files.h"
#include "data/token_source.h"
#include "text/tokenizer.h"
#include "train/options.h"
#include "train/preferences/preference_set.h"
#include "train/tasks/picture_data.h"
#include "train/tasks/task_data.h"

namespace brrr::train {

struct Dataset {
  std::unique_ptr<io::Tokenizer> tokenizer;  // null: pictures
  io::TokenSource train = io::TokenSource::from_ids({}, "no training data");
  io::TokenSource val = io::TokenSource::from_ids({}, "no validation data");
  std::unique_ptr<io::TextFiles> stream;  // instead of `train`: text, tokenised while training
  /// Documents of `train` (--sampling by document) and of `val` (--pack documents).
  std::vector<io::Document> documents, val_documents;
  /// Loss masks of `train` and `val`: 1 for each token that is scored as a target (--task chat). An
  /// empty mask scores all tokens.
  std::vector<uint8_t> learnt, val_learnt;
  bool has_val = true;
  std::string sample_prompt;  // a prompt of the data for samples; "": none
  std::string description;    // one line for the user
  /// Bytes of the token shards that are mapped into memory.
  int64_t mapped_bytes() const { return train.mapped_bytes() + val.mapped_bytes(); }
  std::vector<std::string> notes;            // for the user
  std::optional<io::MaskOptions> masks;      // for a masked language model
  std::optional<TaskRows> task;              // instead of `train` and `val`: texts with labels
  std::optional<TaskPictures> pictures;      // the same: pictures with classes
  std::optional<PreferenceSet> preferences;  // the same: pairs of answers

  /// The number of tokens of the tokenizer, or of classes of pictures.
  int64_t vocabulary() const;
  std::optional<int64_t> pad_token() const;
  /// Whether metrics of labels are computed, which read the whole validation data.
  bool has_task() const { return task || pictures; }
  /// Tokens of the longest sequence where every sequence is a row or a half of it; else 0.
  int64_t longest_sequence() const;
  /// Writes what a checkpoint keeps of the data into a folder; null: nothing.
  std::function<void(const fs::path& folder)> checkpoint_writer() const;

  /// Throws UserError, with the place, for the first token of a shard outside [0, vocabulary).
  void verify_shards(int64_t vocabulary) const;
  /// Training batches; the source must not outlive this.
  std::unique_ptr<io::BatchSource> batches(const io::BatchOptions& options) const;
  /// Validation batches; the source must not outlive this.
  std::unique_ptr<io::BatchSource> val_batches(const io::BatchOptions& options) const;
  /// Number of batches in one pass over the training data, as num_train_epochs counts them.
  double batches_per_epoch(const io::BatchOptions& options) const;
  /// Bytes of the process that the data take beside their batches while the first `rows` rows are
  /// read.
  int64_t cached_bytes(const io::LoaderOptions& options, int64_t rows) const;
};

/// Whether a row is a document (--sampling documents, group_by_length).
bool by_document(const TrainOptions& options);
/// Whether several documents share a row (--pack documents).
bool packs_documents(const TrainOptions& options);
/// Whether a row holds several sequences: packed documents, or the two answers of a pair.
bool joins_sequences(const TrainOptions& options);
/// Returns the maximum number of tokens of a row: the context, or that of both sequences of a pair.
int64_t row_tokens(const TrainOptions& options);
/// Returns the tokens of a step's full rows, of all ranks; of pictures their number.
int64_t tokens_of_step(const TrainOptions& options);
/// Returns the maximum number of sequences in a row: of packed documents, or 2 of a pair; else 1.
int64_t sequences_per_row(const TrainOptions& options);
/// Returns the allowed sizes of a batch of `rows` rows (io::BatchOptions::lengths); empty: one
/// size.
std::vector<int64_t> batch_lengths(const TrainOptions& options, bool flat, int64_t rows);

/// Shortens a context that was not given to that of the longest sequence, because memory is planned
/// for it.
void shorten_context(TrainOptions& options, const Dataset& dataset);

/// Reads, tokenises and splits as the options say. The last `val_fraction` of a text, by
/// characters, is validation (nanoGPT's split); beside a stream at most 8 MiB of it.
/// `tokenizer_folder`: use this one instead of making it (a resumed run, or a model that is trained
/// further); empty otherwise. Throws UserError for text that is missing, binary, or shorter than
/// one context.
Dataset load_dataset(const TrainOptions& options, const std::string& tokenizer_folder);
/// Makes a dataset of pictures.
Dataset picture_dataset(TaskPictures pictures);
/// Makes a dataset of labelled texts, tokenised by the tokenizer in `tokenizer_folder`.
Dataset task_dataset(const TrainOptions& options, TaskFiles files,
                     const std::string& tokenizer_folder);

}  // namespace brrr::train
