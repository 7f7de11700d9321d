#pragma once
// From a decoded picture to the numbers that a model takes. Immutable; safe from any thread.

#include <vector>

#include "data/images/augment.h"
#include "data/images/picture_random.h"

namespace brrr::io {

class PictureTransform {
 public:
  /// Throws UserError (usage) as check_form() and check_augment() do.
  PictureTransform(const PictureForm& form, const Augment& augment);

  /// Numbers of a picture: C * H * W.
  size_t size() const;
  /// As evaluation sees `image`: f32 [C, H, W].
  void evaluation(const Image& image, std::span<float> out) const;

  /// Draws the part of a picture of this size that training() is to get: all of it, unless crops
  /// are random.
  PixelBox training_part(const ImageSize& size, PictureRandom& random) const;
  /// As training sees this part of `image`: f32 [C, H, W]. `random` goes on where training_part()
  /// left it. Only random crops have parts.
  void training(const Image& image, const PixelBox& part, PictureRandom& random,
                std::span<float> out) const;

 private:
  Image fitted(const Image& image, bool mirrored) const;
  void write(const Image& image, std::span<float> out) const;
  void erase(PictureRandom& random, std::span<float> out) const;

  PictureForm form_;
  Augment augment_;
  std::vector<float> normalised_;  // [C, 256]: what each value becomes
};

}  // namespace brrr::io
