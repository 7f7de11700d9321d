#pragma once
// Activations by the names of torch.nn, as files of sentence-transformers name them.

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace brrr::models {

/// x of any shape, element by element.
using TorchActivation = Value (*)(Value x);

/// The activation of a class of torch.nn with its default arguments, by the class's whole name
/// ("torch.nn.modules.activation.Tanh") or its last part; null: there is none of that name.
TorchActivation torch_activation(std::string_view name);
/// The last parts of all names that torch_activation() knows, for messages.
std::string torch_activation_names();

}  // namespace brrr::models
