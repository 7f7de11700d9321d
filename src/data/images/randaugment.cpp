#include "data/images/randaugment.h"

#include <cmath>

#include "data/images/colours.h"

namespace brrr::io {
namespace {

enum class RandomOperation {
  nothing,
  shear_x,
  shear_y,
  shift_x,
  shift_y,
  rotate,
  brightness,
  saturation,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize,
};
constexpr int64_t kRandomOperations = static_cast<int64_t>(RandomOperation::equalize) + 1;

/// `part` of the strongest form: 0 to 1. `sign`: 1 or -1, for those that have two directions.
void apply_operation(Image& image, RandomOperation operation, double part, double sign) {
  const double shear = 0.3 * part * sign, degrees = 30 * part * sign;
  const double shift = 150.0 / 331 * part;  // of the width or height
  const auto factor = static_cast<float>(1 + 0.9 * part * sign);
  switch (operation) {
    case RandomOperation::nothing:
      return;
    case RandomOperation::shear_x:
      image = transform(image, {.b = shear});
      return;
    case RandomOperation::shear_y:
      image = transform(image, {.d = shear});
      return;
    case RandomOperation::shift_x:
      image = transform(image, {.c = sign * std::floor(shift * static_cast<double>(image.width))});
      return;
    case RandomOperation::shift_y:
      image = transform(image, {.f = sign * std::floor(shift * static_cast<double>(image.height))});
      return;
    case RandomOperation::rotate:
      image = transform(image, rotation(image, degrees));
      return;
    case RandomOperation::brightness:
      change_brightness(image, factor);
      return;
    case RandomOperation::saturation:
      change_saturation(image, factor);
      return;
    case RandomOperation::contrast:
      change_contrast(image, factor);
      return;
    case RandomOperation::sharpness:
      change_sharpness(image, factor);
      return;
    case RandomOperation::posterize:
      posterize(image, 8 - static_cast<int>(std::lround(4 * part)));
      return;
    case RandomOperation::solarize:
      solarize(image, static_cast<int>(std::lround(255 * (1 - part))));
      return;
    case RandomOperation::autocontrast:
      stretch_contrast(image);
      return;
    case RandomOperation::equalize:
      equalize(image);
  }
}

}  // namespace

void apply_random_operations(Image& image, int64_t operations, double strength,
                             PictureRandom& random) {
  for (int64_t i = 0; i < operations; ++i) {
    const auto operation = static_cast<RandomOperation>(random.integer(0, kRandomOperations - 1));
    const double sign = random.chance(0.5) ? -1 : 1;
    apply_operation(image, operation, strength / kMostStrength, sign);
  }
}

}  // namespace brrr::io
