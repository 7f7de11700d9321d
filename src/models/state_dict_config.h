#pragma once
// The configuration of a net of which there are tensors alone: a state dict of PyTorch.

#include <optional>
#include <string>

#include "base/weight_source.h"

namespace brrr::models {

/// The text of a config.json for a state dict whose names and shapes are those of torchvision's
/// ResNet (v1.5, ReLU) or of an EfficientNet (of timm, efficientnet_pytorch or torchvision);
/// nothing for another. Classes have numbers for names. A 3 x 3 stem of a ResNet is that of nets
/// for CIFAR, for pictures of 32 x 32. Throws UserError for names of such a net with tensors that
/// are missing or no weights of one.
std::optional<std::string> config_of_state_dict(const WeightSource& tensors);

}  // namespace brrr::models
