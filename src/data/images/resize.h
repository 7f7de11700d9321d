#pragma once
// Resizing with antialiasing, as Pillow does it: a separable filter whose support grows with the
// reduction, weights rounded to 22 bits, two passes with u8 between them. Values are those of
// Pillow 13, and the same for every instruction set.

#include <cstdint>
#include <string_view>

#include "formats/images/image.h"

namespace brrr::io {

enum class ResizeFilter { nearest, bilinear, bicubic };
/// "nearest", "bilinear", "bicubic". Throws UserError (usage) for another name.
ResizeFilter resize_filter_from_name(std::string_view name);

struct Resizing {
  int64_t width = 0, height = 0;  // that the source gets
  ResizeFilter filter = ResizeFilter::bilinear;
  /// The part of the result that is computed. Without a width: all.
  PixelBox window = {};
  bool mirrored = false;  // the columns of the result, or of its window, are reversed
};

/// Resizes the part `box` of `image`, beyond which the filter reads nothing.
Image resize(const Image& image, const PixelBox& box, const Resizing& to);
/// Resizes all of it.
Image resize(const Image& image, int64_t width, int64_t height, ResizeFilter filter);

}  // namespace brrr::io
