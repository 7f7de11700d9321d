#include "data/prepare/prepare_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"

namespace brrr::io {

fs::path SplitWriter::path(size_t index) const {
  return shard_path(place_.folder, place_.name, index, place_.shard_tokens);
}

void SplitWriter::resume(const SplitRecord& record) {
  shards_ = record.shards;
  for (size_t i = 0; i < shards_.size(); ++i) ShardWriter::publish(path(i));
  if (record.partial_tokens > 0)
    current_.emplace(path(shards_.size()), place_.format, place_.vocab, record.partial_tokens);
}

void SplitWriter::append(std::span<const int32_t> ids) {
  const int64_t size = place_.shard_tokens;
  while (!ids.empty()) {
    if (!current_) current_.emplace(path(shards_.size()), place_.format, place_.vocab);
    const size_t room = size > 0 ? static_cast<size_t>(size - current_->tokens()) : ids.size();
    const size_t n = std::min(ids.size(), room);
    current_->append(ids.first(n));
    ids = ids.subspan(n);
    if (current_->tokens() == size) close();
  }
}

void SplitWriter::close() {
  if (!current_) return;
  current_->close();
  const fs::path& shard = current_->path();
  unpublished_.push_back(shard);
  const MappedFile file(ShardWriter::partial(shard));  // read back; mostly from memory
  shards_.push_back({shard.filename().string(), current_->tokens(), file.bytes().size(),
                     crc32c(file.bytes().data(), file.bytes().size())});
  current_.reset();
}

SplitRecord SplitWriter::sync() {
  if (current_) current_->sync();
  return {shards_, current_ ? current_->tokens() : 0};
}

void SplitWriter::publish() {
  for (const fs::path& shard : unpublished_) ShardWriter::publish(shard);
  unpublished_.clear();
}

void SplitWriter::verify() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const MappedFile file(path(i));
    parse_shard(file.bytes(), path(i).string());
    check_shard(file, shards_[i]);
  }
}

std::vector<fs::path> SplitWriter::paths() const {
  std::vector<fs::path> out;
  for (size_t i = 0; i < shards_.size(); ++i) out.push_back(path(i));
  return out;
}

namespace {

constexpr const char* kStagingMark = ".made-by-brrr";

}  // namespace

StagedTokenizer::StagedTokenizer(const Tokenizer& tokenizer, const fs::path& output)
    : output_(output), staging_(output / ".tokenizer") {
  std::error_code error;
  if (fs::is_regular_file(staging_ / kStagingMark, error))
    remove_marked_folder(staging_, kStagingMark);
  if (fs::is_directory(fs::symlink_status(staging_, error))) fs::remove(staging_, error);  // empty
  if (fs::exists(fs::symlink_status(staging_, error)))
    user_error("cannot prepare in {}: Brrr did not make {}, which is in the way; move it",
               output.string(), staging_.string());
  create_folder(staging_);
  write_file_atomically(staging_ / kStagingMark, "");
  tokenizer.save(staging_);
  Sha256 hash;
  for (const fs::path& file : files())
    hash.update(file.filename().string() + " " + sha256_of_file(file) + "\n");
  hash_ = hash.finish_hex();
}

StagedTokenizer::~StagedTokenizer() { remove_marked_folder(staging_, kStagingMark); }

std::vector<fs::path> StagedTokenizer::files() const {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(staging_))
    if (entry.path().filename() != kStagingMark) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void StagedTokenizer::publish() {
  for (const fs::path& file : files()) {
    const fs::path to = output_ / file.filename();
    std::error_code error;
    fs::rename(file, to, error);
    if (error) user_error("cannot write {}: {}", to.string(), error.message());
  }
}

}  // namespace brrr::io
