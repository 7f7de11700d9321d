#pragma once
// Whether what a benchmark computed are numbers of the usual kind. Arithmetic on subnormal numbers
// takes up to a hundred times as long on many processors, and NaN and infinities take short cuts,
// so times of such results say nothing about a kernel.

#include <span>
#include <string>

#include "runtime/engine.h"

namespace brrr::insight {

/// States and weights may all be zero; results that are have vanished on the way.
enum class Zeros { pass, refused };

/// Throws UserError where a float is NaN or infinite, where more than one in a thousand is
/// subnormal, or where all are zero. `what` opens the message ("fusion: x*a"). Integers pass, and
/// so do subnormal f16, which are computed as normal f32.
void check_numbers(const std::string& what, DType dtype, std::span<const std::byte> bytes,
                   Zeros zeros = Zeros::refused);

/// The same for all outputs of a program that has run.
void check_outputs(const std::string& what, Engine& engine, size_t program);
/// The same for all states of an engine that are floats in rows.
void check_states(const std::string& what, const Engine& engine);

}  // namespace brrr::insight
