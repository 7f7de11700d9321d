#include "data/shard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/file.h"

namespace brrr::io {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr size_t kHeaderBytes = 1024, kHeaderWords = 256;
constexpr int32_t kLlmcMagic = 20240520, kLlmcVersion = 1;
constexpr int32_t kLlama3Magic = 20240801, kLlama3Version = 7;
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr size_t kFlushBytes = size_t{1} << 20;

using Bytes = std::span<const std::byte>;
using Header = std::array<int32_t, kHeaderWords>;

std::optional<Header> header_of(Bytes bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(header.data(), bytes.data(), kHeaderBytes);
  return header;
}

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The ids behind a 1024-byte header that promises `count` of them.
ShardView behind_header(Bytes bytes, const std::string& name, ShardFormat format, int width,
                        int64_t count) {
  if (count < 0)
    user_error("{}: the header counts {} tokens; the shard is damaged, write it again", name,
               count);
  const uint64_t expected =
      kHeaderBytes + static_cast<uint64_t>(count) * static_cast<uint64_t>(width);
  if (bytes.size() != expected)
    user_error(
        "{}: {}: the header counts {} tokens of {} bytes, which makes a file of {} bytes, but it "
        "has {}; "
        "copy or write it again",
        name, bytes.size() < expected ? "truncated shard" : "shard with surplus bytes", count,
        width, expected, bytes.size());
  if (count == 0) user_error("{}: the shard has a header but no tokens; write it again", name);
  return {format, width, count, 0, bytes.data() + kHeaderBytes};
}

void need_header(const std::optional<Header>& header, Bytes bytes, const std::string& name,
                 std::string_view kind) {
  if (!header)
    user_error("{}: truncated {} shard: {} bytes, its header alone has {}; copy or write it again",
               name, kind, bytes.size(), kHeaderBytes);
}

ShardView parse_llmc(Bytes bytes, const std::string& name, int32_t magic) {
  const auto header = header_of(bytes);
  need_header(header, bytes, name, "llm.c");
  const int32_t version = (*header)[1];
  const int32_t known = magic == kLlmcMagic ? kLlmcVersion : kLlama3Version;
  if (version != known)
    user_error("{}: llm.c shard of version {}; with magic {} only version {} is supported", name,
               version, magic, known);
  return behind_header(bytes, name, ShardFormat::kLlmc, magic == kLlmcMagic ? 2 : 4, (*header)[2]);
}

ShardView parse_llmq(Bytes bytes, const std::string& name) {
  const auto header = header_of(bytes);
  need_header(header, bytes, name, "llmq");
  const int32_t version = (*header)[2], width = (*header)[3], count = (*header)[4];
  const int32_t vocab = (*header)[5], mask = (*header)[6];
  if (version != 1 && version != 2)
    user_error("{}: llmq shard of version {}; only versions 1 and 2 are supported", name, version);
  if (width != 2 && width != 4)
    user_error("{}: llmq shard with {} bytes per token; expected 2 or 4", name, width);
  if (mask == 1)
    user_error("{}: llmq shard with a loss mask, which is not supported; write it without the mask",
               name);
  ShardView view = behind_header(bytes, name, ShardFormat::kLlmq, width, count);
  view.vocab = std::max(vocab, 0);
  return view;
}

/// A file without a known magic number may be nanoGPT's, or another kind, or a damaged header: say
/// which, rather than train on its bytes.
void refuse_lookalikes(Bytes bytes, const std::string& name) {
  int32_t first = 0;
  if (bytes.size() >= 4) std::memcpy(&first, bytes.data(), 4);
  constexpr struct {
    int32_t magic;
    const char* what;
  } kOthers[] = {{20240522, "an llm.c evaluation set"},
                 {20240326, "an llm.c checkpoint"},
                 {20240327, "llm.c debug state"},
                 {20240328, "an llm.c tokenizer"}};
  for (const auto& other : kOthers)
    if (first == other.magic) user_error("{} is {}; expected a token shard", name, other.what);

  const std::string_view text = as_text(bytes.first(std::min<size_t>(bytes.size(), 4096)));
  const auto printable = [](char c) { return (c >= 0x20 && c < 0x7f) || (c >= '\t' && c <= '\r'); };
  if (text.size() >= 64 && std::all_of(text.begin(), text.end(), printable))
    user_error(
        "{} is text; expected a token shard: encode it first (`brrr data prepare`), or use --text",
        name);

  const auto header = header_of(bytes);
  if (!header) return;
  int letters = 0;
  for (size_t i = 0; i < kLlmqMagic.size(); ++i) letters += text[i] == kLlmqMagic[i];
  // Ids in llm.c's place of the reserved zeros: no text has 253 x 2 times token 0 in a row there.
  const bool reserved_zero =
      std::all_of(header->begin() + 3, header->end(), [](int32_t word) { return word == 0; });
  const bool counts = (*header)[2] > 0 &&
                      (bytes.size() - kHeaderBytes) / static_cast<uint64_t>((*header)[2]) <= 4 &&
                      (bytes.size() - kHeaderBytes) % static_cast<uint64_t>((*header)[2]) == 0;
  const bool version = (*header)[1] == kLlmcVersion || (*header)[1] == kLlama3Version;
  if (letters >= 6 || (reserved_zero && (counts || version)))
    user_error(
        "{}: damaged shard header: the file looks like {}'s, but its magic number is {}; copy or "
        "write it "
        "again",
        name, letters >= 6 ? "llmq" : "llm.c", first);
}

ShardView parse_nanogpt(Bytes bytes, const std::string& name) {
  refuse_lookalikes(bytes, name);
  if (bytes.size() % 2 != 0)
    user_error(
        "{}: {} bytes is an odd size: a headerless shard is made of 2-byte tokens, so it is "
        "truncated or not a token shard; copy or write it again",
        name, bytes.size());
  return {ShardFormat::kNanogpt, 2, static_cast<int64_t>(bytes.size() / 2), 0, bytes.data()};
}

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  const char* advice = "";
  if (error == ENOSPC || error == EDQUOT) advice = "; free some space and run again";
  if (error == EACCES || error == EROFS || error == EPERM)
    advice = "; choose a place you may write to, or change its permissions";
  user_error("cannot {} {}: {}{}", verb, path.string(), std::strerror(error), advice);
}

