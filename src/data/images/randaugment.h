#pragma once
// RandAugment (Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced
// Search Space", 2020): operations drawn evenly, all of one strength, with torchvision's ranges.

#include "data/images/picture_random.h"
#include "formats/images/image.h"

namespace brrr::io {

inline constexpr double kMostStrength = 30;

/// Applies `operations` of: nothing, shear and shift along each axis, rotation, brightness,
/// saturation, contrast, sharpness, posterize, solarize, autocontrast, equalize. What is turned or
/// shifted in is black.
void apply_random_operations(Image& image, int64_t operations, double strength,
                             PictureRandom& random);

}  // namespace brrr::io
