#pragma once
// Filling an engine's parameters from f32 numbers, whatever they are stored in.

#include <functional>
#include <span>
#include <string_view>

#include "runtime/engine.h"

namespace brrr {

/// weights(name, room) writes the f32 values of a parameter.
using FloatWeights = std::function<void(std::string_view, std::span<float>)>;

/// Calls `weights` for each parameter; what it writes is rounded to the nearest number of the
/// parameter's dtype. A derived weight that takes the place of parameters is made of them; one
/// of which several weights are made is asked for several times.
void load_parameters(Engine& engine, const FloatWeights& weights);
/// The same, and the engine keeps `weights`: parameters and derived weights that later programs
/// bring are filled before the first run of the program. For engines whose programs are compiled
/// when a size is first asked for.
void load_and_keep(Engine& engine, FloatWeights weights);

/// How parameters of 16 bits come: through f32, as load_parameters() takes them, or at once.
enum class Loading : uint8_t { through_f32, as_stored };

/// About the bytes that loading takes of the host for a while: a parameter in f32, or what a
/// derived weight is made of, where it was not lent.
int64_t loading_bytes(const Engine& engine, Loading how);

}  // namespace brrr
