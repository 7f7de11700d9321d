#pragma once
// The activation between the two products of an MLP: its names in config.json and its formula.

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "ops/ops.h"

namespace brrr::models {

/// gelu is the erf form, gelu_new the tanh form.
enum class Activation { gelu, gelu_new, relu, silu };

/// The name that is written to config.json.
const std::string& name_of(Activation activation);
/// Each activation's spellings, the written one first, for OptionTable::choice.
const std::vector<std::vector<std::string>>& activation_choices();
/// The activation of a spelling that activation_choices() lists.
Activation activation_named(const std::string& spelling);
/// The value of `key`, `fallback` where it is absent or null. Throws UserError for a name that is
/// not among `supported`.
Activation read_activation(const ConfigReader& keys, const char* key, Activation fallback,
                           const std::vector<Activation>& supported = {
                               Activation::gelu, Activation::gelu_new, Activation::relu,
                               Activation::silu});

/// x of any shape, element by element.
Value activated(Value x, Activation activation);

}  // namespace brrr::models
