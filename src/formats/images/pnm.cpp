// PBM, PGM and PPM, as numbers in text (P1, P2, P3) and as bytes (P4, P5, P6).

#include <optional>

#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

class PnmReader {
 public:
  explicit PnmReader(const DecodeRequest& request)
      : request_(request),
        text_(reinterpret_cast<const char*>(request.bytes.data()), request.bytes.size()) {}

  DecodedImage decode() {
    const char kind = text_.size() > 1 ? text_[1] : '0';
    at_ = 2;
    const bool is_bitmap = kind == '1' || kind == '4', is_text = kind <= '3';
    const uint64_t width = number("a width"), height = number("a height");
    check_image_size(request_, width, height);
    const uint64_t white = is_bitmap ? 1 : number("a largest value");
    if (white < 1 || white > 65535)
      damaged_image(request_, ImageFormat::pnm,
                    fmt::format("its largest value is {}; expected 1 to 65535", white));
    ++at_;  // one space ends the header
    DecodedImage decoded;
    Image& image = decoded.image;
    decoded.file_width = image.width = static_cast<int64_t>(width);
    decoded.file_height = image.height = static_cast<int64_t>(height);
    if (request_.header_only) return decoded;
    image.channels = kind == '3' || kind == '6' ? 3 : 1;
    const uint64_t values = width * height * static_cast<uint64_t>(image.channels);
    // Before memory is taken: a value takes at least this many bytes.
    const uint64_t least = kind == '4' ? (width + 7) / 8 * height
                           : is_text   ? (is_bitmap ? values : 2 * values - 1)
                                       : values * (white > 255 ? 2 : 1);
    const size_t left = text_.size() - std::min(at_, text_.size());
    if (left < least) truncated_image(request_, ImageFormat::pnm);
    image.pixels.resize(values);
    if (is_bitmap)
      read_bits(image, is_text);
    else
      read_values(image, static_cast<uint32_t>(white), is_text);
    return decoded;
  }

 private:
  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  void skip_space() {
    while (at_ < text_.size() && (is_space(text_[at_]) || text_[at_] == '#')) {
      if (text_[at_] == '#')
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      else
        ++at_;
    }
  }
  uint64_t number(const char* what) {
    skip_space();
    if (at_ >= text_.size()) truncated_image(request_, ImageFormat::pnm);
    constexpr size_t kMostDigits = 10;
    uint64_t value = 0;
    size_t digits = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, ++digits)
      if (digits < kMostDigits) value = value * 10 + static_cast<uint64_t>(text_[at_] - '0');
    if (digits == 0 || digits > kMostDigits)
      damaged_image(request_, ImageFormat::pnm, fmt::format("it has no number for {}", what));
    return value;
  }

  void read_values(Image& image, uint32_t white, bool is_text) {
    for (uint8_t& pixel : image.pixels) {
      uint32_t value = 0;
      if (is_text) {
        value = static_cast<uint32_t>(std::min<uint64_t>(number("a pixel"), 65536));
      } else {
        value = static_cast<uint8_t>(text_[at_++]);
        if (white > 255) value = value << 8 | static_cast<uint8_t>(text_[at_++]);
      }
      if (value > white)
        damaged_image(request_, ImageFormat::pnm,
                      fmt::format("a value is {}; its header says at most {}", value, white));
      pixel = static_cast<uint8_t>((value * 255 + white / 2) / white);
    }
  }
  void read_bits(Image& image, bool is_text) {
    for (int64_t y = 0; y < image.height; ++y) {
      for (int64_t x = 0; x < image.width; ++x) {
        bool black = false;
        if (is_text) {
          skip_space();
          if (at_ >= text_.size()) truncated_image(request_, ImageFormat::pnm);
          const char digit = text_[at_++];
          if (digit != '0' && digit != '1')
            damaged_image(request_, ImageFormat::pnm, "a pixel of its bitmap is neither 0 nor 1");
          black = digit == '1';
        } else {
          const size_t byte = at_ + static_cast<size_t>(x / 8);
          black = (static_cast<uint8_t>(text_[byte]) >> (7 - x % 8) & 1) != 0;
        }
        image.row(y)[x] = black ? 0 : 255;
      }
      if (!is_text) at_ += static_cast<size_t>((image.width + 7) / 8);
    }
  }

  const DecodeRequest& request_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

DecodedImage decode_pnm(const DecodeRequest& request) { return PnmReader(request).decode(); }

}  // namespace brrr::io
