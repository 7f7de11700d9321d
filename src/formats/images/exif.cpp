#include <cstring>
#include <optional>

#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

/// Reads numbers of a TIFF block in its byte order; nothing is returned beyond its end.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool little) : bytes_(bytes), little_(little) {}
  std::optional<uint32_t> number(size_t at, size_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      const size_t from = little_ ? at + size - 1 - i : at + i;
      value = value << 8 | static_cast<uint32_t>(bytes_[from]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  constexpr uint32_t kOrientationTag = 0x112, kShortType = 3;
  constexpr size_t kEntryBytes = 12;
  if (exif.size() >= 6 && std::memcmp(exif.data(), "Exif\0\0", 6) == 0) exif = exif.subspan(6);
  if (exif.size() < 8) return 1;
  const bool little = std::memcmp(exif.data(), "II*\0", 4) == 0;
  if (!little && std::memcmp(exif.data(), "MM\0*", 4) != 0) return 1;
  const TiffReader reader(exif, little);
  const size_t directory = reader.number(4, 4).value_or(0);
  const uint32_t entries = reader.number(directory, 2).value_or(0);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    const auto tag = reader.number(entry, 2);
    if (!tag) return 1;
    if (*tag != kOrientationTag) continue;
    const uint32_t value = reader.number(entry + 8, 2).value_or(1);
    const bool is_one = reader.number(entry + 2, 2) == kShortType && value >= 1 && value <= 8;
    return is_one ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace brrr::io
