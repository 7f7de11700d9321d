#include "data/images/augment.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "data/images/colours.h"
#include "data/images/picture_transform.h"
#include "data/images/randaugment.h"

namespace brrr::io {
namespace {

constexpr int64_t kMostSide = 16384;
constexpr double kMostMixup = 4;

struct AugmentRecipe {
  const char* name;
  Augment augment;
};
const AugmentRecipe kAugmentRecipes[] = {
    {"none", {}},
    {"flip", {.flip = 0.5}},
    {"cifar", {.crop = CropKind::padded, .flip = 0.5}},
    {"imagenet", {.crop = CropKind::random_resized, .flip = 0.5}},
    {"strong",
     {.crop = CropKind::random_resized, .flip = 0.5, .random_operations = 2, .erase = 0.25}},
};

float of_channel(const std::vector<float>& numbers, size_t channel) {
  return numbers.size() == 1 ? numbers[0] : numbers[channel];
}

void check_range(const char* what, double value, double low, double high) {
  if (!(value >= low && value <= high))
    usage_error("{} is {}; expected {} to {}", what, value, low, high);
}

}  // namespace

Augment augment_from_name(std::string_view name) {
  for (const AugmentRecipe& recipe : kAugmentRecipes)
    if (recipe.name == name) return recipe.augment;
  usage_error("unknown augmentation '{}': expected none, flip, cifar, imagenet or strong", name);
}

std::vector<std::string> augment_names() {
  std::vector<std::string> names;
  for (const AugmentRecipe& recipe : kAugmentRecipes) names.emplace_back(recipe.name);
  return names;
}

void check_form(const PictureForm& form) {
  for (const int64_t side : {form.height, form.width})
    if (side < 1 || side > kMostSide)
      usage_error("pictures of {} x {} pixels; expected sides of 1 to {}", form.width, form.height,
                  kMostSide);
  if (form.channels != 1 && form.channels != 3)
    usage_error("pictures of {} channels; expected 1 (grey) or 3 (colours)", form.channels);
  const int64_t longer = std::max(form.height, form.width);
  if (form.shorter_side != 0 && (form.shorter_side < longer || form.shorter_side > kMostSide))
    usage_error(
        "a shorter side of {} pixels before the crop; expected {} to {}, or 0 for the picture's "
        "own size",
        form.shorter_side, longer, kMostSide);
  const auto check_numbers = [&](const char* what, const std::vector<float>& numbers, float least) {
    if (numbers.size() != 1 && std::ssize(numbers) != form.channels)
      usage_error("{} numbers for the {} of pictures with {} channels; expected 1 or {}",
                  numbers.size(), what, form.channels, form.channels);
    for (const float number : numbers)
      if (!std::isfinite(number) || number < least)
        usage_error("the {} of pictures is {}; expected numbers of {} or more", what, number,
                    least);
  };
  check_numbers("mean", form.mean, -1e6f);
  check_numbers("standard deviation", form.std, 1e-6f);
}

void check_augment(const Augment& a, const PictureForm& form) {
  check_range("the least area of a crop", a.least_area, 1e-4, 1);
  check_range("the largest area of a crop", a.most_area, a.least_area, 1);
  check_range("the least ratio of a crop", a.least_ratio, 0.01, 100);
  check_range("the largest ratio of a crop", a.most_ratio, a.least_ratio, 100);
  check_range("the padding of a crop", static_cast<double>(a.pad), 0,
              static_cast<double>(std::min(form.height, form.width)));
  check_range("the probability of a mirrored picture", a.flip, 0, 1);
  check_range("the change of brightness", a.brightness, 0, 10);
  check_range("the change of contrast", a.contrast, 0, 10);
  check_range("the change of saturation", a.saturation, 0, 10);
  check_range("the number of random operations", static_cast<double>(a.random_operations), 0, 14);
  check_range("the strength of random operations", a.strength, 0, kMostStrength);
  check_range("the probability of erasing", a.erase, 0, 1);
  check_range("the least erased area", a.least_erased, 0, 1);
  check_range("the largest erased area", a.most_erased, a.least_erased, 1);
  check_range("the side of the cut-out square", static_cast<double>(a.cutout), 0, kMostSide);
  check_range("mixup", a.mixup, 0, kMostMixup);
}

PictureTransform::PictureTransform(const PictureForm& form, const Augment& augment)
    : form_(form), augment_(augment) {
  check_form(form);
  check_augment(augment, form);
  for (size_t c = 0; c < static_cast<size_t>(form.channels); ++c)
    for (int v = 0; v < 256; ++v)
      normalised_.push_back((static_cast<float>(v) / 255.0f - of_channel(form.mean, c)) /
                            of_channel(form.std, c));
}

size_t PictureTransform::size() const {
  return static_cast<size_t>(form_.channels * form_.height * form_.width);
}

void PictureTransform::write(const Image& image, std::span<float> out) const {
  BRRR_CHECK(image.width == form_.width && image.height == form_.height &&
                 image.channels == form_.channels && out.size() == size(),
             "{} x {} x {}", image.width, image.height, image.channels);
  const size_t pixels = static_cast<size_t>(image.width * image.height);
  const uint8_t* from = image.pixels.data();
  const float* table = normalised_.data();
  if (image.channels == 1) {
    for (size_t i = 0; i < pixels; ++i) out[i] = table[from[i]];
    return;
  }
  float *red = out.data(), *green = red + pixels, *blue = green + pixels;
  for (size_t i = 0; i < pixels; ++i, from += 3) {
    red[i] = table[from[0]];
    green[i] = table[256 + from[1]];
    blue[i] = table[512 + from[2]];
  }
}

/// Resized so that its shorter side has the wanted length, and the middle cut out: the sizes and
/// places are torchvision's Resize and CenterCrop.
Image PictureTransform::fitted(const Image& image, bool mirrored) const {
  const int64_t W = image.width, H = image.height;
  const bool is_exact = W == form_.width && H == form_.height && form_.shorter_side == 0;
  if (is_exact && !mirrored) return image;
  Resizing to;
  to.filter = form_.filter;
  to.mirrored = mirrored;
  if (form_.shorter_side > 0) {
    const int64_t shorter = form_.shorter_side;
    to.width = W <= H ? shorter : shorter * W / H;
    to.height = W <= H ? shorter * H / W : shorter;
  } else if (W * form_.height <= H * form_.width) {
    to.width = form_.width;
    to.height = std::max(form_.height, form_.width * H / W);
  } else {
    to.height = form_.height;
    to.width = std::max(form_.width, form_.height * W / H);
  }
  const auto middle = [](int64_t whole, int64_t part) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(whole - part) / 2));
  };
  to.window = {middle(to.width, form_.width), middle(to.height, form_.height), form_.width,
               form_.height};
  return resize(image, {0, 0, W, H}, to);
}

