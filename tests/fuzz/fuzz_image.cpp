// Any bytes as a picture or as IDX files: a UserError, or a picture whose every byte can be read,
// of which a part has the same values.
#include "base/errors.h"
#include "data/images/idx_files.h"
#include "data/images/resize.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string name = "input";
  io::DecodeOptions options;
  options.most_pixels = 1 << 16;
  try {
    const io::ImageSize expected = io::image_size(bytes, name, options);
    const io::Image image = io::decode_image(bytes, name, options);
    BRRR_CHECK(image.pixels.size() == static_cast<size_t>(image.width * image.height * 3));
    BRRR_CHECK(image.width * image.height <= options.most_pixels);
    // EXIF behind the pixels may turn a PNG.
    BRRR_CHECK(expected.width * expected.height == image.width * image.height);
    const io::PixelBox box{image.width / 3, image.height / 3, (image.width + 1) / 2,
                           (image.height + 1) / 2};
    const io::Image part = io::decode_part(bytes, name, box, options);
    BRRR_CHECK(part.width == box.width && part.height == box.height);
    io::resize(image, 9, 7, io::ResizeFilter::bicubic);
  } catch (const UserError&) {
  }
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const io::IdxArray array = io::parse_idx(text, name, 3);
    BRRR_CHECK(static_cast<uint64_t>(array.sizes[0] * array.sizes[1] * array.sizes[2]) ==
               array.values.size());
  } catch (const UserError&) {
  }
  return 0;
}
