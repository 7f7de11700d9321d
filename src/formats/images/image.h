#pragma once
// Pictures in memory, and the files that hold them: JPEG, PNG, WebP and PNM (PPM, PGM), known by
// their first bytes, whatever their names end in. Values are those of Pillow's convert("RGB") or
// convert("L"). Decoding is safe from any thread and trusts no byte of a file: what is wrong with
// one is a UserError that names it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace brrr::io {

/// Rows from the top, pixels from the left, channels side by side.
struct Image {
  int64_t width = 0, height = 0;
  int64_t channels = 3;         // 3: red, green, blue; 1: grey
  std::vector<uint8_t> pixels;  // [height, width, channels]

  size_t row_bytes() const { return static_cast<size_t>(width * channels); }
  const uint8_t* row(int64_t y) const {
    return pixels.data() + static_cast<size_t>(y) * row_bytes();
  }
  uint8_t* row(int64_t y) { return pixels.data() + static_cast<size_t>(y) * row_bytes(); }
  bool operator==(const Image&) const = default;
};

enum class ImageFormat { jpeg, png, webp, pnm };
/// "JPEG", "PNG", "WebP", "PNM".
std::string_view name_of(ImageFormat format);
/// The format that the first bytes (12 are enough) show; false where they show none of these.
bool find_image_format(std::string_view begin, ImageFormat& format);

/// Twice the number of pixels above which Pillow warns of a decompression bomb, where it refuses.
inline constexpr int64_t kMostPixels = 178'956'970;

struct DecodeOptions {
  /// 3, or 1: colours are weighted 0.299, 0.587, 0.114. What a picture says of transparency is left
  /// out, as Pillow does.
  int64_t channels = 3;
  /// Larger pictures are refused before memory is taken for them.
  int64_t most_pixels = kMostPixels;
  /// The EXIF orientation of a JPEG, PNG or WebP is applied, so that the picture stands upright.
  bool upright = true;
};

struct ImageSize {
  int64_t width = 0, height = 0;
  bool operator==(const ImageSize&) const = default;
};

/// Whole pixels of a picture.
struct PixelBox {
  int64_t left = 0, top = 0, width = 0, height = 0;
  bool operator==(const PixelBox&) const = default;
};

/// Decodes the bytes of a file; `name` stands for it in messages. Of an animation it decodes the
/// first picture. Throws UserError: no picture of a known format, too many pixels, truncated or
/// damaged.
Image decode_image(std::span<const std::byte> bytes, const std::string& name,
                   const DecodeOptions& options = {});
/// The part of decode_image()'s result that `part` covers, with the same values. Of a JPEG that
/// stands upright little more than this part is decoded.
Image decode_part(std::span<const std::byte> bytes, const std::string& name, const PixelBox& part,
                  const DecodeOptions& options = {});
/// decode_image() of a file.
Image read_image(const fs::path& path, const DecodeOptions& options = {});
/// The size that decode_image() gives, from the header alone. Throws as decode_image() does.
ImageSize image_size(std::span<const std::byte> bytes, const std::string& name,
                     const DecodeOptions& options = {});

}  // namespace brrr::io
