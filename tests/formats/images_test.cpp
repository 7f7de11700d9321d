// Pictures of every kind against Pillow's values (tests/golden/make_image_goldens.py), parts of
// them, and what is wrong with files.

#include "formats/images/image.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/errors.h"
#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using io::decode_image;
using io::Image;

const io::SafetensorsFile& image_goldens() {
  static const io::SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) / "tests" / "golden" /
                                        "images.safetensors");
  return file;
}

std::vector<std::string> golden_pictures() {
  std::vector<std::string> names;
  for (const TensorView& t : image_goldens().tensors())
    if (t.name.starts_with("rgb:")) names.push_back(t.name.substr(4));
  return names;
}

std::span<const std::byte> picture(const std::string& name) {
  return image_goldens().get("file:" + name).bytes;
}

/// The largest difference of two pictures of one size.
int most_apart(const Image& image, const TensorView& golden) {
  EXPECT_EQ(golden.shape[0], image.height);
  EXPECT_EQ(golden.shape[1], image.width);
  EXPECT_EQ(golden.bytes.size(), image.pixels.size());
  int most = 0;
  for (size_t i = 0; i < std::min(image.pixels.size(), golden.bytes.size()); ++i)
    most = std::max(most, std::abs(image.pixels[i] - static_cast<int>(golden.bytes[i])));
  return most;
}

TEST(Images, HaveTheValuesOfPillow) {
  const std::vector<std::string> names = golden_pictures();
  EXPECT_GT(names.size(), 40u);
  for (const std::string& name : names) {
    // Another version of libwebp may round the colours of lossy files otherwise.
    const int allowed = name == "lossy.webp" || name == "alpha.webp" ? 2 : 0;
    EXPECT_LE(most_apart(decode_image(picture(name), name), image_goldens().get("rgb:" + name)),
              allowed)
        << name;
    EXPECT_LE(most_apart(decode_image(picture(name), name, {.channels = 1}),
                         image_goldens().get("grey:" + name)),
              allowed)
        << name;
  }
}

TEST(Images, TheHeaderAloneTellsTheSize) {
  for (const std::string& name : golden_pictures()) {
    const Image image = decode_image(picture(name), name);
    const io::ImageSize size = io::image_size(picture(name), name);
    EXPECT_EQ(size.width, image.width) << name;
    EXPECT_EQ(size.height, image.height) << name;
  }
}

TEST(Images, OrientationIsAppliedUnlessItIsSwitchedOff) {
  const Image upright = decode_image(picture("turned6.jpg"), "x"),
              lying = decode_image(picture("turned6.jpg"), "x", {.upright = false}),
              plain = decode_image(picture("turned1.jpg"), "x");
  EXPECT_EQ(upright.width, lying.height);
  EXPECT_EQ(lying, plain);
}

TEST(Images, APartHasTheValuesOfTheWhole) {
  for (const std::string& name : golden_pictures()) {
    const Image whole = decode_image(picture(name), name);
    const int64_t W = whole.width, H = whole.height;
    for (const io::PixelBox& box :
         {io::PixelBox{0, 0, W, H}, io::PixelBox{W / 3, H / 4, (W + 1) / 2, (H + 1) / 2},
          io::PixelBox{W - 1, H - 1, 1, 1}, io::PixelBox{0, H / 2, W, 1}}) {
      const Image part = io::decode_part(picture(name), name, box);
      ASSERT_EQ(part.width, box.width);
      ASSERT_EQ(part.height, box.height);
      for (int64_t y = 0; y < box.height; ++y)
        ASSERT_EQ(0,
                  std::memcmp(part.row(y), whole.row(box.top + y) + box.left * 3, part.row_bytes()))
            << name << " row " << y;
    }
  }
}

/// Larger than the margins that a decoder keeps around a part.
TEST(Images, APartOfALargeJpegHasTheValuesOfTheWhole) {
  for (const char* name : {"large444.jpg", "large422.jpg", "large420.jpg", "large-restarts.jpg",
                           "large-progressive.jpg", "large-grey.jpg", "large-cmyk.jpg"}) {
    const Image whole = decode_image(picture(name), name);
    const int64_t W = whole.width, H = whole.height;
    for (int64_t left = 0; left < W; left += 29)
      for (int64_t top = 0; top < H; top += 23) {
        const io::PixelBox box{left, top, std::max<int64_t>(1, (W - left) * 2 / 3),
                               std::max<int64_t>(1, (H - top) / 2)};
        const Image part = io::decode_part(picture(name), name, box);
        for (int64_t y = 0; y < box.height; ++y)
          ASSERT_EQ(
              0, std::memcmp(part.row(y), whole.row(box.top + y) + box.left * 3, part.row_bytes()))
              << name << " " << left << ", " << top << " row " << y;
      }
  }
}

TEST(Images, TruncatedFilesAreRefusedOrWhole) {
  for (const std::string& name : golden_pictures()) {
    if (name.starts_with("text.")) continue;  // a number that is cut is a number, too
    const auto bytes = picture(name);
    const Image whole = decode_image(bytes, name);
    for (size_t size = 0; size<bytes.size(); size += bytes.size()> 600 ? 7 : 1) {
      try {
        const Image image = decode_image(bytes.first(size), name);
        // Only what stands behind the pixels may be missing, EXIF of a PNG or WebP included.
        if (name.ends_with(".webp") && name.starts_with("turned")) continue;
        EXPECT_EQ(image, whole) << name << " of " << size << " bytes";
      } catch (const UserError& e) {
        EXPECT_NE(std::string(e.what()).find(size == 0 ? "is an empty file" : name),
                  std::string::npos)
            << e.what();
      }
    }
  }
}

