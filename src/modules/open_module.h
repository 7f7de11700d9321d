#pragma once
// Files that can be run by themselves.

#include <memory>

#include "base/file.h"
#include "runtime/runnable.h"

namespace brrr::modules {

/// Opens an ONNX file or a .brrr file, which its first bytes tell apart. Throws UserError.
std::shared_ptr<const Runnable> open_module(const fs::path& path);

}  // namespace brrr::modules
