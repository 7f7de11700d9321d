#pragma once
// Tells builds of the program apart, so that ranks that run different ones refuse to work together.

#include <cstdint>

namespace brrr {

/// The same for all processes that run the same file, also from copies of it on other hosts; never
/// 0. It is the linker's build id, or a hash of the code where there is none.
uint64_t program_build_id();

}  // namespace brrr
