#pragma once
// Archives for tests.

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>

#include "base/errors.h"

namespace brrr::test {

inline std::string gzip_of(std::string_view text) {
  z_stream stream{};
  constexpr int kGzip = 16, kMemory = 8;
  BRRR_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzip, kMemory, Z_DEFAULT_STRATEGY) ==
             Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  BRRR_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string zstd_of(std::string_view text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  while (ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) != 0) {
  }
  packed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return packed;
}

}  // namespace brrr::test
