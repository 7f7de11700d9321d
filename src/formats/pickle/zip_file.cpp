#include "formats/pickle/zip_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr uint32_t kEndSign = 0x06054b50, kEnd64Sign = 0x06064b50, kLocator64Sign = 0x07064b50,
                   kDirectorySign = 0x02014b50, kHeaderSign = 0x04034b50;
constexpr size_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56, kDirectoryBytes = 46,
                 kHeaderBytes = 30, kMostComment = 65535;
constexpr uint64_t kMostDeflateRatio = 1032;

template <typename T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T value;
  BRRR_CHECK(at <= bytes.size() && sizeof value <= bytes.size() - at, "{} of {}", at, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

bool fits(std::span<const std::byte> bytes, uint64_t at, uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at;
}

}  // namespace

ZipFile::ZipFile(std::span<const std::byte> bytes, std::string what)
    : bytes_(bytes), what_(std::move(what)) {
  const auto sign_is = [&](uint64_t at, size_t size, uint32_t sign) {
    return fits(bytes, at, size) && number_at<uint32_t>(bytes, at) == sign;
  };
  if (bytes.size() < kEndBytes) user_error("{} is no zip archive, or is truncated", what_);
  size_t end = bytes.size() - kEndBytes;
  const size_t least = end > kMostComment ? end - kMostComment : 0;
  while (!sign_is(end, kEndBytes, kEndSign)) {
    if (end == least)
      user_error("{}: the directory of the zip archive is missing; the file is truncated", what_);
    --end;
  }
  uint64_t entries = number_at<uint16_t>(bytes, end + 10);
  uint64_t size = number_at<uint32_t>(bytes, end + 12), at = number_at<uint32_t>(bytes, end + 16);
  if (end >= kLocator64Bytes && sign_is(end - kLocator64Bytes, kLocator64Bytes, kLocator64Sign)) {
    const auto end64 = number_at<uint64_t>(bytes, end - kLocator64Bytes + 8);
    if (!sign_is(end64, kEnd64Bytes, kEnd64Sign))
      user_error("{}: the directory of the zip archive is damaged", what_);
    entries = number_at<uint64_t>(bytes, end64 + 32);
    size = number_at<uint64_t>(bytes, end64 + 40);
    at = number_at<uint64_t>(bytes, end64 + 48);
  }
  read_directory(at, entries, size);
}

void ZipFile::read_directory(uint64_t at, uint64_t entries, uint64_t size) {
  const auto damaged = [&] {
    user_error("{}: the directory of the zip archive is damaged", what_);
  };
  if (!fits(bytes_, at, size) || entries > size / kDirectoryBytes) damaged();
  const std::span<const std::byte> directory = bytes_.subspan(at, size);
  uint64_t from = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    if (!fits(directory, from, kDirectoryBytes) ||
        number_at<uint32_t>(directory, from) != kDirectorySign)
      damaged();
    Entry entry;
    entry.flags = number_at<uint16_t>(directory, from + 8);
    entry.method = number_at<uint16_t>(directory, from + 10);
    entry.packed_bytes = number_at<uint32_t>(directory, from + 20);
    entry.bytes = number_at<uint32_t>(directory, from + 24);
    entry.at = number_at<uint32_t>(directory, from + 42);
    const uint64_t name_bytes = number_at<uint16_t>(directory, from + 28),
                   extra_bytes = number_at<uint16_t>(directory, from + 30),
                   comment_bytes = number_at<uint16_t>(directory, from + 32);
    from += kDirectoryBytes;
    if (!fits(directory, from, name_bytes + extra_bytes + comment_bytes)) damaged();
    std::string name(reinterpret_cast<const char*>(directory.data()) + from, name_bytes);
    // The 64-bit extension holds, in this order, the numbers that do not fit 32 bits.
    std::span<const std::byte> extra = directory.subspan(from + name_bytes, extra_bytes);
    while (extra.size() >= 4) {
      const auto id = number_at<uint16_t>(extra, 0);
      const size_t length = number_at<uint16_t>(extra, 2);
      if (length > extra.size() - 4) break;
      std::span<const std::byte> field = extra.subspan(4, length);
      if (id == 1)
        for (uint64_t* wide : {&entry.bytes, &entry.packed_bytes, &entry.at})
          if (*wide == 0xffffffff && field.size() >= 8) {
            *wide = number_at<uint64_t>(field, 0);
            field = field.subspan(8);
          }
      extra = extra.subspan(4 + length);
    }
    from += name_bytes + extra_bytes + comment_bytes;
    entries_.insert_or_assign(std::move(name), entry);
  }
}

std::span<const std::byte> ZipFile::read(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) user_error("{}: the file {} is missing in it", what_, name);
  const Entry& entry = found->second;
  constexpr uint16_t kEncrypted = 1, kStored = 0, kDeflated = 8;
  if ((entry.flags & kEncrypted) != 0) user_error("{}: the file {} is encrypted", what_, name);
  const auto damaged = [&] {
    user_error("{}: the file {} in it is damaged or truncated", what_, name);
  };
  if (!fits(bytes_, entry.at, kHeaderBytes) || number_at<uint32_t>(bytes_, entry.at) != kHeaderSign)
    damaged();
  const uint64_t data = entry.at + kHeaderBytes + number_at<uint16_t>(bytes_, entry.at + 26) +
                        number_at<uint16_t>(bytes_, entry.at + 28);
  if (!fits(bytes_, data, entry.packed_bytes)) damaged();
  const std::span<const std::byte> packed = bytes_.subspan(data, entry.packed_bytes);
  if (entry.method == kStored) {
    if (entry.bytes != entry.packed_bytes) damaged();
    return packed;
  }
  if (entry.method != kDeflated)
    user_error("{}: the file {} is packed by method {}; expected stored or deflate", what_, name,
               entry.method);
  if (entry.bytes / kMostDeflateRatio > entry.packed_bytes) damaged();
  return inflated(found->first, entry, packed);
}

std::span<const std::byte> ZipFile::inflated(const std::string& name, const Entry& entry,
                                             std::span<const std::byte> packed) const {
  std::unique_ptr<std::string>& text = unpacked_[name];
  if (!text) {
    auto unpacked = std::make_unique<std::string>(entry.bytes, '\0');
    z_stream stream{};
    BRRR_CHECK(inflateInit2(&stream, -MAX_WBITS) == Z_OK, "zlib");
    constexpr uint64_t kPiece = uint64_t{1} << 30;  // zlib counts in 32 bits
    uint64_t taken = 0, given = 0;
    int status = Z_OK;
    while (status == Z_OK) {
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data())) + taken;
      stream.avail_in = static_cast<uInt>(std::min<uint64_t>(kPiece, packed.size() - taken));
      stream.next_out = reinterpret_cast<Bytef*>(unpacked->data()) + given;
      stream.avail_out = static_cast<uInt>(std::min<uint64_t>(kPiece, entry.bytes - given));
      const uint64_t in = stream.avail_in, out = stream.avail_out;
      status = inflate(&stream, Z_NO_FLUSH);
      taken += in - stream.avail_in;
      given += out - stream.avail_out;
    }
    inflateEnd(&stream);
    if (status != Z_STREAM_END || given != entry.bytes)
      user_error("{}: the file {} in it is damaged or truncated", what_, name);
    text = std::move(unpacked);
  }
  return std::as_bytes(std::span(*text));
}

}  // namespace brrr::io
