#pragma once
// brrr export MODEL --output FILE.gguf: a model as one file for llama.cpp.

#include <string>
#include <vector>

namespace brrr::cli {

/// Writes a GGUF file of the model with `adapters` merged into it. `type` is the quantisation type
/// of the file ("Q4_K_M"); "" keeps the types in which the weights are stored. Throws UserError.
int export_gguf(const std::string& model, const std::vector<std::string>& adapters,
                const std::string& type, const std::string& output);

/// "F32, F16, ...": what `type` may be.
std::string gguf_types_text();

}  // namespace brrr::cli
