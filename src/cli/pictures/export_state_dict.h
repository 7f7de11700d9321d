#pragma once
// `brrr export --output FILE.safetensors`: the weights of a net for pictures by the
// names of torchvision (ResNet), timm or efficientnet_pytorch (EfficientNet).

#include <string>

namespace brrr::cli {

/// Writes the state dict that the library's class loads (load_state_dict). Throws UserError for a
/// model of text.
int export_state_dict(const std::string& model, const std::string& output);

}  // namespace brrr::cli
