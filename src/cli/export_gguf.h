#pragma once
// brrr export MODEL --output FILE.gguf: a model as one file for llama.cpp.

#include <string>
#include <vector>

namespace brrr::cli {

/// `adapters` are merged into the model. `type`: the kind of file ("Q4_K_M"); "": as the weights
/// are stored. Throws UserError.
int export_gguf(const std::string& model, const std::vector<std::string>& adapters,
                const std::string& type, const std::string& output);

/// "F32, F16, ...": what `type` may be.
std::string gguf_types_text();

}  // namespace brrr::cli
