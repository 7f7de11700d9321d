#pragma once
// The decoders of single formats, for image.cpp.

#include <span>
#include <string>

#include "base/errors.h"
#include "formats/images/image.h"

namespace brrr::io {

/// What a decoder is asked for.
struct DecodeRequest {
  std::span<const std::byte> bytes;
  const std::string& name;  // of the file, for messages
  int64_t most_pixels = kMostPixels;
  bool header_only = false;  // the size and the orientation, no pixels
  /// The part that is needed, in pixels of the file before it is turned upright; a decoder may
  /// decode more. Null: all.
  const PixelBox* part = nullptr;
};

struct DecodedImage {
  /// As the file has it: 3 channels, or 1 for grey; `pixels` of `part` alone.
  Image image;
  int64_t file_width = 0, file_height = 0;  // of the whole picture
  int orientation = 1;                      // of EXIF, 1 to 8
};

DecodedImage decode_jpeg(const DecodeRequest& request);
DecodedImage decode_png(const DecodeRequest& request);
DecodedImage decode_webp(const DecodeRequest& request);
DecodedImage decode_pnm(const DecodeRequest& request);

/// Throws UserError where a header's size is 0 or beyond the limit.
void check_image_size(const DecodeRequest& request, uint64_t width, uint64_t height);

/// The orientation that a block of EXIF says, which begins at its TIFF header or at "Exif\0\0"; 1
/// where it says none.
int exif_orientation(std::span<const std::byte> exif);

[[noreturn]] inline void truncated_image(const DecodeRequest& request, ImageFormat format) {
  user_error("{}: the {} file is truncated", request.name, name_of(format));
}
[[noreturn]] inline void damaged_image(const DecodeRequest& request, ImageFormat format,
                                       std::string_view reason) {
  user_error("{}: the {} file is damaged: {}", request.name, name_of(format), reason);
}

}  // namespace brrr::io
