#include "train/tasks/picture_data.h"

#include <algorithm>

#include "base/errors.h"
#include "base/human.h"
#include "base/memory.h"
#include "data/images/image_batches.h"
#include "data/images/preprocessor.h"
#include "train/options/evaluation_options.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

/// The model that the options describe, for the size of pictures.
models::ModelPtr described_model(const TrainOptions& o) {
  return models::find_architecture(o.architecture)
      .describe({{o.model_settings.begin(), o.model_settings.end()}, 1, 1, 0, std::nullopt});
}

io::PictureForm form_of(const TrainOptions& o, const models::ModelPtr& known,
                        const fs::path& folder) {
  if (!known) return io::usual_form(*described_model(o));
  models::ModelPtr model = known;
  io::PictureForm form = io::picture_form(folder, model);
  // --image-size: pictures of another size, cut from ones that are larger in proportion.
  constexpr int64_t kMostSide = 16384;
  const int64_t asked = o.was_given("image-size")
                            ? parse_integer(o.model_settings.at("image-size"), 1, kMostSide)
                            : form.height;
  if (asked != form.height) {
    form.shorter_side = form.shorter_side * asked / form.height;
    form.height = form.width = asked;
  }
  return form;
}

io::Augment augment_of(const TrainOptions& o) {
  io::Augment a = io::augment_from_name(o.augment);
  if (o.color_jitter > 0) a.brightness = a.contrast = a.saturation = o.color_jitter;
  a.random_operations = o.random_operations;
  a.erase = o.random_erasing;
  if (o.cutout > 0) a.cutout = o.cutout;
  a.mixup = o.mixup;
  return a;
}

bool are_numbered(const std::vector<std::string>& labels) {
  return std::ranges::all_of(labels, [](const std::string& l) { return l.starts_with("LABEL_"); });
}

/// The pictures with the classes of the model that is trained further, where it knows all of theirs
/// by name; a resumed run has no others.
io::ImageData open_for_model(const TrainOptions& o, const models::ModelPtr& known,
                             std::vector<std::string>& notes) {
  const std::string& path = o.data[0];
  if (!known || known->task().labels.empty()) return io::open_images(path);
  const std::vector<std::string>& labels = known->task().labels;
  if (o.wants_resume()) return io::open_images(path, {.classes = labels});
  io::ImageData data = io::open_images(path);
  const bool knows_all = std::ranges::all_of(data.train.classes(), [&](const std::string& c) {
    return std::ranges::find(labels, c) != labels.end();
  });
  if (knows_all) return io::open_images(path, {.classes = labels});
  if (!are_numbered(labels))
    notes.push_back(
        fmt::format("{} has classes that the model lacks: the model gets a new head for {} classes",
                    path, with_commas(std::ssize(data.train.classes()))));
  return data;
}

/// "the classes cat, dog and fish", or their number.
std::string classes_text(const std::vector<std::string>& labels) {
  constexpr size_t kMostNamed = 10;
  return labels.size() <= kMostNamed ? fmt::format("classes {}", listed(labels))
                                     : fmt::format("{} classes", with_commas(std::ssize(labels)));
}

/// What a worker holds of a large picture of the set, by a sample: its file, the decoded picture
/// and a copy between the passes of resizing. Pictures of IDX files are in memory already.
int64_t decoding_bytes(const io::ImageSet& set, int64_t most_pixels) {
  constexpr size_t kSample = 32;
  const size_t step = std::max<size_t>(1, set.size() / kSample);
  int64_t most = 0;
  for (size_t i = 0; i < set.size(); i += step) {
    try {
      const std::string file = set.file_bytes(i);
      if (file.empty()) continue;
      const io::ImageSize size =
          io::image_size(std::as_bytes(std::span(file)), set.name(i), {.most_pixels = most_pixels});
      constexpr int64_t kCopies = 2, kChannels = 3;
      most = std::max(most, std::ssize(file) + kCopies * kChannels * size.width * size.height);
    } catch (const UserError&) {
      // Whoever reads the picture says what is wrong with it.
    }
  }
  return most;
}

TaskPictures::MakeBatches maker(const io::ImageSet& set, const io::ImageBatchOptions& images,
                                io::Sampling mode) {
  return [set, images, mode](io::BatchOptions options) {
    options.mode = mode;
    return std::make_unique<io::ImageBatches>(
        set, io::ImageBatches::batch_options(set, images, options), images);
  };
}

}  // namespace

bool mixes_pictures(const TrainOptions& options) { return options.mixup > 0; }

TaskPictures load_pictures(const TrainOptions& o, const models::ModelPtr& known,
                           const fs::path& folder) {
  if (known) check_architecture(o, *known, folder.string());
  if (known && !known->sees_pictures())
    user_error(
        "--task images: the model in {} is a {}, which reads text; expected one that sees "
        "pictures, such as a ResNet",
        folder.string(), known->architecture().title);
  if (o.data.empty())
    usage_error(
        "--task images needs --data: a folder with a folder of pictures for each class, MNIST's "
        "files, or a list of lines `path<tab>class`");
  TaskPictures pictures;
  io::ImageData data = open_for_model(o, known, pictures.notes);
  pictures.labels = data.train.classes();
  io::ImageSet train = std::move(data.train);
  std::optional<io::ImageSet> val = std::move(data.validation);
  if (val && o.skips_validation()) {
    pictures.notes.push_back(unread_validation(o.data[0]));
    val.reset();
  }
  if (!o.val_data.empty()) {
    val = io::open_images_to_evaluate(o.val_data[0], {.classes = pictures.labels});
  } else if (!val && !o.skips_validation()) {
    io::ImageSplit split = io::hold_out(train, o.val_fraction);
    train = std::move(split.train);
    val = std::move(split.validation);
  }
  const auto take_notes_of = [&](const io::ImageSet& set) {
    pictures.notes.insert(pictures.notes.end(), set.notes.begin(), set.notes.end());
  };
  take_notes_of(train);
  if (val) take_notes_of(*val);
  pictures.description = fmt::format("{}; {} for training and {} for validation; {}", train.what(),
                                     counted(static_cast<int64_t>(train.size()), "picture"),
                                     with_commas(val ? static_cast<int64_t>(val->size()) : 0),
                                     classes_text(pictures.labels));

  io::ImageBatchOptions images;
  images.form = form_of(o, known, folder);
  images.augment = augment_of(o);
  images.most_pixels = o.max_pixels;
  images.skip_bad_images = o.skip_bad_images;
  io::check_form(images.form);
  io::check_augment(images.augment, images.form);
  pictures.image_size = images.form.height;
  pictures.preprocessor = io::preprocessor_of(images.form);
  io::ImageBatchOptions of_training = images;
  if (!o.image_cache.empty()) of_training.cache_bytes = parse_memory(o.image_cache);
  pictures.cached_bytes = of_training.cache_bytes + std::max<int64_t>(1, o.dataloader_num_workers) *
                                                        decoding_bytes(train, o.max_pixels);
  pictures.train = maker(train, of_training, io::Sampling::kEpoch);
  if (val) pictures.val = maker(*val, images, io::Sampling::kSequential);
  return pictures;
}

}  // namespace brrr::train
