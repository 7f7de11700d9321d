#pragma once
// How much memory the programs of this process may take.

#include <string>

#include "base/memory.h"

namespace brrr::machine {

/// Bytes that a run on `device` may use: --memory-limit, or less if the control group, the free
/// memory or the GPU allows less. Throws UserError (exit 2) if --memory-limit exceeds the installed
/// memory.
MemoryLimit memory_budget(const std::string& device, const std::string& memory_limit);

/// Returns free heap pages to the operating system.
void trim_heap();

}  // namespace brrr::machine
