// libFuzzer target: any bytes taken as a token shard are refused with a UserError or read in
// bounds.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/errors.h"
#include "data/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto view = brrr::io::parse_shard(std::as_bytes(std::span(data, size)), "input");
    std::vector<int32_t> ids(static_cast<size_t>(view.tokens));
    view.read(0, ids);
    view.read(view.tokens, {});
    view.read(view.tokens - 1, std::span(ids).first(1));
  } catch (const brrr::UserError&) {
  }
  return 0;
}
