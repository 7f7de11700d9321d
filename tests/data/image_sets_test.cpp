// Sets of pictures from folders, lists and IDX files, their batches, and what is refused.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/errors.h"
#include "data/images/idx_files.h"
#include "data/images/image_batches.h"
#include "data/images/image_report.h"
#include "data/images/picture_cache.h"
#include "data/loader.h"
#include "support/models_folder.h"
#include "support/packed.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using namespace io;

/// A PPM file of one colour, 6 x 4.
std::string ppm_of(int colour) {
  std::string text = "P6 6 4 255\n";
  text.append(6 * 4 * 3, static_cast<char>(colour));
  return text;
}

void put_file(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  write_file_atomically(path, bytes);
}

/// Classes cat (0, 2, 4, ...) and dog (1, 3, ...), of so many pictures each; the colour of a
/// picture is its number.
void put_classes(const fs::path& folder, int pictures) {
  for (int i = 0; i < pictures; ++i) {
    put_file(folder / "cat" / fmt::format("{:03}.ppm", i), ppm_of(2 * i));
    put_file(folder / "dog" / fmt::format("{:03}.ppm", i), ppm_of(2 * i + 1));
  }
}

std::string idx_of(const std::vector<uint32_t>& sizes, std::string_view values) {
  std::string bytes("\0\0\x08", 3);
  bytes += static_cast<char>(sizes.size());
  for (const uint32_t size : sizes)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift & 0xff);
  return bytes + std::string(values);
}

TEST(ImageSets, AFolderPerClassIsSorted) {
  const TempFolder folder;
  put_classes(folder.path(), 3);
  put_file(folder / "cat/deep/x.PNG", "not opened here");
  put_file(folder / "cat/.hidden.jpg", "");
  put_file(folder / "dog/readme.txt", "");
  put_file(folder / "dog/000.jpg", ppm_of(9));
  fs::create_directories(folder / "ant");
  const ImageSet set = open_images(folder.path()).train;
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"ant", "cat", "dog"}));
  EXPECT_EQ(set.counts(), (std::vector<int64_t>{0, 4, 4}));
  EXPECT_EQ(set.name(0), (folder / "cat/000.ppm").string());
  EXPECT_EQ(set.name(3), (folder / "cat/deep/x.PNG").string());
  EXPECT_EQ(set.name(4), (folder / "dog/000.jpg").string());
  EXPECT_EQ(set.label(3), 1);
  EXPECT_EQ(set.read(1).pixels[0], 2);
  ASSERT_EQ(set.notes.size(), 3u);
  EXPECT_NE(set.notes[0].find("the class 'ant' has no pictures"), std::string::npos)
      << set.notes[0];
  EXPECT_NE(set.notes[1].find("1 file left out"), std::string::npos) << set.notes[1];
  EXPECT_NE(set.notes[2].find("1 picture has the name of another one but for the ending "
                              "(dog/000.jpg and dog/000.ppm)"),
            std::string::npos)
      << set.notes[2];
  EXPECT_TRUE(holds_images(folder.path()));
}

TEST(ImageSets, ACircleOfLinksEnds) {
  const TempFolder folder;
  put_classes(folder.path(), 1);
  fs::create_directory_symlink(folder.path(), folder / "cat/up");
  EXPECT_EQ(open_images(folder.path()).train.size(), 2u);
}

TEST(ImageSets, LinksOutOfTheFolderAreRefused) {
  const TempFolder folder, outside;
  put_classes(folder.path(), 1);
  put_file(outside / "x.ppm", ppm_of(1));
  fs::create_symlink(outside / "x.ppm", folder / "cat/x.ppm");
  EXPECT_USER_ERROR(open_images(folder.path()), "cat/x.ppm is a link out of ");
  fs::remove(folder / "cat/x.ppm");
  fs::create_directory_symlink(outside.path(), folder / "emu");
  EXPECT_USER_ERROR(open_images(folder.path()), "emu is a link out of ");
}

