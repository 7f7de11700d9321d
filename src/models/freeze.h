#pragma once
// Parameters that training leaves as they are: --freeze.

#include <set>
#include <string>
#include <vector>

#include "models/model.h"

namespace brrr::models {

/// The names of the parameters that `items` freeze. An item is a place in the model ("embed",
/// "h.3", "h.0-5", "norm", "head"), the name of a parameter, or its beginning up to a dot
/// ("model.layers.3.mlp"). A head that is tied to the embedding is frozen with it. Throws UserError
/// (exit 2) for an item that names nothing, with the nearest name, and where nothing is left to
/// train.
std::set<std::string> frozen_parameters(const Model& model, const std::vector<std::string>& items);

/// Marks these parameters of a loss graph: they get neither gradients nor moments.
void freeze(Graph& loss_graph, const std::set<std::string>& names);

}  // namespace brrr::models