void PictureTransform::evaluation(const Image& image, std::span<float> out) const {
  write(fitted(image, false), out);
}

PixelBox PictureTransform::training_part(const ImageSize& size, PictureRandom& random) const {
  const int64_t W = size.width, H = size.height;
  if (augment_.crop != CropKind::random_resized) return {0, 0, W, H};
  const double area = static_cast<double>(W) * static_cast<double>(H);
  const double low = std::log(augment_.least_ratio), high = std::log(augment_.most_ratio);
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * random.uniform(augment_.least_area, augment_.most_area);
    const double ratio = std::exp(random.uniform(low, high));
    const int64_t width = std::llround(std::sqrt(wanted * ratio));
    const int64_t height = std::llround(std::sqrt(wanted / ratio));
    if (width < 1 || width > W || height < 1 || height > H) continue;
    const int64_t top = random.integer(0, H - height), left = random.integer(0, W - width);
    return {left, top, width, height};
  }
  // The largest part in the middle whose ratio is allowed.
  const double ratio = static_cast<double>(W) / static_cast<double>(H);
  int64_t width = W, height = H;
  if (ratio < augment_.least_ratio)
    height = std::clamp<int64_t>(std::llround(static_cast<double>(W) / augment_.least_ratio), 1, H);
  else if (ratio > augment_.most_ratio)
    width = std::clamp<int64_t>(std::llround(static_cast<double>(H) * augment_.most_ratio), 1, W);
  return {(W - width) / 2, (H - height) / 2, width, height};
}

