#pragma once
// Identifies the build of the program, so that ranks of different builds refuse to work together.

#include <cstdint>

namespace brrr {

/// Returns a nonzero hash that identifies the build of the running program: the linker's build id,
/// or a hash of the machine code if the executable has no build id. Copies of one executable have
/// the same value.
uint64_t program_build_id();

}  // namespace brrr
