#pragma once
// What is done to a picture between its file and the model: in training by chance, in evaluation
// always the same. The random numbers of a picture are a pure function of (seed, epoch, number of
// the picture), so that it looks the same for any number of workers, batches and restarts.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/resize.h"
#include "formats/images/image.h"

namespace brrr::io {

/// How a training picture gets the model's size.
enum class CropKind {
  /// Resized so that it covers the size, and the middle is cut out: as in evaluation.
  center,
  /// A random part with a random ratio of its sides, resized (Inception, ResNet on ImageNet).
  random_resized,
  /// Resized to the size, then shifted by up to `pad` pixels each way; zeros enter (CIFAR).
  padded,
};

struct Augment {
  CropKind crop = CropKind::center;
  double least_area = 0.08, most_area = 1;             // random_resized: part of the picture
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;  // random_resized: width / height
  int64_t pad = 4;                                     // padded: pixels on each side
  double flip = 0;                                     // probability of a mirrored picture
  /// Factors are uniform in [max(0, 1 - x), 1 + x]; 0: unchanged (torchvision's ColorJitter, in the
  /// order brightness, contrast, saturation).
  double brightness = 0, contrast = 0, saturation = 0;
  /// RandAugment: this many operations, each drawn from those of randaugment.h, of this strength.
  int64_t random_operations = 0;
  double strength = 9;  // of 30
  /// Probability that a rectangle is erased to the mean; its area is uniform in the range, its
  /// ratio log-uniform in [0.3, 3.3] (random erasing).
  double erase = 0, least_erased = 0.02, most_erased = 0.33;
  /// The side of a square that is erased to the mean around a random pixel; 0: none (cutout).
  int64_t cutout = 0;
  /// Two pictures are mixed with a weight from Beta(mixup, mixup); 0: none.
  double mixup = 0;
};

/// Recipes: "none"; "flip" (mirrored at random); "cifar" (padded crop and flip); "imagenet" (random
/// resized crop and flip); "strong" (imagenet, two operations of RandAugment, erasing of 1/4).
/// Throws UserError (usage) for another name.
Augment augment_from_name(std::string_view name);
std::vector<std::string> augment_names();

/// What the model takes.
struct PictureForm {
  int64_t height = 224, width = 224;
  int64_t channels = 3;  // 3 or 1
  /// Evaluation: the picture is resized so that its shorter side has this many pixels before the
  /// middle is cut out. 0: so that it covers the size exactly. torchvision: 256 for 224.
  int64_t shorter_side = 0;
  ResizeFilter filter = ResizeFilter::bilinear;
  /// Mean and deviation of each channel, where white is 1: a pixel becomes (p / 255 - mean) / std.
  /// One number stands for all channels.
  std::vector<float> mean = {0.485f, 0.456f, 0.406f}, std = {0.229f, 0.224f, 0.225f};
};
/// Throws UserError (usage) for sizes below 1 or beyond 16384, other channels than 1 or 3, numbers
/// of means that do not fit, and deviations that are not positive.
void check_form(const PictureForm& form);
/// Throws UserError (usage), naming the setting, for one that is out of its range.
void check_augment(const Augment& augment, const PictureForm& form);

/// A decoded picture (form.channels) as evaluation sees it: f32 [C, H, W].
void evaluation_pixels(const Image& image, const PictureForm& form, std::span<float> out);

}  // namespace brrr::io
