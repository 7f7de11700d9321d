#pragma once
// Token shards: files of token ids, little-endian, in the formats that others write.
//
//   llm.c    256 x int32 header: magic 20240520, version 1, count; then u16 ids. Llama-3 kind:
//   magic
//            20240801, version 7, u32 ids. FineWeb-Edu and modded-nanogpt shards are the u16 kind.
//   nanoGPT  u16 ids without any header (train.bin, val.bin).
//   llmq     1024-byte header: "BIN.TOK\n", then int32 version (1 or 2), bytes per token (2 or 4),
//   count,
//            vocabulary, mask flag; then ids. Read only. We assume, as its writers do, that a mask
//            flag other than 1 means that ids fill the rest of the file; files with a loss mask are
//            refused.
//
// The format is detected. Everything a header says is checked against the size of the file before
// use.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace brrr::io {

enum class ShardFormat { kLlmc, kNanogpt, kLlmq };

/// "llmc", "nanogpt", "llmq".
std::string_view name_of(ShardFormat format);
/// The two formats that we write. Throws UserError (usage) for another name.
ShardFormat shard_format_from_name(std::string_view name);

/// What a shard holds; a view into bytes that somebody else owns.
struct ShardView {
  ShardFormat format = ShardFormat::kNanogpt;
  int width = 2;       // bytes per id: 2 or 4
  int64_t tokens = 0;  // > 0
  int64_t vocab = 0;   // as the header says; 0: it does not
  const std::byte* ids = nullptr;

  /// Ids [offset, offset + out.size()), which must lie inside. A u32 id above 2^31 - 1 comes out
  /// negative.
  void read(int64_t offset, std::span<int32_t> out) const;
};

/// Detects the format and checks the header. Throws UserError that starts with `name`: empty,
/// without tokens, truncated, too long, odd size, unknown version, a damaged magic number, or a
/// file of another kind (text, an llm.c checkpoint, ...).
ShardView parse_shard(std::span<const std::byte> bytes, const std::string& name);

/// The most tokens that fit one shard of llm.c, which counts in an int32.
inline constexpr int64_t kMaxShardTokens = 0x7fffffff;

/// Writes one shard under `path` + ".partial"; publish() gives it its name. Ids take 2 bytes when
/// the vocabulary fits (<= 65536), else 4.
class ShardWriter {
 public:
  /// Throws UserError: nanoGPT's format with a vocabulary above 65536.
  ShardWriter(std::filesystem::path path, ShardFormat format, int64_t vocab);
  /// Continues a shard of which `tokens` ids are known to be on the disk; what follows them is cut
  /// off.
  ShardWriter(std::filesystem::path path, ShardFormat format, int64_t vocab, int64_t tokens);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();

  /// Throws UserError for an id outside [0, vocab) and when the shard would exceed kMaxShardTokens.
  void append(std::span<const int32_t> ids);
  /// Everything appended so far is on the disk.
  void sync();
  /// Completes the header, syncs and closes.
  void close();
  int64_t tokens() const { return tokens_; }
  const std::filesystem::path& path() const { return path_; }

  static std::filesystem::path partial(const std::filesystem::path& path);
  /// Renames the partial file to `path`; nothing to do when that has happened before.
  static void publish(const std::filesystem::path& path);

 private:
  void flush();
  void write_at(uint64_t offset, const void* data, size_t bytes);
  std::filesystem::path path_;
  ShardFormat format_;
  int64_t vocab_;
  int width_;
  int64_t tokens_ = 0;
  int fd_ = -1;
  uint64_t written_ = 0;  // bytes on their way to the disk
  std::string buffer_;
};

/// One whole shard, atomically.
void write_shard(const std::filesystem::path& path, ShardFormat format, int64_t vocab,
                 std::span<const int32_t> ids);

}  // namespace brrr::io
