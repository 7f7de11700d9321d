#include "formats/images/image.h"

#include <algorithm>
#include <cstring>

#include "formats/file_kind.h"
#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

ImageFormat image_format_of(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ImageFormat format{};
  if (find_image_format(text.substr(0, 16), format)) return format;
  constexpr size_t kShown = 4096;
  const auto kind = kind_of_bytes(text.substr(0, kShown));
  user_error("{} is {}; expected a picture (JPEG, PNG, WebP or PPM)", name,
             kind ? kind->name : "no picture of a known format");
}

DecodedImage decode_format(const DecodeRequest& request) {
  switch (image_format_of(request.bytes, request.name)) {
    case ImageFormat::jpeg:
      return decode_jpeg(request);
    case ImageFormat::png:
      return decode_png(request);
    case ImageFormat::webp:
      return decode_webp(request);
    case ImageFormat::pnm:
      return decode_pnm(request);
  }
  BRRR_CHECK(false, "image format");
}

Image with_channels(Image image, int64_t channels) {
  if (image.channels == channels) return image;
  Image other{image.width, image.height, channels, {}};
  const size_t pixels = static_cast<size_t>(image.width * image.height);
  other.pixels.resize(pixels * static_cast<size_t>(channels));
  const uint8_t* from = image.pixels.data();
  uint8_t* to = other.pixels.data();
  for (size_t i = 0; i < pixels; ++i)
    if (channels == 1) {
      // ITU-R BT.601 in 16 bits, as Pillow rounds it.
      const uint32_t sum =
          19595u * from[3 * i] + 38470u * from[3 * i + 1] + 7471u * from[3 * i + 2];
      to[i] = static_cast<uint8_t>((sum + 0x8000) >> 16);
    } else {
      to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = from[i];
    }
  return other;
}

/// Orientations from 5 on exchange the sides.
bool exchanges_sides(int orientation) { return orientation >= 5; }

Image turned_upright(const Image& image, int orientation) {
  const int64_t W = image.width, H = image.height;
  const bool exchanged = exchanges_sides(orientation);
  Image upright{exchanged ? H : W, exchanged ? W : H, image.channels, {}};
  upright.pixels.resize(image.pixels.size());
  // Which of the file's axes run backwards where the picture stands upright.
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  for (int64_t y = 0; y < upright.height; ++y) {
    uint8_t* to = upright.row(y);
    for (int64_t x = 0; x < upright.width; ++x) {
      int64_t from_x = exchanged ? y : x, from_y = exchanged ? x : y;
      if (from_right) from_x = W - 1 - from_x;
      if (from_bottom) from_y = H - 1 - from_y;
      const uint8_t* from = image.row(from_y) + from_x * image.channels;
      for (int64_t c = 0; c < image.channels; ++c) *to++ = from[c];
    }
  }
  return upright;
}

Image part_of(const Image& image, const PixelBox& box) {
  Image part{box.width, box.height, image.channels, {}};
  part.pixels.resize(part.row_bytes() * static_cast<size_t>(box.height));
  for (int64_t y = 0; y < box.height; ++y)
    std::memcpy(part.row(y), image.row(box.top + y) + box.left * image.channels, part.row_bytes());
  return part;
}

}  // namespace

std::string_view name_of(ImageFormat format) {
  switch (format) {
    case ImageFormat::jpeg:
      return "JPEG";
    case ImageFormat::png:
      return "PNG";
    case ImageFormat::webp:
      return "WebP";
    case ImageFormat::pnm:
      return "PNM";
  }
  return "unknown";
}

bool find_image_format(std::string_view begin, ImageFormat& format) {
  using namespace std::literals;
  if (begin.starts_with("\xff\xd8\xff"sv)) {
    format = ImageFormat::jpeg;
  } else if (begin.starts_with("\x89PNG\r\n\x1a\n"sv)) {
    format = ImageFormat::png;
  } else if (begin.starts_with("RIFF"sv) &&
             begin.substr(std::min<size_t>(8, begin.size())).starts_with("WEBP"sv)) {
    format = ImageFormat::webp;
  } else if (begin.size() > 2 && begin[0] == 'P' && begin[1] >= '1' && begin[1] <= '6' &&
             (begin[2] == ' ' || (begin[2] >= '\t' && begin[2] <= '\r') || begin[2] == '#')) {
    format = ImageFormat::pnm;
  } else {
    return false;
  }
  return true;
}

void check_image_size(const DecodeRequest& request, uint64_t width, uint64_t height) {
  if (width < 1 || height < 1)
    user_error("{}: the picture has {} x {} pixels; expected at least 1 x 1", request.name, width,
               height);
  const auto most = static_cast<uint64_t>(request.most_pixels);
  if (width > most || height > most / width)
    user_error(
        "{}: the picture has {} x {} pixels; expected at most {} altogether, because a small file "
        "may unpack to more than the memory",
        request.name, width, height, most);
}

ImageSize image_size(std::span<const std::byte> bytes, const std::string& name,
                     const DecodeOptions& options) {
  const DecodedImage decoded = decode_format({bytes, name, options.most_pixels, true});
  ImageSize size{decoded.file_width, decoded.file_height};
  if (options.upright && exchanges_sides(decoded.orientation)) std::swap(size.width, size.height);
  return size;
}

Image decode_image(std::span<const std::byte> bytes, const std::string& name,
                   const DecodeOptions& options) {
  BRRR_CHECK(options.channels == 1 || options.channels == 3, "{} channels", options.channels);
  DecodedImage decoded = decode_format({bytes, name, options.most_pixels});
  // Before it is turned, so that grey is turned as one channel.
  Image image = with_channels(std::move(decoded.image), options.channels);
  if (!options.upright || decoded.orientation == 1) return image;
  return turned_upright(image, decoded.orientation);
}

Image decode_part(std::span<const std::byte> bytes, const std::string& name, const PixelBox& part,
                  const DecodeOptions& options) {
  ImageFormat format{};
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()),
                               std::min<size_t>(bytes.size(), 16));
  const bool is_jpeg = find_image_format(begin, format) && format == ImageFormat::jpeg;
  if (is_jpeg) {
    const DecodedImage header = decode_jpeg({bytes, name, options.most_pixels, true});
    if (header.orientation == 1 || !options.upright) {
      BRRR_CHECK(part.left >= 0 && part.top >= 0 && part.width > 0 && part.height > 0 &&
                     part.left + part.width <= header.file_width &&
                     part.top + part.height <= header.file_height,
                 "a part of {} x {}", header.file_width, header.file_height);
      DecodedImage decoded = decode_jpeg({bytes, name, options.most_pixels, false, &part});
      return with_channels(std::move(decoded.image), options.channels);
    }
  }
  const Image whole = decode_image(bytes, name, options);
  BRRR_CHECK(part.left >= 0 && part.top >= 0 && part.left + part.width <= whole.width &&
                 part.top + part.height <= whole.height,
             "a part of {} x {}", whole.width, whole.height);
  return part_of(whole, part);
}

Image read_image(const fs::path& path, const DecodeOptions& options) {
  const std::string bytes = read_file(path);
  return decode_image(std::as_bytes(std::span(bytes)), path.string(), options);
}

}  // namespace brrr::io
