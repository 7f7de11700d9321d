#pragma once
// Translates the metadata of a GGUF file to the text of a Hugging Face config.json, which each
// architecture then parses with its own limits and errors.

#include <optional>
#include <string>
#include <vector>

#include "folders/gguf/gguf_names.h"
#include "formats/gguf/gguf_file.h"

namespace brrr::io {

/// Throws UserError for a file without general.architecture, or with one that is not known.
const GgufArchitecture& gguf_architecture(const GgufFile& file);

/// Returns the text of a config.json for the file's model. Throws UserError for a metadata key that
/// is missing or has the wrong type, and for settings that a config.json cannot express.
std::string gguf_config(const GgufFile& file);

/// The tokens that end an answer: those that keys name, and control tokens by the names that
/// llama.cpp knows ("<|im_end|>"). Ascending.
std::vector<int64_t> gguf_ends_of_text(const GgufFile& file);

}  // namespace brrr::io
