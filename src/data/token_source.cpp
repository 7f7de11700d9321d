#include "data/token_source.h"

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/errors.h"
#include "base/sha256.h"
#include "base/threads/parallel.h"
#include "base/threads/parallel_tasks.h"
#include "data/shard_record.h"

namespace brrr::io {
namespace {

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> expand_pattern(const std::string& pattern) {
  glob_t found{};
  const int rc = ::glob(pattern.c_str(), 0, nullptr, &found);  // sorted
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (rc != 0 || paths.empty()) user_error("no token shard matches {}; check the pattern", pattern);
  return paths;
}

bool name_contains(const fs::path& path, const std::string& part) {
  return path.filename().string().find(part) != std::string::npos;
}

/// The *.bin files of a folder, sorted.
std::vector<fs::path> shards_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".bin" && it->is_regular_file(error)) paths.push_back(it->path());
  if (error) user_error("cannot read the folder {}: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> expand(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (is_pattern(path)) return expand_pattern(path);
    user_error("no such token shard or folder: {}; make shards with `brrr data prepare`", path);
  }
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> paths = shards_in(path);
  if (paths.empty())
    user_error("the folder {} holds no *.bin shards; make them with `brrr data prepare`", path);
  const auto any = [&](const char* part) {
    return std::any_of(paths.begin(), paths.end(),
                       [&](const fs::path& p) { return name_contains(p, part); });
  };
  if (any("train") && any("val"))
    user_error(
        "the folder {} holds training and validation shards; name one kind: '{}/*train*.bin'", path,
        path);
  return paths;
}

/// Compares every shard with the record beside it, where there is one.
void check_shards(const std::vector<MappedFile>& files) {
  std::map<fs::path, std::vector<ShardRecord>> records;
  for (const MappedFile& file : files) {
    const fs::path folder = file.path().parent_path();
    if (!records.contains(folder)) records[folder] = shard_records(folder);
  }
  parallel_tasks(std::ssize(files), [&](size_t i) {
    const fs::path& path = files[i].path();
    for (const ShardRecord& record : records.at(path.parent_path()))
      if (record.file == path.filename()) check_shard(files[i], record);
  });
}

}  // namespace

void TokenSource::add(ShardView view, std::string name) {
  views_.push_back(view);
  names_.push_back(std::move(name));
  starts_.push_back(starts_.back() + view.tokens);
}

TokenSource TokenSource::open(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths)
    for (fs::path& file : expand(path)) files.push_back(std::move(file));
  if (files.empty()) usage_error("no token shards were named");
  TokenSource source;
  for (const fs::path& file : files) {
    source.stamps_.push_back(stamp_of(file));
    const MappedFile& mapped = source.files_.emplace_back(file);
    source.add(parse_shard(mapped.bytes(), file.string()), file.string());
  }
  check_shards(source.files_);
  source.description_ = files.size() == 1
                            ? files[0].string()
                            : fmt::format("{} shards ({}, ...)", files.size(), files[0].string());
  return source;
}

TokenSource TokenSource::open_split(const fs::path& folder, const std::string& split) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    user_error("no such folder of token shards: {}; make it with `brrr data prepare`",
               folder.string());
  std::vector<std::string> paths;
  for (const fs::path& path : shards_in(folder))
    if (name_contains(path, split)) paths.push_back(path.string());
  if (paths.empty())
    user_error("the folder {} holds no *{}*.bin shards; make them with `brrr data prepare`",
               folder.string(), split);
  // The names are exact: a bracket in one is no pattern, since the file exists.
  return open(paths);
}

TokenSource TokenSource::open_validation(std::vector<std::string> paths) {
  std::vector<std::string> files;
  for (std::string& path : paths) {
    std::error_code error;
    const bool both =
        fs::is_directory(path, error) && has_split(path, "train") && has_split(path, "val");
    if (!both) {
      files.push_back(std::move(path));
      continue;
    }
    for (const fs::path& shard : shards_in(path))
      if (name_contains(shard, "val")) files.push_back(shard.string());
  }
  return open(files);
}

bool TokenSource::has_split(const fs::path& folder, const std::string& split) {
  const std::vector<fs::path> paths = shards_in(folder);
  return std::any_of(paths.begin(), paths.end(),
                     [&](const fs::path& path) { return name_contains(path, split); });
}

TokenSource TokenSource::from_ids(std::vector<int32_t> ids, std::string name) {
  TokenSource source;
  source.ids_ = std::move(ids);
  source.description_ = name;
  source.add({ShardFormat::kNanogpt, 4, static_cast<int64_t>(source.ids_.size()), 0,
              reinterpret_cast<const std::byte*>(source.ids_.data())},
             std::move(name));
  return source;
}

