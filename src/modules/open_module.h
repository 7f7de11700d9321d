#pragma once
// Files that can be run by themselves.

#include <memory>

#include "base/file.h"
#include "runtime/runnable.h"

namespace brrr::modules {

/// Opens an ONNX file, a .brrr file, or silero's detector as .safetensors, which their content
/// tells apart. Throws UserError.
std::shared_ptr<const Runnable> open_module(const fs::path& path);

}  // namespace brrr::modules
