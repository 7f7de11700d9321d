#pragma once
// `brrr export --output FILE.safetensors`: the weights of a net by torchvision's names.

#include <string>

namespace brrr::cli {

/// Writes the state dict that torchvision's class loads (load_state_dict). Throws UserError for a
/// model that torchvision does not have.
int export_state_dict(const std::string& model, const std::string& output);

}  // namespace brrr::cli