void TokenSource::read(int64_t offset, std::span<int32_t> out) const {
  BRRR_CHECK(
      offset >= 0 && offset <= tokens() && static_cast<int64_t>(out.size()) <= tokens() - offset,
      "read of {} tokens at {} of {}", out.size(), offset, tokens());
  auto shard = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                                   starts_.begin() - 1);
  while (!out.empty()) {
    if (!files_.empty())  // one that was deleted stays as it was mapped
      if (const FileStamp now = stamp_of(files_[shard].path()); now != FileStamp{})
        check_unchanged(files_[shard].path(), stamps_[shard], now);
    const int64_t inside = offset - starts_[shard];
    const auto n = std::min(out.size(), static_cast<size_t>(views_[shard].tokens - inside));
    views_[shard].read(inside, out.first(n));
    out = out.subspan(n);
    offset += static_cast<int64_t>(n);
    ++shard;
  }
}

std::string TokenSource::locate(int64_t offset) const {
  const auto shard = static_cast<size_t>(
      std::upper_bound(starts_.begin(), starts_.end() - 1, offset) - starts_.begin() - 1);
  return fmt::format("{}, token {}", names_[shard], offset - starts_[shard]);
}

void TokenSource::check_ids(std::span<const int32_t> ids, int64_t offset, int64_t vocab) const {
  uint32_t largest = 0;  // as unsigned: an id above 2^31 - 1 came out negative
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (static_cast<int64_t>(largest) < vocab) return;
  for (size_t i = 0; i < ids.size(); ++i)
    if (static_cast<int64_t>(static_cast<uint32_t>(ids[i])) >= vocab)
      user_error(
          "{}: id {} is outside the vocabulary of {}; the shard was made with another tokenizer, "
          "or is "
          "damaged",
          locate(offset + static_cast<int64_t>(i)), static_cast<uint32_t>(ids[i]), vocab);
}

namespace {

/// The largest of `n` ids; as unsigned, so that one above 2^31 - 1 is large.
template <typename Id>
uint32_t largest_id(const std::byte* ids, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    Id id;
    std::memcpy(&id, ids + i * static_cast<int64_t>(sizeof id), sizeof id);
    largest = std::max<uint32_t>(largest, id);
  }
  return largest;
}

}  // namespace

void TokenSource::verify(int64_t vocab) const {
  constexpr int64_t kPiece = 1 << 20;
  struct Range {
    size_t shard;
    int64_t first, tokens;
  };
  std::vector<Range> pieces;
  for (size_t shard = 0; shard < views_.size(); ++shard)
    for (int64_t first = 0; first < views_[shard].tokens; first += kPiece)
      pieces.push_back({shard, first, std::min(kPiece, views_[shard].tokens - first)});
  std::vector<char> bad(pieces.size(), 0);
  parallel_chunks(std::ssize(pieces), [&](int64_t i) {
    const Range& piece = pieces[static_cast<size_t>(i)];
    const ShardView& view = views_[piece.shard];
    const std::byte* ids = view.ids + piece.first * view.width;
    const uint32_t largest = view.width == 2 ? largest_id<uint16_t>(ids, piece.tokens)
                                             : largest_id<uint32_t>(ids, piece.tokens);
    bad[static_cast<size_t>(i)] = static_cast<int64_t>(largest) >= vocab;
    if (!files_.empty())
      files_[piece.shard].let_go({ids, static_cast<size_t>(piece.tokens * view.width)});
  });
  const auto found = std::find(bad.begin(), bad.end(), 1);
  if (found == bad.end()) return;
  const Range& piece = pieces[static_cast<size_t>(found - bad.begin())];
  std::vector<int32_t> ids(static_cast<size_t>(piece.tokens));
  views_[piece.shard].read(piece.first, ids);
  check_ids(ids, starts_[piece.shard] + piece.first, vocab);
}

std::string TokenSource::fingerprint() const {
  constexpr int64_t kAll = int64_t{1} << 22, kBlock = 1024, kBlocks = 1024;
  Sha256 hash;
  const int64_t total = tokens();
  hash.update(&total, sizeof total);
  std::vector<int32_t> ids(kBlock);
  const int64_t blocks = total <= kAll ? (total + kBlock - 1) / kBlock : kBlocks;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t offset =
        total <= kAll ? block * kBlock : (total - kBlock) / (kBlocks - 1) * block;
    const auto n = static_cast<size_t>(std::min(kBlock, total - offset));
    read(offset, std::span(ids).first(n));
    hash.update(ids.data(), 4 * n);
  }
  if (total > kAll) {  // the spread is rounded down; the very end is always included
    read(total - kBlock, ids);
    hash.update(ids.data(), 4 * ids.size());
  }
  return hash.finish_hex();
}

}  // namespace brrr::io
