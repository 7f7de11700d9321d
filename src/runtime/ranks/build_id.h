#pragma once
// Identifies the build of the program, so that ranks of different builds refuse to work together.

#include <cstdint>

namespace brrr {

/// Returns a hash that identifies the build of the running program: the linker's build id, or a
/// hash of the code if there is none. Copies of one executable have the same value. Never 0.
uint64_t program_build_id();

}  // namespace brrr
