#include "data/images/colours.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace brrr::io {
namespace {

/// Pillow's Image.blend: truncated between the two, clipped beyond.
uint8_t blended(int base, int value, float factor) {
  const float mixed = static_cast<float>(base) + factor * static_cast<float>(value - base);
  return static_cast<uint8_t>(std::clamp(mixed, 0.0f, 255.0f));
}

uint8_t grey_of(const uint8_t* pixel) {
  return static_cast<uint8_t>((19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 0x8000) >>
                              16);
}

using ColourTable = std::array<uint8_t, 256>;

/// Each channel goes through its own table, made from its histogram.
template <typename Make>
void through_tables(Image& image, const Make& make) {
  const auto C = static_cast<size_t>(image.channels);
  for (size_t c = 0; c < C; ++c) {
    std::array<int64_t, 256> histogram{};
    for (size_t i = c; i < image.pixels.size(); i += C) ++histogram[image.pixels[i]];
    ColourTable table;
    for (size_t v = 0; v < 256; ++v) table[v] = static_cast<uint8_t>(v);
    make(histogram, table);
    for (size_t i = c; i < image.pixels.size(); i += C) image.pixels[i] = table[image.pixels[i]];
  }
}

void through_table(Image& image, const ColourTable& table) {
  for (uint8_t& value : image.pixels) value = table[value];
}

}  // namespace

void change_brightness(Image& image, float factor) {
  ColourTable table;
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = blended(0, v, factor);
  through_table(image, table);
}

void change_contrast(Image& image, float factor) {
  const size_t pixels = static_cast<size_t>(image.width * image.height);
  int64_t sum = 0;
  for (size_t i = 0; i < pixels; ++i)
    sum += image.channels == 1 ? image.pixels[i] : grey_of(&image.pixels[3 * i]);
  const int mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(pixels) + 0.5);
  ColourTable table;
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = blended(mean, v, factor);
  through_table(image, table);
}

void change_saturation(Image& image, float factor) {
  if (image.channels == 1) return;
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const int grey = grey_of(&image.pixels[i]);
    for (size_t c = 0; c < 3; ++c) image.pixels[i + c] = blended(grey, image.pixels[i + c], factor);
  }
}

void change_sharpness(Image& image, float factor) {
  const Image source = image;
  const int64_t C = image.channels;
  for (int64_t y = 1; y + 1 < image.height; ++y)
    for (int64_t i = C; i + C < image.width * C; ++i) {
      float blurred = 0.5f;
      for (const int64_t dy : {1, 0, -1}) {
        const uint8_t* in = source.row(y + dy) + i;
        const float middle = dy == 0 ? 5.0f / 13 : 1.0f / 13;
        blurred += static_cast<float>(in[-C]) * (1.0f / 13) + static_cast<float>(in[0]) * middle +
                   static_cast<float>(in[C]) * (1.0f / 13);
      }
      image.row(y)[i] =
          blended(static_cast<int>(std::clamp(blurred, 0.0f, 255.0f)), source.row(y)[i], factor);
    }
}

void stretch_contrast(Image& image) {
  through_tables(image, [](const std::array<int64_t, 256>& histogram, ColourTable& table) {
    int low = 0, high = 255;
    while (low < 256 && histogram[static_cast<size_t>(low)] == 0) ++low;
    while (high >= 0 && histogram[static_cast<size_t>(high)] == 0) --high;
    if (high <= low) return;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int v = 0; v < 256; ++v)
      table[static_cast<size_t>(v)] =
          static_cast<uint8_t>(std::clamp(static_cast<int>(v * scale + offset), 0, 255));
  });
}

void equalize(Image& image) {
  through_tables(image, [](const std::array<int64_t, 256>& histogram, ColourTable& table) {
    int64_t total = 0, last = 0;
    for (const int64_t count : histogram) {
      total += count;
      if (count > 0) last = count;
    }
    const int64_t step = (total - last) / 255;
    if (step == 0) return;
    int64_t below = step / 2;
    for (size_t v = 0; v < 256; ++v) {
      table[v] = static_cast<uint8_t>(std::min<int64_t>(255, below / step));
      below += histogram[v];
    }
  });
}

void posterize(Image& image, int bits) {
  const auto mask = static_cast<uint8_t>(0xff << (8 - bits));
  for (uint8_t& value : image.pixels) value &= mask;
}

void solarize(Image& image, int threshold) {
  for (uint8_t& value : image.pixels)
    if (value >= threshold) value = static_cast<uint8_t>(255 - value);
}

Image transform(const Image& image, const AffineMap& map) {
  // 16 bits behind the point, as Pillow counts for pictures below 32,768 pixels on a side.
  const auto fixed = [](double value) {
    return static_cast<int64_t>(std::floor(value * 65536.0 + 0.5));
  };
  const int64_t a = fixed(map.a), b = fixed(map.b), d = fixed(map.d), e = fixed(map.e);
  int64_t row_x = fixed(map.c + map.a * 0.5 + map.b * 0.5);
  int64_t row_y = fixed(map.f + map.d * 0.5 + map.e * 0.5);
  Image out{image.width, image.height, image.channels,
            std::vector<uint8_t>(image.pixels.size(), 0)};
  for (int64_t y = 0; y < out.height; ++y, row_x += b, row_y += e) {
    int64_t from_x = row_x, from_y = row_y;
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < out.width; ++x, from_x += a, from_y += d, to += out.channels) {
      const int64_t column = from_x >> 16, row = from_y >> 16;
      if (column < 0 || column >= image.width || row < 0 || row >= image.height) continue;
      std::copy_n(image.row(row) + column * image.channels, image.channels, to);
    }
  }
  return out;
}

AffineMap rotation(const Image& image, double degrees) {
  const double angle = -degrees * std::numbers::pi / 180;
  const double middle_x = static_cast<double>(image.width) / 2,
               middle_y = static_cast<double>(image.height) / 2;
  AffineMap map{std::cos(angle), std::sin(angle), 0, -std::sin(angle), std::cos(angle), 0};
  map.c = middle_x - map.a * middle_x - map.b * middle_y;
  map.f = middle_y - map.d * middle_x - map.e * middle_y;
  return map;
}

}  // namespace brrr::io