namespace {

/// The picture moved by (dx, dy), black where it left, mirrored or not.
Image shifted(const Image& image, int64_t dx, int64_t dy, bool mirrored) {
  Image out{image.width, image.height, image.channels,
            std::vector<uint8_t>(image.pixels.size(), 0)};
  const int64_t first = std::max<int64_t>(0, dx), end = std::min(image.width, image.width + dx);
  for (int64_t y = std::max<int64_t>(0, dy); y < std::min(image.height, image.height + dy); ++y)
    for (int64_t x = first; x < end; ++x) {
      const int64_t to = mirrored ? image.width - 1 - x : x;
      std::copy_n(image.row(y - dy) + (x - dx) * image.channels, image.channels,
                  out.row(y) + to * image.channels);
    }
  return out;
}

}  // namespace

void PictureTransform::training(const Image& source, const PixelBox& part, PictureRandom& random,
                                std::span<float> out) const {
  const Augment& a = augment_;
  const bool mirrored = random.chance(a.flip);
  Image image;
  if (a.crop == CropKind::padded) {
    const int64_t dx = random.integer(-a.pad, a.pad), dy = random.integer(-a.pad, a.pad);
    image = shifted(fitted(source, false), dx, dy, mirrored);
  } else if (a.crop == CropKind::random_resized) {
    image = resize(source, part, {form_.width, form_.height, form_.filter, {}, mirrored});
  } else {
    image = fitted(source, mirrored);
  }
  const auto factor = [&](double change) {
    return static_cast<float>(random.uniform(std::max(0.0, 1 - change), 1 + change));
  };
  if (a.brightness > 0) change_brightness(image, factor(a.brightness));
  if (a.contrast > 0) change_contrast(image, factor(a.contrast));
  if (a.saturation > 0) change_saturation(image, factor(a.saturation));
  apply_random_operations(image, a.random_operations, a.strength, random);
  write(image, out);
  erase(random, out);
}

/// Erased numbers are 0, the mean.
void PictureTransform::erase(PictureRandom& random, std::span<float> out) const {
  const int64_t W = form_.width, H = form_.height;
  const auto clear = [&](int64_t left, int64_t top, int64_t right, int64_t bottom) {
    for (int64_t c = 0; c < form_.channels; ++c)
      for (int64_t y = std::max<int64_t>(0, top); y < std::min(H, bottom); ++y)
        for (int64_t x = std::max<int64_t>(0, left); x < std::min(W, right); ++x)
          out[static_cast<size_t>((c * H + y) * W + x)] = 0;
  };
  if (augment_.erase > 0 && random.chance(augment_.erase)) {
    constexpr int kTries = 10;
    const double ratio_bound = std::log(1 / 0.3);
    for (int i = 0; i < kTries; ++i) {
      const double area =
          static_cast<double>(W * H) * random.uniform(augment_.least_erased, augment_.most_erased);
      const double ratio = std::exp(random.uniform(-ratio_bound, ratio_bound));
      const int64_t height = std::llround(std::sqrt(area * ratio));
      const int64_t width = std::llround(std::sqrt(area / ratio));
      if (width >= W || height >= H) continue;
      const int64_t top = random.integer(0, H - height), left = random.integer(0, W - width);
      clear(left, top, left + width, top + height);
      break;
    }
  }
  if (augment_.cutout > 0) {
    const int64_t left = random.integer(0, W - 1) - augment_.cutout / 2,
                  top = random.integer(0, H - 1) - augment_.cutout / 2;
    clear(left, top, left + augment_.cutout, top + augment_.cutout);
  }
}

void evaluation_pixels(const Image& image, const PictureForm& form, std::span<float> out) {
  PictureTransform(form, {}).evaluation(image, out);
}

}  // namespace brrr::io
