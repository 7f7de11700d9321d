#pragma once
// Initial weights, by each parameter's record. A weight is a function of (seed, its name, its
// index): the order of parameters and the number of threads do not matter.

#include <memory>
#include <span>

#include "base/weight_source.h"
#include "models/model.h"

namespace brrr::models {

void initialise(const ParameterInfo& parameter, uint32_t seed, std::span<float> out);

/// Initial values of the model's parameters by name, for load_parameters().
FloatWeights initial_weights(const Model& model, uint32_t seed);

/// The parameters of a model as a source: views of those that `given` has, which is kept, and
/// numbers that `make` makes of the others.
std::shared_ptr<const WeightList> made_weights(const Model& model, FloatWeights make,
                                               std::shared_ptr<const WeightSource> given = nullptr);

}  // namespace brrr::models
