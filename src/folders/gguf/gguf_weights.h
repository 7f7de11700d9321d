#pragma once
// The weights of a GGUF file as a WeightSource, by the names that Hugging Face's files have. Floats
// and blocks stay memory-mapped. Tensors that GGUF permutes are put in order when they are read;
// those that it transposes or shifts are converted to f32.

#include <memory>

#include "base/weight_source.h"
#include "formats/gguf/gguf_file.h"

namespace brrr::io {

/// Throws UserError, which names it, for an architecture that is not known, a tensor that the
/// architecture does not have, one of a type that is not read, and heads that do not divide a
/// tensor.
std::shared_ptr<const WeightSource> gguf_weights(std::shared_ptr<const GgufFile> file);

}  // namespace brrr::io
