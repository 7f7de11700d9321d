#pragma once
// How much memory the programs of this process may take.

#include <string>

#include "base/memory.h"

namespace brrr::machine {

/// What a run on `device` may use: --memory-limit, or less where the system (of a GPU: its memory)
/// allows less. Throws UserError (exit 2) for a --memory-limit that the machine does not have.
MemoryLimit memory_budget(const std::string& device, const std::string& memory_limit);

/// Gives memory that nobody uses back to the system.
void trim_heap();

}  // namespace brrr::machine
