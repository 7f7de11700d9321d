#pragma once
// An ONNX file as a module: any exporter's, opsets 1 to 28, functions inlined.

#include <memory>

#include "base/errors.h"
#include "formats/onnx/onnx_file.h"
#include "runtime/runnable.h"

namespace brrr::onnx {

/// Opens a file. Throws UserError for what is no ONNX file, or a newer one than is known; operators
/// that are not supported are refused by lower().
std::shared_ptr<const Runnable> open_module(const fs::path& path);
std::shared_ptr<const Runnable> open_module(std::shared_ptr<const File> file);

/// The newest version of ONNX's operators and of its files that is known.
inline constexpr int64_t kNewestOpset = 28, kNewestIr = 14;

}  // namespace brrr::onnx
