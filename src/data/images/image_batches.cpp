#include "data/images/image_batches.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/sha256.h"
#include "base/tell.h"
#include "data/images/picture_cache.h"
#include "data/permutation.h"

namespace brrr::io {
namespace {

/// A weight of two pictures from Beta(alpha, alpha) (Joehnk, "Erzeugung von betaverteilten und
/// gammaverteilten Zufallszahlen", 1964).
float draw_mix(double alpha, RngKey key, uint64_t pair) {
  constexpr uint32_t kMixStream = 0x3170000u;
  constexpr int kBitsOfDraws = 16, kTries = 1000;
  RngStream random(key, kMixStream, pair << kBitsOfDraws);
  for (int i = 0; i < kTries; ++i) {
    const double x = std::pow(static_cast<double>(random.next_uniform()), 1 / alpha);
    const double y = std::pow(static_cast<double>(random.next_uniform()), 1 / alpha);
    if (x + y > 0 && x + y <= 1) return static_cast<float>(x / (x + y));
  }
  return 0.5f;
}

void mix_into(std::span<float> first, std::span<const float> second, float weight) {
  for (size_t i = 0; i < first.size(); ++i) first[i] = weight * first[i] + (1 - weight) * second[i];
}

/// Both pictures become mixtures of the two.
void mix_both(std::span<float> first, std::span<float> second, float weight) {
  for (size_t i = 0; i < first.size(); ++i) {
    const float a = first[i], b = second[i];
    first[i] = weight * a + (1 - weight) * b;
    second[i] = weight * b + (1 - weight) * a;
  }
}

}  // namespace

ImageBatches::ImageBatches(ImageSet set, const BatchOptions& options,
                           const ImageBatchOptions& images)
    : set_(std::move(set)),
      options_(options),
      images_(images),
      transform_(images.form, images.augment) {
  check_options(options);
  if (options.mode != Sampling::kEpoch && options.mode != Sampling::kSequential)
    usage_error("sampling '{}' does not work with pictures; expected epoch or sequential",
                name_of(options.mode));
  BRRR_CHECK(options.context == static_cast<int64_t>(transform_.size()), "context {}",
             options.context);
  BRRR_CHECK(options.vocab >= std::ssize(set_.classes()), "{} classes", options.vocab);
  BRRR_CHECK(set_.size() <= uint64_t{1} << 40, "{} pictures", set_.size());
  if (images.most_pixels < 1)
    usage_error("a limit of {} pixels; expected at least 1", images.most_pixels);
  if (images.skip_bad_images < 0)
    usage_error("{} bad images to skip; expected 0 or more", images.skip_bad_images);
  if (images.cache_bytes > 0) cache_ = std::make_unique<PictureCache>(images.cache_bytes);
}

ImageBatches::~ImageBatches() = default;

BatchOptions ImageBatches::batch_options(const ImageSet& set, const ImageBatchOptions& images,
                                         BatchOptions options) {
  const PictureForm& form = images.form;
  check_form(form);
  options.context = form.channels * form.height * form.width;
  options.vocab = std::ssize(set.classes());
  return options;
}

int64_t ImageBatches::batches_per_pass() const { return ceil_div(tokens(), options_.batch); }

int64_t ImageBatches::epoch_of(int64_t index) const {
  return is_training() ? options_.row(index, 0) / tokens() : index / batches_per_pass();
}

ImageBatches::Row ImageBatches::row(int64_t sequence) const {
  Row row;
  if (is_training()) {
    const int64_t n = tokens();
    row.epoch = static_cast<uint32_t>(sequence / n);
    const Permutation order(static_cast<uint64_t>(n), {options_.seed, row.epoch});
    row.item = static_cast<size_t>(order(static_cast<uint64_t>(sequence % n)));
    return row;
  }
  // Each pass begins with a new batch.
  const int64_t rows_per_pass = batches_per_pass() * options_.batch;
  const int64_t number = sequence % rows_per_pass;
  row.is_empty = number >= tokens();
  row.item = row.is_empty ? 0 : static_cast<size_t>(number);
  return row;
}

std::vector<size_t> ImageBatches::rows(int64_t index) const {
  std::vector<size_t> list;
  for (int64_t b = 0; b < options_.batch; ++b) {
    const Row row = this->row(index * options_.batch + b);
    if (!row.is_empty) list.push_back(row.item);
  }
  return list;
}

void ImageBatches::fill_item(size_t item, uint32_t epoch, std::span<float> out) const {
  const DecodeOptions decode{images_.form.channels, images_.most_pixels};
  std::shared_ptr<const Image> whole = cache_ ? cache_->find(item) : nullptr;
  PictureRandom random({options_.seed, epoch}, item);
  if (!whole && is_training() && images_.augment.crop == CropKind::random_resized) {
    const std::string bytes = set_.file_bytes(item);
    const std::span<const std::byte> view = std::as_bytes(std::span(bytes));
    if (!bytes.empty()) {
      const std::string name = set_.name(item);
      const ImageSize size = image_size(view, name, decode);
      if (!cache_ || !cache_->has_room(size.width * size.height * decode.channels)) {
        const PixelBox part = transform_.training_part(size, random);
        const Image decoded = decode_part(view, name, part, decode);
        transform_.training(decoded, {0, 0, part.width, part.height}, random, out);
        return;
      }
      whole = std::make_shared<const Image>(decode_image(view, name, decode));
    }
  }
  if (!whole) whole = std::make_shared<const Image>(set_.read(item, decode));
  if (cache_) cache_->keep(item, whole);
  if (!is_training()) {
    transform_.evaluation(*whole, out);
    return;
  }
  const PixelBox part = transform_.training_part({whole->width, whole->height}, random);
  transform_.training(*whole, part, random, out);
}

bool ImageBatches::note_bad(size_t item, const std::string& reason) const {
  const std::lock_guard lock(mutex_);
  if (!skipped_.contains(item)) {
    if (std::ssize(skipped_) >= images_.skip_bad_images) return false;
    skipped_.emplace(item, reason);
    if (is_training())
      tell("note: left out, {} of at most {}: {}\n", skipped_.size(), images_.skip_bad_images,
           reason);
  }
  return true;
}

int32_t ImageBatches::fill_row(const Row& row, std::span<float> out) const {
  if (row.is_empty) {
    std::ranges::fill(out, 0.0f);
    return kIgnoreId;
  }
  for (size_t tries = 0; tries < set_.size(); ++tries) {
    const size_t item = (row.item + tries) % set_.size();
    try {
      fill_item(item, row.epoch, out);
      return set_.label(item);
    } catch (const UserError& error) {
      if (!note_bad(item, error.what()))
        throw UserError(too_many_bad_images(error.what(), images_.skip_bad_images));
    }
    if (!is_training()) break;
  }
  if (is_training()) user_error("{}: none of its pictures can be read", set_.what());
  std::ranges::fill(out, 0.0f);
  return kIgnoreId;
}

void ImageBatches::fill(int64_t index, Batch& batch) const {
  const auto B = static_cast<size_t>(options_.batch);
  const size_t size = transform_.size();
  const auto pixels = batch.make<float>("pixels", B * size, 0);
  const auto targets = batch.make<int32_t>("targets", B, kIgnoreId);
  const auto picture = [&](size_t b) { return pixels.subspan(b * size, size); };
  for (size_t b = 0; b < B; ++b)
    targets[b] = fill_row(row(index * options_.batch + static_cast<int64_t>(b)), picture(b));
  batch.count = std::ssize(targets) - std::ranges::count(targets, kIgnoreId);
  if (images_.augment.mixup <= 0 || !is_training()) return;
  // Neighbours of the sequence of rows are pairs, however it is cut into batches.
  const auto targets2 = batch.make<int32_t>("targets2", B, kIgnoreId);
  const auto mix = batch.make<float>("mix", B, 1);
  std::vector<float> outside;
  for (size_t b = 0; b < B; ++b) {
    const int64_t sequence = index * options_.batch + static_cast<int64_t>(b);
    const uint64_t pair = static_cast<uint64_t>(sequence / 2);
    const float weight = draw_mix(images_.augment.mixup, {options_.seed, 0}, pair);
    mix[b] = weight;
    if (sequence % 2 == 0 && b + 1 < B) {
      targets2[b] = targets[b + 1];
      targets2[b + 1] = targets[b];
      mix[b + 1] = weight;
      mix_both(picture(b), picture(b + 1), weight);
      ++b;
      continue;
    }
    outside.resize(size);
    targets2[b] = fill_row(row(sequence ^ 1), outside);
    mix_into(picture(b), outside, weight);
  }
}

std::string ImageBatches::fingerprint() const {
  const PictureForm& f = images_.form;
  const Augment& a = images_.augment;
  Sha256 hash;
  hash.update(set_.fingerprint());
  hash.update(fmt::format("form {} {} {} {} {}", f.height, f.width, f.channels, f.shorter_side,
                          static_cast<int>(f.filter)));
  hash.update(fmt::format("normal {} {}", fmt::join(f.mean, " "), fmt::join(f.std, " ")));
  if (is_training()) {
    hash.update(fmt::format("crop {} {} {} {} {} {} {}", static_cast<int>(a.crop), a.least_area,
                            a.most_area, a.least_ratio, a.most_ratio, a.pad, a.flip));
    hash.update(fmt::format("colours {} {} {} {} {}", a.brightness, a.contrast, a.saturation,
                            a.random_operations, a.strength));
    hash.update(fmt::format("erase {} {} {} {} mixup {}", a.erase, a.least_erased, a.most_erased,
                            a.cutout, a.mixup));
  }
  return hash.finish_hex();
}

std::vector<std::string> ImageBatches::skipped() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> reasons;
  for (const auto& [item, reason] : skipped_) reasons.push_back(reason);
  return reasons;
}

std::map<size_t, std::string> ImageBatches::skipped_items() const {
  const std::lock_guard lock(mutex_);
  return skipped_;
}

std::string too_many_bad_images(const std::string& fault, int64_t most) {
  if (most == 0) return fault + "; with --skip-bad-images N up to N of them are left out";
  return fmt::format("{}; {} cannot be read, more than the {} that may be skipped", fault,
                     counted(most + 1, "picture"), most);
}

}  // namespace brrr::io
