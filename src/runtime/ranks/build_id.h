#pragma once
// Identifies the build of the program, so that ranks of different builds refuse to work together.

#include <cstdint>

namespace brrr {

/// Returns the linker's build id, or a hash of the code if there is none; never 0. It is the same
/// for all processes that run the same file or a copy of it.
uint64_t program_build_id();

}  // namespace brrr
