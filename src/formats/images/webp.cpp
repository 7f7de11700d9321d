#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>

#include "formats/images/decoders.h"

namespace brrr::io {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
struct DeleteAnimDecoder {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

int webp_orientation(const WebPData& data) {
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  WebPChunkIterator chunk{};
  if (!demuxer || WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk) == 0) return 1;
  const int orientation =
      exif_orientation(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

/// The first picture of an animation, on the canvas that it begins with.
void decode_first_frame(const DecodeRequest& request, const WebPData& data, Image& image) {
  WebPAnimDecoderOptions options;
  BRRR_CHECK(WebPAnimDecoderOptionsInit(&options) != 0, "libwebp");
  options.color_mode = MODE_RGBA;
  const std::unique_ptr<WebPAnimDecoder, DeleteAnimDecoder> decoder(
      WebPAnimDecoderNew(&data, &options));
  uint8_t* canvas = nullptr;
  int milliseconds = 0;
  if (!decoder || WebPAnimDecoderGetNext(decoder.get(), &canvas, &milliseconds) == 0)
    damaged_image(request, ImageFormat::webp, "its first picture cannot be decoded");
  WebPAnimInfo info;
  BRRR_CHECK(WebPAnimDecoderGetInfo(decoder.get(), &info) != 0, "libwebp");
  BRRR_CHECK(info.canvas_width == image.width && info.canvas_height == image.height, "{} x {}",
             info.canvas_width, info.canvas_height);
  const size_t pixels = image.pixels.size() / 3;
  for (size_t i = 0; i < pixels; ++i) std::memcpy(&image.pixels[3 * i], canvas + 4 * i, 3);
}

}  // namespace

DecodedImage decode_webp(const DecodeRequest& request) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(request.bytes.data());
  const size_t size = request.bytes.size();
  const auto require = [&](VP8StatusCode status) {
    if (status == VP8_STATUS_OK) return;
    if (status == VP8_STATUS_NOT_ENOUGH_DATA) truncated_image(request, ImageFormat::webp);
    if (status == VP8_STATUS_OUT_OF_MEMORY)
      user_error("{}: not enough memory for the picture", request.name);
    damaged_image(request, ImageFormat::webp,
                  status == VP8_STATUS_UNSUPPORTED_FEATURE ? "it uses an unknown feature"
                                                           : "its bytes are no WebP stream");
  };
  WebPBitstreamFeatures features;
  require(WebPGetFeatures(bytes, size, &features));
  check_image_size(request, static_cast<uint64_t>(features.width),
                   static_cast<uint64_t>(features.height));
  DecodedImage decoded;
  decoded.file_width = features.width;
  decoded.file_height = features.height;
  const WebPData data{bytes, size};
  decoded.orientation = webp_orientation(data);
  if (request.header_only) return decoded;
  Image& image = decoded.image;
  image.width = features.width;
  image.height = features.height;
  image.channels = 3;
  image.pixels.resize(image.row_bytes() * static_cast<size_t>(image.height));
  if (features.has_animation != 0) {
    decode_first_frame(request, data, image);
    return decoded;
  }
  WebPDecoderConfig config;
  BRRR_CHECK(WebPInitDecoderConfig(&config) != 0, "libwebp");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data();
  config.output.u.RGBA.stride = static_cast<int>(image.row_bytes());
  config.output.u.RGBA.size = image.pixels.size();
  require(WebPDecode(bytes, size, &config));
  return decoded;
}

}  // namespace brrr::io
