#include "data/images/image_set.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/sha256.h"
#include "data/hold_out.h"
#include "data/images/picture_stores.h"

namespace brrr::io {

ImageSet::ImageSet(std::string what, std::vector<std::string> classes, std::vector<Item> items,
                   std::shared_ptr<const PictureStore> store)
    : what_(std::move(what)),
      classes_(std::move(classes)),
      items_(std::move(items)),
      store_(std::move(store)) {
  if (items_.empty()) user_error("{} holds no pictures", what_);
  for (const Item& item : items_)
    BRRR_CHECK(item.label >= 0 && item.label < std::ssize(classes_), "label {}", item.label);
}

ImageSet ImageSet::with_items(std::vector<Item> items, std::string what) const {
  return {std::move(what), classes_, std::move(items), store_};
}

std::vector<int64_t> ImageSet::counts() const {
  std::vector<int64_t> counts(classes_.size(), 0);
  for (const Item& item : items_) ++counts[static_cast<size_t>(item.label)];
  return counts;
}

std::string ImageSet::fingerprint() const {
  Sha256 hash;
  const auto add = [&](std::string_view text) {
    const uint64_t size = text.size();
    hash.update(&size, sizeof size);
    hash.update(text);
  };
  add("images");
  for (const std::string& name : classes_) add(name);
  for (const Item& item : items_) {
    hash.update(&item.label, sizeof item.label);
    add(store_->identity(item.picture));
  }
  return hash.finish_hex();
}

ImageSplit hold_out(const ImageSet& set, double fraction) {
  if (!(fraction > 0 && fraction <= 0.5))
    usage_error("a part of {} of the pictures for validation; expected above 0 and at most 0.5",
                fraction);
  const HeldOutRows held_out(fraction);
  const std::vector<int64_t> counts = set.counts();
  std::vector<ImageSet::Item> train, validation;
  std::vector<int64_t> seen(counts.size(), 0);
  for (const ImageSet::Item& item : set.items()) {
    const auto label = static_cast<size_t>(item.label);
    const int64_t number = ++seen[label], count = counts[label];
    const bool is_last_of_few = count < held_out.every() && count > 1 && number == count;
    (held_out.contains(number) || is_last_of_few ? validation : train).push_back(item);
  }
  if (validation.empty())
    user_error(
        "{}: no class has 2 pictures, so none can be held out for validation; add more, or name "
        "pictures for validation with --val-data",
        set.what());
  ImageSplit split{set.with_items(std::move(train), set.what()),
                   set.with_items(std::move(validation), set.what() + " (held out)")};
  split.train.notes = set.notes;
  return split;
}

namespace {

/// The two sets that a folder's folders may be, by their names.
constexpr const char* kTrainFolder = "train";
constexpr const char* kValidationFolders[] = {"val", "valid", "validation", "test"};

std::optional<fs::path> validation_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder / kTrainFolder, error)) return std::nullopt;
  for (const char* name : kValidationFolders)
    if (fs::is_directory(folder / name, error)) return folder / name;
  return std::nullopt;
}

}  // namespace

bool holds_images(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return is_idx_file(path) || is_picture_list(path);
  if (idx_pictures_of(path, IdxPart::train) || idx_pictures_of(path, IdxPart::test)) return true;
  const auto validation = validation_folder(path);
  return has_class_folders(validation ? path / kTrainFolder : path);
}

ImageData open_images(const fs::path& path, const ImageSetOptions& options) {
  std::error_code error;
  if (!fs::exists(path, error)) user_error("{}: no such file or folder", path.string());
  if (!fs::is_directory(path, error))
    return {is_idx_file(path) ? open_idx_pictures(path, options) : open_picture_list(path, options),
            std::nullopt};
  const auto like = [](const ImageSet& train) { return ImageSetOptions{train.classes()}; };
  const auto idx = idx_pictures_of(path, IdxPart::train),
             idx_test = idx_pictures_of(path, IdxPart::test);
  if (idx || idx_test) {
    ImageData data{open_idx_pictures(idx ? *idx : *idx_test, options), std::nullopt};
    if (idx && idx_test) data.validation = open_idx_pictures(*idx_test, like(data.train));
    return data;
  }
  const auto validation = validation_folder(path);
  if (!validation) return {open_class_folders(path, options), std::nullopt};
  ImageData data{open_class_folders(path / kTrainFolder, options), std::nullopt};
  data.validation = open_class_folders(*validation, like(data.train));
  return data;
}

ImageSet open_images_to_evaluate(const fs::path& path, const ImageSetOptions& options) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (const auto test = idx_pictures_of(path, IdxPart::test))
      return open_idx_pictures(*test, options);
    if (const auto validation = validation_folder(path))
      return open_class_folders(*validation, options);
  }
  return open_images(path, options).train;
}

}  // namespace brrr::io
