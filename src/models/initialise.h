#pragma once
// Initial weights, by each parameter's record. A weight is a function of (seed, its name, its
// index): the order of parameters and the number of threads do not matter.

#include <functional>
#include <span>
#include <string_view>

#include "models/model.h"

namespace brrr::models {

void initialise(const ParameterInfo& parameter, uint32_t seed, std::span<float> out);

/// Initial values of the model's parameters by name, for load_parameters().
std::function<void(std::string_view name, std::span<float> out)> initial_weights(const Model& model,
                                                                                 uint32_t seed);

}  // namespace brrr::models
