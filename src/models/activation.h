#pragma once
// The activation between the two products of an MLP: its names in config.json and its formula.

#include <string>
#include <vector>

#include "ops/ops.h"

namespace brrr::models {

/// gelu is the erf form, gelu_new the tanh form.
enum class Activation { gelu, gelu_new, relu, silu };

/// The spellings of each activation, in the order of the enumeration. config.json is written with
/// the first spelling.
const std::vector<std::vector<std::string>>& activation_choices();
/// x of any shape, element by element.
Value activated(Value x, Activation activation);

}  // namespace brrr::models