TEST(ImageSets, TrainAndValidationFoldersAreTwoSets) {
  const TempFolder folder;
  put_classes(folder / "train", 3);
  put_classes(folder / "val", 1);
  const ImageData data = open_images(folder.path());
  EXPECT_EQ(data.train.size(), 6u);
  ASSERT_TRUE(data.validation);
  EXPECT_EQ(data.validation->size(), 2u);
  EXPECT_EQ(open_images_to_evaluate(folder.path()).size(), 2u);
  EXPECT_TRUE(holds_images(folder.path()));
  put_file(folder / "val/emu/0.ppm", ppm_of(1));
  EXPECT_USER_ERROR(open_images(folder.path()),
                    "'emu' is not among the 2 classes, which begin with 'cat'");
}

TEST(ImageSets, FoldersThatAreNoneAreRefused) {
  const TempFolder folder;
  const fs::path at = folder / "data";
  EXPECT_USER_ERROR(open_images(at), "no such file or folder");
  fs::create_directory(at);
  EXPECT_USER_ERROR(open_images(at), "holds no folders; expected a folder of pictures");
  fs::create_directory(at / "cat");
  EXPECT_USER_ERROR(open_images(at), "its folders hold no pictures (.jpg");
  EXPECT_FALSE(holds_images(at));
  put_file(at / "cat/0.ppm", ppm_of(1));
  EXPECT_USER_ERROR(open_images(at), "has the class 'cat' alone; expected two classes or more");
  put_file(at / "dog/0.ppm", ppm_of(1));
  EXPECT_EQ(open_images(at).train.size(), 2u);
  EXPECT_USER_ERROR(open_images(at, {{"cat", "emu"}}), "'dog' is not among the 2 classes");
  EXPECT_EQ(open_images(at, {{"emu", "dog", "cat"}}).train.label(0), 2);
  EXPECT_USER_ERROR(hold_out(open_images(at).train, 0.1),
                    "no class has 2 pictures, so none can be held out for validation; add more");
  EXPECT_USER_ERROR(hold_out(open_images(at).train, 0.7), "above 0 and at most 0.5");
}

