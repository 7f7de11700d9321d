#pragma once
// What prepare writes into its output folder, other than the record: the shards of a split and the
// tokenizer's files.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/prepare/prepare_record.h"
#include "data/shard.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct SplitPlace {
  std::filesystem::path folder;
  std::string name;  // "train" or "val"
  ShardFormat format;
  int64_t shard_tokens;  // 0: one shard
  int64_t vocab;
};

/// The shards of one split. Tokens are appended in order; a complete shard waits under its partial
/// name until the record knows it (sync, save the record, publish).
class SplitWriter {
 public:
  explicit SplitWriter(SplitPlace place) : place_(std::move(place)) {}

  void resume(const SplitRecord& record);
  void append(std::span<const int32_t> ids);
  /// Completes the shard being written.
  void close();
  bool has_unpublished() const { return !unpublished_.empty(); }
  /// Everything appended is on the disk; the record of it.
  SplitRecord sync();
  void publish();
  /// Throws UserError when a complete shard is not as it was written.
  void verify() const;
  /// The complete shards.
  std::vector<std::filesystem::path> paths() const;

 private:
  std::filesystem::path path(size_t index) const;
  SplitPlace place_;
  std::vector<ShardRecord> shards_;
  std::vector<std::filesystem::path> unpublished_;
  std::optional<ShardWriter> current_;
};

/// The tokenizer's files, saved in a folder of their own to be hashed; publish() moves them to the
/// output.
class StagedTokenizer {
 public:
  StagedTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& output);
  StagedTokenizer(const StagedTokenizer&) = delete;
  StagedTokenizer& operator=(const StagedTokenizer&) = delete;
  ~StagedTokenizer();
  /// SHA-256 of names and contents.
  const std::string& hash() const { return hash_; }
  void publish();

 private:
  std::vector<std::filesystem::path> files() const;  // sorted

  std::filesystem::path output_, staging_;
  std::string hash_;
};

}  // namespace brrr::io
