// libFuzzer target: any text taken as a loader's state is refused with a UserError, or survives a
// round trip.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "data/loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using brrr::io::LoaderState;
  try {
    const auto state =
        LoaderState::from_json(std::string_view(reinterpret_cast<const char*>(data), size));
    if (LoaderState::from_json(state.to_json()) != state) std::abort();
  } catch (const brrr::UserError&) {
  }
  return 0;
}
