#pragma once
// Low-precision copies of parameters as states: made once for an optimizer step, by the update
// itself, and read by every program that shares the parameters.

#include <string>
#include <string_view>

#include "passes/passes.h"

namespace brrr {

/// How the states that this pass makes are called; their role is Role::derived.
inline constexpr std::string_view kCopyPrefix = "copy:";

struct KeptCopies {
  Graph graph;
  /// What was given, and the nodes that make the copies out of the parameters: for whoever writes
  /// parameters from outside.
  Graph from_parameters;
};

/// What is computed from one f32 parameter alone in fewer bits (a cast, or a quantised weight, its
/// scale and its transpose) becomes a state "copy:<parameter>..." instead of a node. Where the
/// graph updates the parameter it also updates the copies: a cast, as it lies or in panels, as a
/// further result of the optimizer's node where the target runs that, anything else computed again
/// from the new parameter. Results stay bit-identical. After decompose,
/// before rematerialize.
KeptCopies keep_copies(const Graph& graph, const Target& target, const Graph& from_parameters,
                       Notes* notes = nullptr);

}  // namespace brrr
