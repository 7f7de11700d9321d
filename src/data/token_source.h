#pragma once
// Tokens to train or evaluate on, seen as one long stream: shards one after the other
// (memory-mapped), or ids in memory. Immutable after opening; reads may come from any thread.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/file_stamp.h"
#include "data/shard.h"

namespace brrr::io {

class TokenSource {
 public:
  /// Each of `paths` is a shard, a folder (its *.bin files in sorted order) or a glob pattern.
  /// Throws UserError: nothing matches, a broken shard (parse_shard), or a folder that holds both
  /// training and validation shards (name them apart: FOLDER/*train*.bin). Shards beside a
  /// prepare.json that lists them are read once and must have the size and checksum it says.
  static TokenSource open(const std::vector<std::string>& paths);
  /// The shards of a prepared folder whose name contains `split` ("train", "val").
  static TokenSource open_split(const std::filesystem::path& folder, const std::string& split);
  /// open(), but of a folder that holds both kinds the validation shards.
  static TokenSource open_validation(std::vector<std::string> paths);
  static bool has_split(const std::filesystem::path& folder, const std::string& split);
  /// `name` stands for the ids in messages.
  static TokenSource from_ids(std::vector<int32_t> ids, std::string name = "the text");

  int64_t tokens() const { return starts_.back(); }
  size_t shards() const { return views_.size(); }
  /// Of files that are mapped into memory.
  int64_t mapped_bytes() const {
    int64_t bytes = 0;
    for (const MappedFile& f : files_) bytes += static_cast<int64_t>(f.bytes().size());
    return bytes;
  }
  /// "train.bin", "12 shards (first.bin, ...)".
  const std::string& description() const { return description_; }

  /// Ids [offset, offset + out.size()), which must lie inside [0, tokens()). Throws UserError when
  /// a shard has changed since it was opened.
  void read(int64_t offset, std::span<int32_t> out) const;
  /// Where a token lies, for messages: "train_000001.bin, token 17".
  std::string locate(int64_t offset) const;
  /// Reads every id, as fast as memory is read, and keeps none of them in memory. Throws UserError
  /// for the first outside [0, vocab).
  void verify(int64_t vocab) const;
  /// Throws UserError, with the place, when an id of `ids` (read at `offset`) is outside [0,
  /// vocab).
  void check_ids(std::span<const int32_t> ids, int64_t offset, int64_t vocab) const;
  /// Identifies the stream (not its files): SHA-256 over the count and the ids, all of them up to
  /// 4M, else 1024 blocks of 1024 ids spread evenly from the first to the last.
  std::string fingerprint() const;

 private:
  TokenSource() = default;
  void add(ShardView view, std::string name);
  std::vector<MappedFile> files_;
  std::vector<FileStamp> stamps_;  // of files_, when they were opened
  std::vector<int32_t> ids_;
  std::vector<ShardView> views_;
  std::vector<std::string> names_;
  std::vector<int64_t> starts_{0};  // one more than views_; the last is the total
  std::string description_;
};

}  // namespace brrr::io