TEST(Images, TruncationIsSaidAsSuch) {
  for (const char* name : {"large420.jpg", "large-progressive.jpg", "rgb8.png", "lossless.webp",
                           "bytes.ppm", "text.ppm"}) {
    const auto bytes = picture(name);
    EXPECT_USER_ERROR(decode_image(bytes.first(bytes.size() * 2 / 3), name), "file is truncated");
    EXPECT_USER_ERROR(decode_image(bytes.first(bytes.size() * 2 / 3), name), name);
  }
}

TEST(Images, OtherFilesAreNamedByWhatTheyAre) {
  const auto refuse = [](std::string_view bytes) {
    decode_image(std::as_bytes(std::span(bytes)), "cat.png");
  };
  EXPECT_USER_ERROR(refuse("just a text\n"), "cat.png is a text; expected a picture");
  EXPECT_USER_ERROR(refuse("<!doctype html><html>"), "a web page");
  EXPECT_USER_ERROR(refuse("GIF89a......."), "GIF");
  EXPECT_USER_ERROR(refuse(""), "an empty file");
  EXPECT_USER_ERROR(refuse(std::string_view("\0\1\2\3\4\5\6\7", 8)),
                    "no picture of a known format");
}

TEST(Images, LargePicturesAreRefusedBeforeTheyTakeMemory) {
  const std::string bomb = "P6 100000 100000 255\n";
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(bomb)), "bomb.ppm"),
                    "bomb.ppm: the picture has 100000 x 100000 pixels; expected at most 178956970");
  for (const std::string& name : golden_pictures()) {
    if (name == "one.png") continue;
    EXPECT_USER_ERROR(decode_image(picture(name), name, {.most_pixels = 10}), "at most 10");
    EXPECT_USER_ERROR(io::image_size(picture(name), name, {.most_pixels = 10}), "at most 10");
  }
  const std::string empty = "P6 0 4 255\n";
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(empty)), "x"), "at least 1 x 1");
}

TEST(Images, DamageIsSaid) {
  const auto pnm = [](std::string text) { decode_image(std::as_bytes(std::span(text)), "x.ppm"); };
  EXPECT_USER_ERROR(pnm("P6 2 2 0\n...."), "its largest value is 0");
  EXPECT_USER_ERROR(pnm("P6 2 2 70000\n...."), "expected 1 to 65535");
  EXPECT_USER_ERROR(pnm("P6 2 x 255\n...."), "no number for a height");
  EXPECT_USER_ERROR(pnm("P2 2 1 9\n9 10\n"), "a value is 10; its header says at most 9");
  EXPECT_USER_ERROR(pnm("P1 2 1\n0 3\n"), "neither 0 nor 1");
  std::string png(reinterpret_cast<const char*>(picture("rgb8.png").data()),
                  picture("rgb8.png").size());
  png[png.size() / 2] ^= 0x55;
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(png)), "x.png"),
                    "x.png: the PNG file is damaged");
  std::string jpeg(reinterpret_cast<const char*>(picture("420.jpg").data()), 40);
  jpeg += std::string(200, '\xff');
  jpeg += std::string(200, 'a');
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(jpeg)), "x.jpg"), "x.jpg");
}

/// The last pass of a progressive file, repeated so often that a large picture would take hours.
TEST(Images, JpegsOfTooManyPassesAreRefused) {
  const auto bytes = picture("progressive.jpg");
  const std::string whole(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t last = whole.rfind("\xff\xda"), end = whole.rfind("\xff\xd9");
  ASSERT_LT(last, end);
  std::string many = whole.substr(0, end);
  for (int i = 0; i < 600; ++i) many += whole.substr(last, end - last);
  many += whole.substr(end);
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(many)), "x.jpg"),
                    "x.jpg: the JPEG file is damaged: it has too many passes");
}

TEST(Images, DamagedWebpFilesAreRefused) {
  const auto animated = picture("animated.webp");
  EXPECT_USER_ERROR(decode_image(animated.first(animated.size() / 2), "x.webp"),
                    "x.webp: the WebP");
  const auto lossless = picture("lossless.webp");
  std::string bytes(reinterpret_cast<const char*>(lossless.data()), lossless.size());
  bytes[20] = 'x';  // the sign of a lossless stream
  EXPECT_USER_ERROR(decode_image(std::as_bytes(std::span(bytes)), "x.webp"),
                    "x.webp: the WebP file is damaged");
}

TEST(Images, AreReadByTheirBytesNotByTheirNames) {
  const TempFolder folder;
  const auto bytes = picture("420.jpg");
  write_file_atomically(folder / "cat.png",
                        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  EXPECT_EQ(io::read_image(folder / "cat.png"), decode_image(bytes, "x"));
  EXPECT_USER_ERROR(io::read_image(folder / "none.png"), "none.png");
}

}  // namespace
}  // namespace brrr::test