size_t header_bytes(ShardFormat format) {
  return format == ShardFormat::kNanogpt ? 0 : kHeaderBytes;
}

}  // namespace

std::string_view name_of(ShardFormat format) {
  switch (format) {
    case ShardFormat::kLlmc:
      return "llmc";
    case ShardFormat::kNanogpt:
      return "nanogpt";
    case ShardFormat::kLlmq:
      return "llmq";
  }
  return "unknown";
}

ShardFormat shard_format_from_name(std::string_view name) {
  if (name == "llmc") return ShardFormat::kLlmc;
  if (name == "nanogpt") return ShardFormat::kNanogpt;
  usage_error("unknown shard format '{}': expected llmc or nanogpt", name);
}

void ShardView::read(int64_t offset, std::span<int32_t> out) const {
  BRRR_CHECK(offset >= 0 && offset <= tokens && static_cast<int64_t>(out.size()) <= tokens - offset,
             "read of {} ids at {} of {}", out.size(), offset, tokens);
  const std::byte* from = ids + offset * width;
  if (width == 4) {
    std::memcpy(out.data(), from, 4 * out.size());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {  // headers keep ids aligned, but a view need not be
    uint16_t id;
    std::memcpy(&id, from + 2 * i, 2);
    out[i] = id;
  }
}

ShardView parse_shard(Bytes bytes, const std::string& name) {
  if (bytes.empty()) user_error("{} is empty; expected a token shard: write it again", name);
  if (as_text(bytes).starts_with(kLlmqMagic)) return parse_llmq(bytes, name);
  int32_t magic = 0;
  if (bytes.size() >= 4) std::memcpy(&magic, bytes.data(), 4);
  if (magic == kLlmcMagic || magic == kLlama3Magic) return parse_llmc(bytes, name, magic);
  return parse_nanogpt(bytes, name);
}

ShardWriter::ShardWriter(fs::path path, ShardFormat format, int64_t vocab)
    : path_(std::move(path)), format_(format), vocab_(vocab), width_(vocab <= 65536 ? 2 : 4) {
  BRRR_CHECK(format != ShardFormat::kLlmq && vocab > 0, "format {}, vocab {}", name_of(format),
             vocab);
  if (format == ShardFormat::kNanogpt && width_ != 2)
    user_error(
        "nanogpt shards hold 2-byte ids, but the vocabulary has {} entries (more than 65536); use "
        "the format llmc",
        vocab);
  fd_ = open_for_writing(partial(path_), WriteMode::fresh);
  written_ = header_bytes(format_);  // the header comes last; until then the file is a partial one
}

ShardWriter::ShardWriter(fs::path path, ShardFormat format, int64_t vocab, int64_t tokens)
    : path_(std::move(path)),
      format_(format),
      vocab_(vocab),
      width_(vocab <= 65536 ? 2 : 4),
      tokens_(tokens) {
  fd_ = open_for_writing(partial(path_), WriteMode::update);
  written_ = header_bytes(format_) + static_cast<uint64_t>(tokens_) * static_cast<uint64_t>(width_);
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  if (size < 0) fail("read", partial(path_), errno);
  if (tokens > 0 && static_cast<uint64_t>(size) < written_)
    user_error(
        "{} has {} bytes, {} were written before the interruption; start again (--overwrite)",
        partial(path_).string(), size, written_);
  if (::ftruncate(fd_, static_cast<off_t>(written_)) != 0) fail("write", partial(path_), errno);
}

ShardWriter::~ShardWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void ShardWriter::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, cursor, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", partial(path_), errno);
    cursor += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
  }
}