TEST(ImageSets, EveryKthOfEachClassIsHeldOut) {
  const TempFolder folder;
  put_classes(folder.path(), 10);
  const ImageSplit split = hold_out(open_images(folder.path()).train, 0.2);
  EXPECT_EQ(split.train.counts(), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(split.validation.counts(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(split.validation.name(0), (folder / "cat/004.ppm").string());
  EXPECT_EQ(split.validation.name(1), (folder / "cat/009.ppm").string());
}

// A class with fewer than k pictures gives one, if it keeps one.
TEST(ImageSets, SmallClassesGiveOneForValidation) {
  const TempFolder folder;
  put_classes(folder.path(), 3);
  put_file(folder / "emu/000.ppm", ppm_of(1));
  const ImageSplit split = hold_out(open_images(folder.path()).train, 0.1);
  EXPECT_EQ(split.train.counts(), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(split.validation.counts(), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(split.validation.name(0), (folder / "cat/002.ppm").string());
}

TEST(ImageSets, LinksWithoutATargetAreNamed) {
  const TempFolder folder;
  put_classes(folder.path(), 1);
  fs::create_symlink("gone.ppm", folder / "cat/x.ppm");
  const ImageSet set = open_images(folder.path()).train;
  EXPECT_EQ(set.size(), 2u);
  ASSERT_EQ(set.notes.size(), 1u);
  EXPECT_NE(set.notes[0].find("left out 1 link whose target is missing, such as " +
                              (folder / "cat/x.ppm").string()),
            std::string::npos)
      << set.notes[0];
  fs::create_symlink("gone", folder / "emu");
  EXPECT_USER_ERROR(open_images(folder.path()), "emu is a link whose target is missing; remove it");
}

TEST(ImageSets, ListsNamePicturesAndClasses) {
  const TempFolder folder;
  put_classes(folder.path(), 2);
  put_file(folder / "list.txt", "dog/001.ppm\tdog\r\n\ncat/000.ppm\tcat\n");
  const ImageSet set = open_images(folder / "list.txt").train;
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(set.label(0), 1);
  EXPECT_EQ(set.read(0).pixels[0], 3);
  EXPECT_TRUE(holds_images(folder / "list.txt"));

  const TempFolder outside;
  put_file(outside / "x.ppm", ppm_of(1));
  fs::create_directory_symlink(outside.path(), folder / "link");
  fs::create_symlink(outside / "x.ppm", folder / "x.ppm");
  fs::create_symlink(folder / "cat/000.ppm", folder / "inside.ppm");
  const auto refuse = [&](const std::string& line, const std::string& message) {
    put_file(folder / "bad.txt", "cat/000.ppm\tcat\n" + line + "\n");
    EXPECT_USER_ERROR(open_images(folder / "bad.txt"), "bad.txt: line 2: " + message);
  };
  refuse("dog/001.ppm dog", "expected the path of a picture, a tab and its class");
  refuse("dog/001.ppm\t", "expected the path of a picture");
  refuse("dog/001.ppm\tdog\tcat", "expected the path of a picture");
  refuse("cat/../dog/001.ppm\tdog", "'cat/../dog/001.ppm' leaves the list's folder");
  refuse((folder / "dog/001.ppm").string() + "\tdog",
         "'" + (folder / "dog/001.ppm").string() + "' is an absolute path");
  refuse("link/x.ppm\tdog", "'link/x.ppm' leaves the list's folder by a link");
  refuse("x.ppm\tdog", "'x.ppm' leaves the list's folder by a link");
  refuse("dog/none.ppm\tdog", "'dog/none.ppm': No such file");
  put_file(folder / "good.txt", "inside.ppm\tcat\ndog/000.ppm\tdog\n");
  EXPECT_EQ(open_images(folder / "good.txt").train.size(), 2u);
  put_file(folder / "mark.txt",
           "\xef\xbb\xbf"
           "cat/000.ppm\tcat\ndog/000.ppm\tdog\n");
  EXPECT_TRUE(holds_images(folder / "mark.txt"));
  EXPECT_EQ(open_images(folder / "mark.txt").train.name(0), (folder / "cat/000.ppm").string());
  put_file(folder / "header.txt", "path\tlabel\ncat/000.ppm\tcat\n");
  EXPECT_USER_ERROR(open_images(folder / "header.txt"),
                    "header.txt: line 1: 'path' is no picture; a list has no header");
  put_file(folder / "comma.txt", "cat/000.ppm,cat\n");
  EXPECT_USER_ERROR(open_images(folder / "comma.txt"),
                    "line 1: expected the path of a picture, a tab and its class; got "
                    "'cat/000.ppm,cat'; commas do not separate here");
  put_file(folder / "empty.txt", "\n");
  EXPECT_USER_ERROR(open_images(folder / "empty.txt"), "lists no pictures");
  EXPECT_USER_ERROR(open_images(folder / "list.txt", {{"cat", "emu"}}), "'dog' is not among the 2");
}

TEST(ImageSets, IdxFilesAreMnists) {
  const TempFolder folder;
  const std::string values(3 * 2 * 2, '\x07');
  put_file(folder / "train-images-idx3-ubyte", idx_of({3, 2, 2}, values));
  put_file(folder / "train-labels-idx1-ubyte.gz",
           gzip_of(idx_of({3}, std::string_view("\0\1\2", 3))));
  const ImageData data = open_images(folder.path());
  EXPECT_EQ(data.train.classes(), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(data.train.counts(), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_FALSE(data.validation);
  EXPECT_EQ(data.train.read(1).pixels, std::vector<uint8_t>(12, 7));
  EXPECT_EQ(data.train.read(1, {.channels = 1}).pixels, std::vector<uint8_t>(4, 7));
  EXPECT_NE(data.train.name(1).find("train-images-idx3-ubyte, picture 2"), std::string::npos);
  put_file(folder / "t10k-images-idx3-ubyte.gz",
           gzip_of(idx_of({1, 2, 2}, std::string(4, '\x01'))));
  put_file(folder / "t10k-labels-idx1-ubyte.gz", gzip_of(idx_of({1}, "\1")));
  EXPECT_EQ(open_images(folder.path()).validation->label(0), 1);
  EXPECT_EQ(open_images_to_evaluate(folder.path()).size(), 1u);
  EXPECT_EQ(open_images(folder / "t10k-images-idx3-ubyte.gz").train.size(), 1u);
  EXPECT_TRUE(holds_images(folder.path()));
  EXPECT_USER_ERROR(open_images(folder.path(), {{"zero", "one"}}),
                    "label 3 is 2; expected 0 to 1, as many as there are classes");
}

TEST(ImageSets, LabelsThatNoIdxPictureHasAreNamed) {
  const TempFolder folder;
  put_file(folder / "train-images-idx3-ubyte", idx_of({3, 1, 1}, "abc"));
  put_file(folder / "train-labels-idx1-ubyte", idx_of({3}, std::string_view("\0\1\5", 3)));
  const ImageSet set = open_images(folder.path()).train;
  EXPECT_EQ(set.classes().size(), 6u);
  ASSERT_EQ(set.notes.size(), 1u);
  EXPECT_NE(set.notes[0].find("train-labels-idx1-ubyte: the class '2' has no pictures, nor have 2 "
                              "more"),
            std::string::npos)
      << set.notes[0];
  EXPECT_TRUE(open_images(folder.path(), {set.classes()}).train.notes.empty());
}

TEST(ImageSets, IdxFilesThatAreNoneAreRefused) {
  const auto refuse = [](const std::string& bytes, const std::string& message) {
    EXPECT_USER_ERROR(parse_idx(bytes, "x-idx", 3), "x-idx" + message);
  };
  refuse("text", " is no IDX file");
  refuse(std::string("\0\0\x0d\3", 4), ": its values have the type 0x0d; expected 0x08, bytes");
  refuse(idx_of({3}, "abc"), ": its number of axes is 1; expected 3");
  refuse(std::string("\0\0\x08\3\0\0", 6), " is truncated");
  refuse(idx_of({2, 2, 2}, "abc"), ": its header needs 8 bytes of values, the file has 3");
  refuse(idx_of({~0u, ~0u, ~0u}, "abc"), ": its header needs more than 2^64 bytes");
  const TempFolder folder;
  put_file(folder / "pictures", idx_of({1, 1, 1}, "a"));
  EXPECT_USER_ERROR(open_images(folder / "pictures"), "a name with 'images' and 'idx3'");
  put_file(folder / "my-images-idx3", idx_of({1, 1, 1}, "a"));
  EXPECT_USER_ERROR(open_images(folder / "my-images-idx3"), "my-labels-idx1, which is missing");
  put_file(folder / "my-labels-idx1", idx_of({2}, std::string(2, '\0')));
  EXPECT_USER_ERROR(open_images(folder / "my-images-idx3"), "has 1 picture, but");
  put_file(folder / "my-labels-idx1", idx_of({1}, std::string(1, '\0')));
  EXPECT_USER_ERROR(open_images(folder / "my-images-idx3"), "has the class 0 alone");
  put_file(folder / "no-images-idx3", idx_of({0, 1, 1}, ""));
  put_file(folder / "no-labels-idx1", idx_of({0}, ""));
  EXPECT_USER_ERROR(open_images(folder / "no-images-idx3"), "holds no pictures");
}

TEST(ImageSets, FashionMnistIsRead) {
  const fs::path folder = models_folder() / "fashion-mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "no " << folder;
  const ImageData data = open_images(folder);
  EXPECT_EQ(data.train.counts(), std::vector<int64_t>(10, 6000));
  EXPECT_EQ(data.validation->counts(), std::vector<int64_t>(10, 1000));
  EXPECT_EQ(data.train.label(0), 9);
  EXPECT_EQ(data.train.read(0, {.channels = 1}).width, 28);
}

struct BatchCase {
  Sampling mode = Sampling::kEpoch;
  int64_t batch = 4;
};

ImageBatchOptions plain_pictures() {
  ImageBatchOptions images;
  images.form.height = 4;
  images.form.width = 6;
  images.form.mean = {0};
  images.form.std = {1};
  return images;
}

std::unique_ptr<ImageBatches> batches_of(const ImageSet& set, const BatchCase& c,
                                         const ImageBatchOptions& images = plain_pictures()) {
  BatchOptions options;
  options.mode = c.mode;
  options.batch = c.batch;
  options.seed = 5;
  return std::make_unique<ImageBatches>(set, ImageBatches::batch_options(set, images, options),
                                        images);
}

/// The number of the picture in row b, by its colour; -1 where the row is not scored.
int64_t picture_in(const Batch& batch, size_t b) {
  if (batch.ids("targets")[b] == kIgnoreId) return -1;
  const size_t size = batch.values("pixels").size() / batch.ids("targets").size();
  return std::lround(batch.values("pixels")[b * size] * 255);
}

TEST(ImageBatches, AnEpochHasEveryPictureOnce) {
  const TempFolder folder;
  put_classes(folder.path(), 5);
  const ImageSet set = open_images(folder.path()).train;
  const auto pairs = batches_of(set, {Sampling::kEpoch, 2});
  std::vector<int64_t> rows;
  Batch batch;
  for (int64_t i = 0; i < 20; ++i) {
    pairs->fill(i, batch);
    EXPECT_EQ(batch.count, 2);
    EXPECT_EQ(batch.tensors[0].name, "pixels");
    for (size_t b = 0; b < 2; ++b) {
      rows.push_back(picture_in(batch, b));
      EXPECT_EQ(batch.ids("targets")[b], rows.back() % 2);
      EXPECT_EQ(pairs->rows(i)[b], static_cast<size_t>(rows.back() / 2 + rows.back() % 2 * 5));
    }
  }
  for (int64_t epoch = 0; epoch < 4; ++epoch)
    EXPECT_EQ(std::set<int64_t>(rows.begin() + epoch * 10, rows.begin() + epoch * 10 + 10).size(),
              10u);
  EXPECT_NE(std::vector<int64_t>(rows.begin(), rows.begin() + 10),
            std::vector<int64_t>(rows.begin() + 10, rows.begin() + 20));
  const auto source = batches_of(set, {Sampling::kEpoch, 4});
  EXPECT_EQ(source->batches_per_pass(), 3);
  EXPECT_EQ(source->epoch_of(2), 0);
  EXPECT_EQ(source->epoch_of(3), 1);
  EXPECT_EQ(source->tokens(), 10);
}

TEST(ImageBatches, EvaluationIsInOrderAndPadded) {
  const TempFolder folder;
  put_classes(folder.path(), 3);
  const ImageSet set = open_images(folder.path()).train;
  const std::vector<int64_t> wanted{0, 2, 4, 1, 3, 5, -1, -1};
  const auto source = batches_of(set, {Sampling::kSequential, 4});
  EXPECT_EQ(source->batches_per_pass(), 2);
  Batch batch;
  for (int64_t index = 0; index < 4; ++index) {
    source->fill(index, batch);
    EXPECT_EQ(source->epoch_of(index), index / 2);
    int64_t scored = 0;
    for (size_t b = 0; b < 4; ++b) {
      const int64_t picture = picture_in(batch, b);
      EXPECT_EQ(picture, wanted[static_cast<size_t>(index % 2 * 4) + b]);
      scored += picture >= 0;
    }
    EXPECT_EQ(batch.count, scored);
    EXPECT_EQ(std::ssize(source->rows(index)), scored);
  }
}

/// A set of generated pictures that are large enough to be cropped.
ImageSet noisy_set(const fs::path& folder, int pictures) {
  for (int i = 0; i < pictures; ++i) {
    std::string text = "P6 40 30 255\n";
    for (int k = 0; k < 40 * 30 * 3; ++k)
      text += static_cast<char>((k * (i + 3) * 7 + k / 40 + i * 31) & 0xff);
    put_file(folder / (i % 2 == 0 ? "even" : "odd") / fmt::format("{:03}.ppm", i), text);
  }
  return open_images(folder).train;
}

ImageBatchOptions strong_pictures() {
  ImageBatchOptions images;
  images.form.height = images.form.width = 16;
  images.augment = augment_from_name("strong");
  images.augment.brightness = images.augment.contrast = images.augment.saturation = 0.4;
  images.augment.mixup = 0.3;
  return images;
}

bool same_batches(const Batch& a, const Batch& b) {
  return a.values("pixels") == b.values("pixels") && a.ids("targets") == b.ids("targets") &&
         a.ids("targets2") == b.ids("targets2") && a.values("mix") == b.values("mix") &&
         a.count == b.count;
}

TEST(ImageBatches, AreTheSameForAnyWorkersCachesAndRestarts) {
  const TempFolder folder;
  const ImageSet set = noisy_set(folder.path(), 11);
  const auto loader = [&](int64_t workers, int64_t cache) {
    ImageBatchOptions images = strong_pictures();
    images.cache_bytes = cache;
    LoaderOptions options;
    static_cast<BatchOptions&>(options) = ImageBatches::batch_options(set, images, [] {
      BatchOptions o;
      o.mode = Sampling::kEpoch;
      o.batch = 3;
      o.seed = 9;
      return o;
    }());
    options.workers = workers;
    return std::make_unique<Loader>(std::make_unique<ImageBatches>(set, options, images), options);
  };
  const auto plain = loader(0, 0);
  std::vector<Batch> wanted;
  for (int i = 0; i < 9; ++i) wanted.push_back(plain->next());
  EXPECT_FALSE(same_batches(wanted[0], wanted[4]));
  for (const int64_t workers : {1, 3})
    for (const int64_t cache : {0, 8000, 1 << 20}) {
      const auto other = loader(workers, cache);
      for (const Batch& batch : wanted) ASSERT_TRUE(same_batches(other->next(), batch));
    }
  const auto saved = loader(2, 0);
  for (int i = 0; i < 4; ++i) saved->next();
  const auto resumed = loader(1, 8000);
  resumed->restore(LoaderState::from_json(saved->state().to_json()));
  for (size_t i = 4; i < wanted.size(); ++i)
    ASSERT_TRUE(same_batches(resumed->next(), wanted[i])) << i;
}

TEST(ImageBatches, MixupJoinsNeighboursHoweverRowsAreCut) {
  const TempFolder folder;
  put_classes(folder.path(), 6);
  const ImageSet set = open_images(folder.path()).train;
  ImageBatchOptions images = plain_pictures();
  images.augment.mixup = 0.5;
  std::vector<std::vector<float>> ways;
  for (const int64_t size : {1, 2, 3, 4}) {
    const auto source = batches_of(set, {Sampling::kEpoch, size}, images),
               unmixed = batches_of(set, {Sampling::kEpoch, 2});
    std::vector<float> rows;
    std::vector<int32_t> targets, second;
    Batch batch, plain;
    for (int64_t i = 0; i < 12 / size; ++i) {
      source->fill(i, batch);
      for (size_t b = 0; b < static_cast<size_t>(size); ++b) {
        rows.push_back(batch.values("pixels")[b * 72]);
        rows.push_back(batch.values("mix")[b]);
        targets.push_back(batch.ids("targets")[b]);
        second.push_back(batch.ids("targets2")[b]);
      }
    }
    for (size_t r = 0; r < 12; r += 2) {
      EXPECT_EQ(targets[r], second[r + 1]);
      EXPECT_EQ(targets[r + 1], second[r]);
      unmixed->fill(static_cast<int64_t>(r / 2), plain);
      const float a = plain.values("pixels")[0], b = plain.values("pixels")[72];
      const float weight = rows[2 * r + 1];
      EXPECT_EQ(weight, rows[2 * r + 3]);
      EXPECT_NEAR(rows[2 * r], weight * a + (1 - weight) * b, 1e-6f);
      EXPECT_NEAR(rows[2 * r + 2], weight * b + (1 - weight) * a, 1e-6f);
    }
    ways.push_back(rows);
  }
  for (const auto& rows : ways) EXPECT_EQ(rows, ways[0]);
}

TEST(ImageBatches, BadPicturesAreLeftOutUpToALimit) {
  const TempFolder folder;
  put_classes(folder.path(), 4);
  put_file(folder / "cat/001.ppm", "a text");
  put_file(folder / "dog/003.ppm", ppm_of(7).substr(0, 50));
  const ImageSet set = open_images(folder.path()).train;
  Batch batch;
  const auto read_all = [&](const ImageBatches& source) {
    std::multiset<int64_t> seen;
    for (int64_t i = 0; i < source.batches_per_pass(); ++i) {
      source.fill(i, batch);
      for (size_t b = 0; b < batch.ids("targets").size(); ++b) seen.insert(picture_in(batch, b));
    }
    return seen;
  };
  EXPECT_USER_ERROR(read_all(*batches_of(set, {Sampling::kSequential})),
                    "cat/001.ppm is a text; expected a picture");
  ImageBatchOptions images = plain_pictures();
  images.skip_bad_images = 1;
  EXPECT_USER_ERROR(read_all(*batches_of(set, {Sampling::kSequential}, images)),
                    "003.ppm: the PNM file is truncated; 2 pictures cannot be read, more than the "
                    "1 that may be skipped");
  images.skip_bad_images = 2;
  const auto evaluation = batches_of(set, {Sampling::kSequential}, images);
  EXPECT_EQ(read_all(*evaluation), (std::multiset<int64_t>{-1, -1, 0, 1, 3, 4, 5, 6}));
  ASSERT_EQ(evaluation->skipped().size(), 2u);
  EXPECT_NE(evaluation->skipped()[0].find("is a text"), std::string::npos);
  // In training the next picture stands in.
  const auto training = batches_of(set, {Sampling::kEpoch}, images);
  EXPECT_EQ(read_all(*training), (std::multiset<int64_t>{0, 0, 1, 3, 4, 4, 5, 6}));
  EXPECT_EQ(training->skipped().size(), 2u);
  images.skip_bad_images = 100;
  for (int i = 0; i < 4; ++i) {
    put_file(folder / fmt::format("cat/{:03}.ppm", i), "");
    put_file(folder / fmt::format("dog/{:03}.ppm", i), "");
  }
  EXPECT_USER_ERROR(read_all(*batches_of(set, {Sampling::kEpoch}, images)),
                    "none of its pictures can be read");
}

// A pixel's number has 4 bytes: 4 batches of 256 pictures of 224 x 224 are 588 MiB.
TEST(ImageBatches, LargeBatchesAreReadAhead) {
  const TempFolder folder;
  put_classes(folder.path(), 1);
  ImageBatchOptions images = plain_pictures();
  images.form.height = images.form.width = 224;
  LoaderOptions options;
  options.mode = Sampling::kEpoch;
  options.workers = 2;
  const ImageSet set = open_images(folder.path()).train;
  const auto open = [&](int64_t batch) {
    options.batch = batch;
    static_cast<BatchOptions&>(options) = ImageBatches::batch_options(set, images, options);
    Loader(std::make_unique<ImageBatches>(set, options, images), options);
  };
  open(256);
  EXPECT_USER_ERROR(open(512), "prefetched batches would take");
}

TEST(ImageBatches, SettingsThatCannotBeAreRefused) {
  const TempFolder folder;
  put_classes(folder.path(), 1);
  const ImageSet set = open_images(folder.path()).train;
  EXPECT_USER_ERROR(batches_of(set, {Sampling::kRandom}), "sampling 'random' does not work");
  ImageBatchOptions images = plain_pictures();
  images.skip_bad_images = -1;
  EXPECT_USER_ERROR(batches_of(set, {}, images), "-1 bad images to skip");
  images = plain_pictures();
  images.most_pixels = 0;
  EXPECT_USER_ERROR(batches_of(set, {}, images), "a limit of 0 pixels");
  images.most_pixels = 23;
  Batch batch;
  EXPECT_USER_ERROR(batches_of(set, {}, images)->fill(0, batch),
                    "6 x 4 pixels; expected at most 23");
}

TEST(ImageBatches, TheFingerprintCoversPicturesAndSettings) {
  const TempFolder folder;
  put_classes(folder.path(), 2);
  const ImageSet set = open_images(folder.path()).train;
  const auto of = [](const ImageSet& s, const ImageBatchOptions& images) {
    return batches_of(s, {}, images)->fingerprint();
  };
  std::set<std::string> all{of(set, plain_pictures())};
  ImageBatchOptions other = plain_pictures();
  other.augment.flip = 0.5;
  all.insert(of(set, other));
  other = plain_pictures();
  other.form.mean = {0.5f};
  all.insert(of(set, other));
  put_file(folder / "dog/002.ppm", ppm_of(1));
  all.insert(of(open_images(folder.path()).train, plain_pictures()));
  EXPECT_EQ(all.size(), 4u);
  other = plain_pictures();
  other.cache_bytes = 1000;
  other.skip_bad_images = 4;
  EXPECT_EQ(of(set, other), of(set, plain_pictures()));
}

TEST(ImageReports, CountSizesFormatsAndProblems) {
  const TempFolder folder;
  put_classes(folder.path(), 20);
  put_file(folder / "cat/000.ppm", "P5 9 8 255\n" + std::string(72, 'x'));
  put_file(folder / "cat/001.ppm", ppm_of(1).substr(0, 40));
  put_file(folder / "dog/000.png", "text");
  const ImageSet set = open_images(folder.path()).train;
  const ImageReport header = report_images(set, false), whole = report_images(set, true);
  EXPECT_EQ(header.pictures, 41);
  EXPECT_EQ(header.formats, (std::map<std::string, int64_t>{{"PNM", 40}}));
  EXPECT_EQ(header.width.least, 6);
  EXPECT_EQ(header.width.median, 6);
  EXPECT_EQ(header.width.most, 9);
  EXPECT_EQ(header.height.most, 8);
  ASSERT_EQ(header.bad.size(), 1u);
  ASSERT_EQ(whole.bad.size(), 2u);
  EXPECT_NE(whole.bad[0].find("cat/001.ppm: the PNM file is truncated"), std::string::npos);
  EXPECT_NE(whole.bad[1].find("dog/000.png is a text"), std::string::npos);
}

TEST(PictureCaches, KeepUpToALimit) {
  PictureCache cache(1000);
  const auto image = std::make_shared<const Image>(Image{10, 10, 3, std::vector<uint8_t>(300)});
  EXPECT_EQ(cache.find(0), nullptr);
  cache.keep(0, image);
  cache.keep(1, image);
  cache.keep(2, image);
  EXPECT_EQ(cache.find(1), image);
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_LE(cache.bytes(), 1000);
  EXPECT_FALSE(cache.has_room(300));
}

}  // namespace
}  // namespace brrr::test
