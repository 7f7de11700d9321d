#pragma once
// Filling an engine's parameters from f32 numbers, whatever they are stored in.

#include <functional>
#include <span>
#include <string_view>

#include "runtime/engine.h"

namespace brrr {

/// Calls weights(name, room) for each parameter; what it writes is rounded to the nearest number of
/// the parameter's dtype. A derived weight that takes the place of parameters is made of them; one
/// of which several weights are made is asked for several times.
void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights);

/// How parameters of 16 bits come: through f32, as load_parameters() takes them, or at once.
enum class Loading : uint8_t { through_f32, as_stored };

/// About the bytes that loading takes of the host for a while: a parameter in f32, or what a
/// derived weight is made of, where it was not lent.
int64_t loading_bytes(const Engine& engine, Loading how);

}  // namespace brrr