void ShardWriter::flush() {
  fault_point("shard.write");
  write_at(written_, buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  buffer_.clear();
}

void ShardWriter::append(std::span<const int32_t> ids) {
  if (format_ == ShardFormat::kLlmc && static_cast<int64_t>(ids.size()) > kMaxShardTokens - tokens_)
    user_error("{} would exceed {} tokens, the most that one shard holds; set a shard size",
               path_.string(), kMaxShardTokens);
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_)
      user_error("cannot write {}: token {} is outside the vocabulary of {}", path_.string(), id,
                 vocab_);
  constexpr size_t kStep = 1 << 16;
  for (size_t at = 0; at < ids.size(); at += kStep) {
    const auto part = ids.subspan(at, std::min(kStep, ids.size() - at));
    const size_t before = buffer_.size();
    buffer_.resize(before + part.size() * static_cast<size_t>(width_));
    char* to = buffer_.data() + before;
    if (width_ == 4) {
      std::memcpy(to, part.data(), 4 * part.size());
    } else {
      for (size_t i = 0; i < part.size(); ++i) {
        const auto id = static_cast<uint16_t>(part[i]);
        std::memcpy(to + 2 * i, &id, 2);
      }
    }
    if (buffer_.size() >= kFlushBytes) flush();
  }
  tokens_ += static_cast<int64_t>(ids.size());
}

void ShardWriter::sync() {
  flush();
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("sync", partial(path_), errno);
}

void ShardWriter::close() {
  flush();
  if (format_ == ShardFormat::kLlmc) {
    Header header{};
    header[0] = width_ == 2 ? kLlmcMagic : kLlama3Magic;
    header[1] = width_ == 2 ? kLlmcVersion : kLlama3Version;
    header[2] = static_cast<int32_t>(tokens_);
    write_at(0, header.data(), kHeaderBytes);
  }
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("sync", partial(path_), errno);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("close", partial(path_), errno);
}

fs::path ShardWriter::partial(const fs::path& path) {
  fs::path out = path;
  out += ".partial";
  return out;
}

void ShardWriter::publish(const fs::path& path) {
  if (::rename(partial(path).c_str(), path.c_str()) != 0) {
    const int error = errno;
    if (error == ENOENT && fs::exists(path)) return;
    if (error == ENOENT)
      user_error("{} was written, but is missing now; begin again with --overwrite", path.string());
    fail("write", path, error);
  }
  sync_folder(path.parent_path());
}

void write_shard(const fs::path& path, ShardFormat format, int64_t vocab,
                 std::span<const int32_t> ids) {
  try {
    ShardWriter out(path, format, vocab);
    out.append(ids);
    out.close();
    ShardWriter::publish(path);
  } catch (...) {
    ::unlink(ShardWriter::partial(path).c_str());
    throw;
  }
}

}  // namespace brrr::io
