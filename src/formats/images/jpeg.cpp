// libjpeg-turbo reports errors by a call that must not return. Ours jumps (longjmp) out of the
// library; between setjmp and there are only frames of the library and plain functions of this file
// that hold no object with a destructor.

#include <csetjmp>
#include <cstdio>
#include <cstring>
// After cstdio:
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>

#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

/// A progressive file of a few bytes can ask for thousands of passes over a large picture.
constexpr int kMostScans = 500;
/// Columns beside a part that are decoded with it: interpolation of colours reads its neighbours.
constexpr JDIMENSION kMarginColumns = 32;

struct JpegState {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = {};
  bool at_end = false;      // the library asked for bytes behind the last
  bool lacks_data = false;  // and decoded as if there were some
  bool has_too_many_scans = false;
};

JpegState& state_of(j_common_ptr info) { return *static_cast<JpegState*>(info->client_data); }

[[noreturn]] void jump_out(j_common_ptr info) {
  JpegState& state = state_of(info);
  info->err->format_message(info, state.message);
  std::longjmp(state.jump, 1);
}

void note_message(j_common_ptr info, int level) {
  JpegState& state = state_of(info);
  if (level < 0 && info->err->msg_code == JWRN_HIT_MARKER && state.at_end) state.lacks_data = true;
}

constexpr JOCTET kEndOfImage[] = {0xff, JPEG_EOI};

boolean give_end(j_decompress_ptr info) {
  state_of(reinterpret_cast<j_common_ptr>(info)).at_end = true;
  info->src->next_input_byte = kEndOfImage;
  info->src->bytes_in_buffer = sizeof kEndOfImage;
  return TRUE;
}

void skip_bytes(j_decompress_ptr info, long bytes) {
  if (bytes <= 0) return;
  const auto skipped = static_cast<size_t>(bytes);
  if (skipped > info->src->bytes_in_buffer) {
    give_end(info);
    return;
  }
  info->src->next_input_byte += skipped;
  info->src->bytes_in_buffer -= skipped;
}

void limit_scans(j_common_ptr info) {
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= kMostScans) return;
  state_of(info).has_too_many_scans = true;
  std::longjmp(state_of(info).jump, 1);
}

/// Makes the decoder, which is destroyed with `state`'s owner, and reads the header.
bool read_jpeg_header(JpegState& state, std::span<const std::byte> bytes) {
  state.info.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = &jump_out;
  state.errors.emit_message = &note_message;
  state.info.client_data = &state;
  if (setjmp(state.jump) != 0) return false;
  jpeg_create_decompress(&state.info);
  state.progress.progress_monitor = &limit_scans;
  state.info.progress = &state.progress;
  state.source.init_source = [](j_decompress_ptr) {};
  state.source.fill_input_buffer = &give_end;
  state.source.skip_input_data = &skip_bytes;
  state.source.resync_to_restart = &jpeg_resync_to_restart;
  state.source.term_source = [](j_decompress_ptr) {};
  state.source.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  state.source.bytes_in_buffer = bytes.size();
  state.info.src = &state.source;
  jpeg_save_markers(&state.info, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&state.info, TRUE);
  return true;
}

bool start_jpeg(JpegState& state) {
  if (setjmp(state.jump) != 0) return false;
  switch (state.info.jpeg_color_space) {
    case JCS_GRAYSCALE:
      state.info.out_color_space = JCS_GRAYSCALE;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      state.info.out_color_space = JCS_CMYK;
      break;
    default:
      state.info.out_color_space = JCS_RGB;
  }
  jpeg_start_decompress(&state.info);
  return true;
}

/// Reads rows [top, top + rows) of columns that begin at or before `left`. `columns` gets the first
/// column and the number of columns of each row in `to`.
struct ColumnRange {
  JDIMENSION first = 0, count = 0;
};
bool crop_jpeg(JpegState& state, ColumnRange& columns, JDIMENSION top) {
  if (setjmp(state.jump) != 0) return false;
  if (columns.count < state.info.output_width)
    jpeg_crop_scanline(&state.info, &columns.first, &columns.count);
  if (top > 0) jpeg_skip_scanlines(&state.info, top);
  return true;
}
bool read_jpeg_row(JpegState& state, JSAMPLE* to) {
  if (setjmp(state.jump) != 0) return false;
  JSAMPROW row = to;
  jpeg_read_scanlines(&state.info, &row, 1);
  return true;
}
bool read_jpeg_rows(JpegState& state, JSAMPLE* to, size_t row_bytes, JDIMENSION rows) {
  if (setjmp(state.jump) != 0) return false;
  constexpr JDIMENSION kAtOnce = 16;
  JSAMPROW list[kAtOnce];
  const JDIMENSION end = state.info.output_scanline + rows, begin = state.info.output_scanline;
  while (state.info.output_scanline < end) {
    const JDIMENSION at = state.info.output_scanline;
    const JDIMENSION count = std::min(kAtOnce, end - at);
    for (JDIMENSION i = 0; i < count; ++i) list[i] = to + (at - begin + i) * row_bytes;
    jpeg_read_scanlines(&state.info, list, count);
  }
  return true;
}

