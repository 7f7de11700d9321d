#pragma once
// Text files to token shards: in parallel, resumable, reproducible. The shards are a function of
// the inputs, the tokenizer and the settings alone: the number of threads, interruptions and
// resumption do not change a byte of them.
//
// The output folder holds train.bin and val.bin (train_000000.bin, ... with a shard size), the
// tokenizer's files, and prepare.json, the record from which an interrupted run continues. Shards
// bear a name ending in .partial until they are complete.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/shard.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct PrepareProgress {
  uint64_t bytes_done = 0, bytes_total = 0;  // of the inputs, earlier runs included
  int64_t tokens = 0;
  double seconds = 0;  // of this run
  double tokens_per_second = 0;
};

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs = {};  // files, in order (find_corpus lists them)
  std::filesystem::path output = {};
  ShardFormat format = ShardFormat::kLlmc;
  /// The last part of the text validates, as in nanoGPT: from byte floor(bytes * (1 -
  /// val_fraction)) of all inputs laid end to end (moved to the next character) on.
  double val_fraction = 0.1;
  /// Instead: every n-th document validates. 0: by val_fraction.
  int64_t val_every = 0;
  /// Tokens per shard; 0: one shard per split (but 10^8 where llm.c's count might overflow).
  int64_t shard_tokens = 0;
  /// After each document, when the tokenizer has such a token.
  bool end_of_text = true;
  /// Ends a document inside a file ("<|endoftext|>"); it is not encoded. Empty: a file is a
  /// document.
  std::string separator = {};
  /// Take bytes as they are; needs the byte tokenizer.
  bool accept_bytes = false;
  /// Forget an earlier run in the folder and begin again.
  bool restart = false;
  /// Called from the calling thread; may throw to stop (the run can be resumed).
  std::function<void(const PrepareProgress&)> progress = {};
  /// Work sizes, about; they do not change the result.
  uint64_t piece_bytes = 1 << 18;
  uint64_t checkpoint_bytes = uint64_t{64} << 20;
};

struct PrepareSummary {
  int64_t train_tokens = 0, val_tokens = 0, documents = 0;
  uint64_t bytes = 0;
  std::vector<std::filesystem::path> train_shards, val_shards;
  bool resumed = false;          // an earlier run had done part of the work
  bool already_done = false;     // ... or all of it
  double seconds = 0;            // of all runs together
  double tokens_per_second = 0;  // of this run
  double bytes_per_token = 0;
};

/// Throws UserError: an input is missing, empty, binary, not UTF-8 or changed since the interrupted
/// run; the folder belongs to a run with other settings or another process; text that the tokenizer
/// lacks; a full disk. Whatever was recorded before can be continued.
PrepareSummary prepare_shards(const Tokenizer& tokenizer, const PrepareOptions& options);

}  // namespace brrr::io
