// libpng reports errors by a call that must not return. Ours jumps (longjmp) out of the library;
// between setjmp and there are only frames of the library and plain functions of this file that
// hold no object with a destructor.

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump{};
  std::span<const std::byte> rest;
  bool at_end = false;
  char message[128] = {};
};

[[noreturn]] void png_jump_out(png_structp png, png_const_charp message) {
  auto& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.message, sizeof state.message, "%s", message);
  std::longjmp(state.jump, 1);
}
void png_say_nothing(png_structp, png_const_charp) {}

void give_png_bytes(png_structp png, png_bytep to, size_t bytes) {
  auto& state = *static_cast<PngState*>(png_get_io_ptr(png));
  if (bytes > state.rest.size()) {
    state.at_end = true;
    png_error(png, "it ends too early");
  }
  std::memcpy(to, state.rest.data(), bytes);
  state.rest = state.rest.subspan(bytes);
}

bool read_png_header(PngState& state) {
  state.png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, &png_jump_out, &png_say_nothing);
  if (state.png == nullptr) return false;
  if (setjmp(state.jump) != 0) return false;
  state.info = png_create_info_struct(state.png);
  if (state.info == nullptr) return false;
  png_set_read_fn(state.png, &state, &give_png_bytes);
  // Sizes have a limit of their own; a text of a file may not unpack to more than a megabyte.
  png_set_user_limits(state.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_chunk_malloc_max(state.png, 8 << 20);
  png_set_keep_unknown_chunks(state.png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  png_read_info(state.png, state.info);
  return true;
}

/// Everything becomes 8 bits, grey or red, green and blue, without transparency.
bool start_png(PngState& state) {
  if (setjmp(state.jump) != 0) return false;
  const auto colours = png_get_color_type(state.png, state.info);
  if (png_get_bit_depth(state.png, state.info) == 16) png_set_strip_16(state.png);
  if (colours == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(state.png);
  if (colours == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(state.png);
  png_set_strip_alpha(state.png);
  png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  return true;
}

bool read_png_rows(PngState& state, png_bytepp rows) {
  if (setjmp(state.jump) != 0) return false;
  png_read_image(state.png, rows);
  return true;
}

/// What stands behind the pixels: EXIF may. A file that ends after its pixels is taken.
bool read_png_end(PngState& state) {
  if (setjmp(state.jump) != 0) return false;
  png_read_end(state.png, state.info);
  return true;
}

int png_orientation(PngState& state) {
  png_uint_32 size = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(state.png, state.info, &size, &exif) == 0) return 1;
  return exif_orientation(std::as_bytes(std::span(exif, size)));
}

class PngReader {
 public:
  explicit PngReader(const DecodeRequest& request) : request_(request) {
    state_.rest = request.bytes;
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&state_.png, &state_.info, nullptr); }

  DecodedImage decode() {
    require(read_png_header(state_));
    DecodedImage decoded;
    Image& image = decoded.image;
    decoded.file_width = image.width = png_get_image_width(state_.png, state_.info);
    decoded.file_height = image.height = png_get_image_height(state_.png, state_.info);
    check_image_size(request_, image.width, image.height);
    decoded.orientation = png_orientation(state_);
    if (request_.header_only) return decoded;
    require(start_png(state_));
    image.channels = png_get_channels(state_.png, state_.info);
    BRRR_CHECK(image.channels == 1 || image.channels == 3, "{} channels", image.channels);
    BRRR_CHECK(png_get_rowbytes(state_.png, state_.info) == image.row_bytes());
    image.pixels.resize(image.row_bytes() * static_cast<size_t>(image.height));
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < image.height; ++y) rows.push_back(image.row(y));
    require(read_png_rows(state_, rows.data()));
    if (read_png_end(state_) && decoded.orientation == 1)
      decoded.orientation = png_orientation(state_);
    return decoded;
  }

 private:
  void require(bool done) const {
    if (done) return;
    if (state_.at_end) truncated_image(request_, ImageFormat::png);
    damaged_image(request_, ImageFormat::png, state_.message);
  }

  const DecodeRequest& request_;
  PngState state_;
};

}  // namespace

DecodedImage decode_png(const DecodeRequest& request) { return PngReader(request).decode(); }

}  // namespace brrr::io
