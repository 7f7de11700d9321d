#pragma once
// The quantised forms in which a model's files hold its weights, for training of adapters
// (passes/adapters/add_adapters.h).

#include "base/weight_source.h"
#include "passes/adapters/add_adapters.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {

/// The forms of the parameters that a source holds as integers or blocks. `quantized`: names of all
/// parameters that its files hold as integers; one whose form is not supported gets an
/// empty BaseForm and is held as floats.
BaseForms forms_of_files(const WeightSource& weights, const ParameterSet* quantized = nullptr);

}  // namespace brrr::io