/// Ink, inverted as Adobe's programs write it, to light, as Pillow converts it.
void light_of_ink(const JSAMPLE* ink, uint8_t* light, int64_t pixels) {
  for (int64_t i = 0; i < pixels; ++i, ink += 4, light += 3)
    for (int c = 0; c < 3; ++c) {
      const int black = ink[3];
      const int product = (255 - ink[c]) * black + 128;
      light[c] = static_cast<uint8_t>(std::max(0, black - ((product >> 8) + product) / 256));
    }
}

class JpegReader {
 public:
  explicit JpegReader(const DecodeRequest& request) : request_(request) {}
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&state_.info); }

  DecodedImage decode() {
    require(read_jpeg_header(state_, request_.bytes));
    DecodedImage decoded;
    decoded.file_width = state_.info.image_width;
    decoded.file_height = state_.info.image_height;
    check_image_size(request_, state_.info.image_width, state_.info.image_height);
    for (auto* m = state_.info.marker_list; m != nullptr; m = m->next)
      if (m->data_length >= 6 && std::memcmp(m->data, "Exif\0\0", 6) == 0) {
        decoded.orientation = exif_orientation(std::as_bytes(std::span(m->data, m->data_length)));
        break;
      }
    if (request_.header_only) return decoded;
    // The library would interpolate what a file without its end lacks, and say so only in a
    // warning. A file of several passes says nothing at all: its picture would be blurred.
    require(start_jpeg(state_));
    if (state_.at_end && jpeg_has_multiple_scans(&state_.info))
      truncated_image(request_, ImageFormat::jpeg);
    read_pixels(decoded);
    if (state_.lacks_data) truncated_image(request_, ImageFormat::jpeg);
    return decoded;
  }

 private:
  void require(bool done) const {
    if (done) return;
    if (state_.has_too_many_scans)
      damaged_image(request_, ImageFormat::jpeg, "it has too many passes");
    if (state_.at_end) truncated_image(request_, ImageFormat::jpeg);
    damaged_image(request_, ImageFormat::jpeg, state_.message);
  }

  void read_pixels(DecodedImage& decoded) {
    const PixelBox all{0, 0, decoded.file_width, decoded.file_height};
    const PixelBox part = request_.part != nullptr ? *request_.part : all;
    const int components = state_.info.output_components;
    Image& image = decoded.image;
    image.width = part.width;
    image.height = part.height;
    image.channels = components == 1 ? 1 : 3;
    const auto left = static_cast<JDIMENSION>(part.left);
    ColumnRange columns;
    columns.first = left > kMarginColumns ? left - kMarginColumns : 0;
    const auto right = std::min(static_cast<JDIMENSION>(part.left + part.width) + kMarginColumns,
                                state_.info.output_width);
    columns.count = right - columns.first;
    require(crop_jpeg(state_, columns, static_cast<JDIMENSION>(part.top)));
    image.pixels.resize(image.row_bytes() * static_cast<size_t>(part.height));
    const bool whole_rows = columns.count == static_cast<JDIMENSION>(part.width);
    if (whole_rows && components == image.channels) {
      require(read_jpeg_rows(state_, image.pixels.data(), image.row_bytes(),
                             static_cast<JDIMENSION>(part.height)));
      return;
    }
    std::vector<JSAMPLE> row(static_cast<size_t>(state_.info.output_width) * components);
    const JSAMPLE* from = row.data() + static_cast<size_t>(left - columns.first) * components;
    for (int64_t y = 0; y < part.height; ++y) {
      require(read_jpeg_row(state_, row.data()));
      if (components == 4)
        light_of_ink(from, image.row(y), image.width);
      else
        std::copy_n(from, image.row_bytes(), image.row(y));
    }
  }

  const DecodeRequest& request_;
  JpegState state_;
};

}  // namespace

DecodedImage decode_jpeg(const DecodeRequest& request) { return JpegReader(request).decode(); }

}  // namespace brrr::io
