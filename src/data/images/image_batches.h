#pragma once
// Batches of pictures with classes, decoded and augmented by whoever calls fill(): the loader's
// workers. A batch is a pure function of its index. Training (Sampling::kEpoch): every picture once
// per epoch in another random order, batches run on over the end of an epoch, so that each is full.
// Evaluation (Sampling::kSequential): in order, without augmentation; the last batches of a pass
// are padded with black pictures that are not scored.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "data/images/augment.h"
#include "data/images/image_set.h"
#include "data/images/picture_transform.h"

namespace brrr::io {

class PictureCache;

struct ImageBatchOptions {
  PictureForm form = {};
  Augment augment = {};  // for kEpoch only
  int64_t most_pixels = kMostPixels;
  /// Pictures that cannot be read are left out, up to this many: in training the next one of the
  /// set stands in, in evaluation the row is not scored. One more is an error.
  int64_t skip_bad_images = 0;
  /// Decoded pictures are kept up to this many bytes; results do not depend on it.
  int64_t cache_bytes = 0;
};

/// Returns the error for an unreadable picture (`fault`) beyond the `most` that may be left out.
std::string too_many_bad_images(const std::string& fault, int64_t most);

/// Batches hold, in this order:
///   pixels    f32 [B, C, H, W], normalised
///   targets   i32 [B]: the class; kIgnoreId for a row that is not scored
///   targets2  i32 [B], only with mixup: the class of the second picture
///   mix       f32 [B], only with mixup: the weight of the first picture and of its target, in
///             [0, 1]; the second has 1 - mix. Neighbours in the order of an epoch are mixed with
///             each other, however rows are cut into batches.
/// count: scored rows.
class ImageBatches final : public BatchSource {
 public:
  /// options.mode is kEpoch or kSequential; options.context is C * H * W and options.vocab the
  /// number of classes, as `batch_options` makes them. Throws UserError for another mode, and as
  /// check_form() and check_augment() do.
  ImageBatches(ImageSet set, const BatchOptions& options, const ImageBatchOptions& images);
  ~ImageBatches() override;

  /// Sets what of BatchOptions follows from the pictures: context and vocab.
  static BatchOptions batch_options(const ImageSet& set, const ImageBatchOptions& images,
                                    BatchOptions options);

  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override;
  int64_t batches_per_pass() const override;
  int64_t bytes_per_position() const override { return sizeof(float); }
  /// Counts pictures, not tokens.
  int64_t tokens() const override { return static_cast<int64_t>(set_.size()); }
  /// Over the set, the form and the augmentation.
  std::string fingerprint() const override;

  const ImageSet& set() const { return set_; }
  /// The items of the set that batch `index` holds, in order; fewer than B where a pass ends.
  std::vector<size_t> rows(int64_t index) const;
  /// What was wrong with each picture that was left out so far, in order of their numbers.
  std::vector<std::string> skipped() const;
  /// Returns what was wrong with the pictures that were left out so far, by their index in the set.
  std::map<size_t, std::string> skipped_items() const;

 private:
  struct Row {
    size_t item = 0;  // of the set
    uint32_t epoch = 0;
    bool is_empty = false;  // behind the end of a pass
  };
  bool is_training() const { return options_.mode == Sampling::kEpoch; }
  /// Row `sequence` of the endless sequence of this rank's rows.
  Row row(int64_t sequence) const;
  /// Writes the picture, or the one that stands in for it, and returns its target.
  int32_t fill_row(const Row& row, std::span<float> out) const;
  void fill_item(size_t item, uint32_t epoch, std::span<float> out) const;
  /// Remembers a picture that cannot be read; false where that is one too many.
  bool note_bad(size_t item, const std::string& reason) const;

  ImageSet set_;
  BatchOptions options_;
  ImageBatchOptions images_;
  PictureTransform transform_;
  std::unique_ptr<PictureCache> cache_;  // null: nothing is kept
  mutable std::mutex mutex_;
  mutable std::map<size_t, std::string> skipped_;  // item, reason
};

}  // namespace brrr::io
