#pragma once
// Identifies the build of the program, so that ranks of different builds refuse to work together.

#include <cstdint>

namespace brrr {

/// Identifies the program: the linker's build id, or a hash of the code if there is none. Never 0.
/// Processes that run the same file or copies of it get the same value.
uint64_t program_build_id();

}  // namespace brrr
