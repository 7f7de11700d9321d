#pragma once
// Filling an engine's parameters from numbers that a function makes, and the memory that loading
// takes.

#include "runtime/engine.h"

namespace brrr {

/// Engine::load() of numbers that `weights` makes; they are rounded to the nearest number of the
/// parameter's dtype. One of which several derived weights are made is asked for several times.
void load_parameters(Engine& engine, const FloatWeights& weights);

/// About the bytes that loading takes of the host for a while: what a derived weight is made of,
/// where it is not lent.
int64_t loading_bytes(const Engine& engine);

}  // namespace brrr
