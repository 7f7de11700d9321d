#pragma once
// prepare.json: what a run of prepare was asked for and how far it has come. Written atomically;
// what it says has reached the disk before it says so.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/prepare/prepare_plan.h"
#include "data/shard_record.h"

namespace brrr::io {

/// One input, as it was when it was last looked at.
struct InputRecord {
  std::string path;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  uint32_t crc = 0;  // CRC-32C of the part that has been consumed
};

/// One split: its complete shards, and the token count of the one being written.
struct SplitRecord {
  std::vector<ShardRecord> shards;
  int64_t partial_tokens = 0;
  int64_t tokens() const;
};

/// A setting that tells people what the hash of the tokenizer does not.
inline constexpr const char* kTokenizerKind = "tokenizer kind";

struct PrepareRecord {
  std::vector<std::pair<std::string, std::string>>
      settings;  // name, value: whatever changes the result
  std::vector<InputRecord> inputs;
  PlanPosition position;
  SplitRecord train, val;
  double seconds = 0;
  bool complete = false;
  bool has_begun() const { return position.file > 0 || position.offset > 0; }
};

std::filesystem::path record_path(const std::filesystem::path& folder);
void save_record(const std::filesystem::path& folder, const PrepareRecord& record);
/// Nothing when the folder has no record. Throws UserError for a damaged one.
std::optional<PrepareRecord> load_record(const std::filesystem::path& folder);

/// Size and time of an input. Throws UserError when it is missing, empty or not a file.
InputRecord look_at(const std::filesystem::path& path);

/// Throws UserError, naming what differs, when `earlier` was a run with other settings or other
/// inputs. An input whose time changed is read again and compared as far as it had been consumed.
void check_same_run(const std::filesystem::path& folder, const PrepareRecord& earlier,
                    const PrepareRecord& now);

/// "train.bin", or "train_000003.bin" when shards have a size.
std::filesystem::path shard_path(const std::filesystem::path& folder, const std::string& split,
                                 size_t index, int64_t shard_tokens);

}  // namespace brrr::io
