#pragma once
// Writing an ONNX file: the inverse of onnx_file.h for what exporters make, which is tensors of
// numbers, nodes with attributes, graphs inside attributes, and no functions.

#include <string>

#include "formats/onnx/onnx_file.h"

namespace brrr::onnx {

enum class Placement {
  inside,    // weights in the file itself, which protocol buffers limit to 2 GiB
  external,  // weights in NAME.data beside it
};

/// The name of the file beside an ONNX file that holds its weights.
fs::path data_file_of(const fs::path& path);

/// Whether a model with its weights inside is larger than protocol buffers allow.
bool is_too_large(const ModelProto& model);

/// Writes a model; the names are replaced when all is written. Throws UserError for a file that
/// would be too large, and where it cannot be written.
void write_model(const fs::path& path, const ModelProto& model, Placement placement);

/// The bytes of a model with its weights inside.
std::string model_bytes(const ModelProto& model);

}  // namespace brrr::onnx
