#include "data/packed/unpacked_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <optional>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/memory.h"

namespace brrr::io {
namespace {

constexpr size_t kPackedPiece = size_t{1} << 16;
constexpr int kLargestZstdWindow = 27;  // 2^27 bytes, which --ultra -22 needs; --long may need more

}  // namespace

/// Turns bytes of an archive into bytes of its content.
class UnpackedFile::Decoder {
 public:
  struct Progress {
    size_t taken = 0, given = 0;  // bytes
    std::string damage;           // why the archive cannot be read; "" if it can
  };
  virtual ~Decoder() = default;
  virtual Progress decode(std::string_view packed, char* out, size_t bytes) = 0;
  /// Whether the archive may end here: not inside one of its parts.
  virtual bool may_end() const = 0;
};

/// Parts (members) one behind the other, as gzip writes them when archives are joined.
class UnpackedFile::Gzip final : public Decoder {
 public:
  Gzip() {
    constexpr int kGzipOnly = 16;
    BRRR_CHECK(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, "zlib");
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() override { inflateEnd(&stream_); }

  Progress decode(std::string_view packed, char* out, size_t bytes) override {
    Progress done;
    if (is_between_parts_) {
      // Tapes and copies pad with zeros what gzip wrote.
      done.taken = std::min(packed.find_first_not_of('\0'), packed.size());
      if (done.taken == packed.size()) return done;
      inflateReset(&stream_);
      is_between_parts_ = false;
    }
    const std::string_view rest = packed.substr(done.taken);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
    stream_.avail_in = static_cast<uInt>(rest.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(bytes);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    done.taken = packed.size() - stream_.avail_in;
    done.given = bytes - stream_.avail_out;
    is_between_parts_ = status == Z_STREAM_END;
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      done.damage = stream_.msg != nullptr ? stream_.msg : "zlib refuses it";
    return done;
  }
  bool may_end() const override { return is_between_parts_; }

 private:
  z_stream stream_{};
  bool is_between_parts_ = false;
};

/// Parts (frames) one behind the other; those that are to be skipped are.
class UnpackedFile::Zstd final : public Decoder {
 public:
  Zstd() : stream_(ZSTD_createDStream()) {
    BRRR_CHECK(stream_ != nullptr, "zstd");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kLargestZstdWindow);
  }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;
  ~Zstd() override { ZSTD_freeDStream(stream_); }

  Progress decode(std::string_view packed, char* out, size_t bytes) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer given{out, bytes, 0};
    const size_t status = ZSTD_decompressStream(stream_, &given, &in);
    may_end_ = status == 0;
    Progress done{in.pos, given.pos, ""};
    if (ZSTD_isError(status) != 0) done.damage = ZSTD_getErrorName(status);
    return done;
  }
  bool may_end() const override { return may_end_; }

 private:
  ZSTD_DStream* stream_;
  bool may_end_ = false;
};

Packing packing_of(std::string_view begin) {
  if (begin.starts_with("\x1f\x8b")) return Packing::gzip;
  if (begin.starts_with("\x28\xb5\x2f\xfd")) return Packing::zstd;
  return Packing::none;
}

Packing packing_of_file(const fs::path& path) {
  char begin[4];
  InputFile file(path);
  return packing_of({begin, file.read(begin, sizeof begin)});
}

fs::path unpacked_name(const fs::path& path) {
  const std::string ending = ascii_lowercase(path.extension().string());
  return ending == ".gz" || ending == ".zst" ? fs::path(path).replace_extension() : path;
}

UnpackedFile::UnpackedFile(const fs::path& path) : path_(path), file_(path) {
  packed_.resize(kPackedPiece);
  packed_.resize(file_.read(packed_.data(), packed_.size()));
  packed_bytes_ = packed_.size();
  switch (packing_of(packed_)) {
    case Packing::none:
      break;
    case Packing::gzip:
      decoder_ = std::make_unique<Gzip>();
      break;
    case Packing::zstd:
      decoder_ = std::make_unique<Zstd>();
      break;
  }
}

UnpackedFile::~UnpackedFile() = default;

size_t UnpackedFile::read(char* data, size_t bytes) {
  if (!decoder_) {
    if (packed_at_ == packed_.size()) return file_.read(data, bytes);
    const size_t n = packed_.copy(data, bytes, packed_at_);
    packed_at_ += n;
    return n;
  }
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // zlib counts in 32 bits
  bytes = std::min(bytes, kMostAtOnce);
  size_t given = 0;
  while (given == 0 && bytes > 0) {
    if (packed_at_ == packed_.size() && !at_end_) {
      packed_.resize(kPackedPiece);
      packed_.resize(file_.read(packed_.data(), packed_.size()));
      packed_at_ = 0;
      packed_bytes_ += packed_.size();
      at_end_ = packed_.empty();
    }
    // At the end of the file a decoder may still hold some of the content.
    if (at_end_ && decoder_->may_end()) return 0;
    const auto done = decoder_->decode(std::string_view(packed_).substr(packed_at_), data, bytes);
    if (!done.damage.empty())
      user_error("{} is a damaged archive ({}); download it or pack it again", path_.string(),
                 done.damage);
    packed_at_ += done.taken;
    given = done.given;
    if (given == 0 && at_end_)
      user_error(
          "{} is an archive that ends too early: a part is missing; download it or pack it "
          "again",
          path_.string());
  }
  unpacked_bytes_ += given;
  if (unpacked_bytes_ > kAlwaysAllowed && unpacked_bytes_ / kMostRatio > packed_bytes_)
    user_error(
        "{} unpacks to more than {} times its size, which no text does; if it is one, unpack it "
        "first",
        path_.string(), kMostRatio);
  return given;
}

std::string read_unpacked(const fs::path& path, uint64_t limit) {
  if (packing_of_file(path) == Packing::none) return read_file(path, limit);
  UnpackedFile file(path);
  const auto usable = usable_memory();
  const int64_t now = resident_memory().needed();
  std::string content, piece(size_t{1} << 20, '\0');
  while (const size_t n = file.read(piece.data(), piece.size())) {
    if (content.size() + n > limit)
      user_error("{} unpacks to more than {}; expected a smaller file", path.string(),
                 memory_text(static_cast<int64_t>(limit)));
    // Growing takes the old room and the new one, which is twice as large, for a moment.
    const auto needed = now + 3 * static_cast<int64_t>(content.size() + n);
    if (usable && content.size() + n > content.capacity() && needed > usable->bytes)
      throw UserError(fmt::format("{} does not fit in memory: {} of it are unpacked, and {} is {}",
                                  path.string(), memory_text(static_cast<int64_t>(content.size())),
                                  usable->source, memory_text(usable->bytes)),
                      ExitCode::kNoMemory);
    content.append(piece, 0, n);
  }
  return content;
}

}  // namespace brrr::io
