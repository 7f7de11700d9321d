#pragma once
// Filling an engine's parameters from f32 numbers, whatever they are stored in.

#include <functional>
#include <span>
#include <string_view>

#include "runtime/engine.h"

namespace brrr {

/// Calls weights(name, room) for each parameter; what it writes is rounded to the nearest number of
/// the parameter's dtype. A parameter in panels (ops/panels.h) goes by its own name and is written
/// as the matrix it is.
void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights);

}  // namespace brrr
