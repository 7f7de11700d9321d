#pragma once
// Changes of a picture's colours, with the values of Pillow and torchvision. Pictures have 1 or 3
// channels.

#include "formats/images/image.h"

namespace brrr::io {

/// A mixture of black (0) and the picture (1), or beyond (ImageEnhance.Brightness).
void change_brightness(Image& image, float factor);
/// The same with a uniform grey, the mean of the picture's greys, instead of black.
void change_contrast(Image& image, float factor);
/// The same with the greys of the picture instead of black; a grey picture is unchanged.
void change_saturation(Image& image, float factor);
/// The same with a blurred picture instead of black; pixels at the border are unchanged.
void change_sharpness(Image& image, float factor);

/// Each channel stretched to 0 to 255.
void stretch_contrast(Image& image);
/// Each channel's histogram made even.
void equalize(Image& image);
/// Keeps the upper `bits` of each value, 1 to 8.
void posterize(Image& image, int bits);
/// Inverts values of at least `threshold`.
void solarize(Image& image, int threshold);

/// A map from pixels of the result to pixels of the source: x = a x' + b y' + c, y = d x' + e y' +
/// f, for the middles of pixels.
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};
/// Nearest pixels; black where there are none.
Image transform(const Image& image, const AffineMap& map);
/// A turn around the middle by degrees, against the clock.
AffineMap rotation(const Image& image, double degrees);

}  // namespace brrr::io
