#pragma once
// The two experiments of "Making Deep Learning Go Brrrr From First Principles" (He, 2022): how many
// multiplications cost what one costs, and how many small operations a second there are.

#include <span>

#include "insight/ladder/ladder.h"

namespace brrr::insight {

NamedLadder fusion_ladder();
NamedLadder overhead_ladder();

/// Where a chain of operations stops to be free: the number of them whose arithmetic alone takes as
/// long as one pass over memory. counts: ascending; ms: of a chain of so many. Nothing while
/// memory is the limit throughout.
std::optional<double> crossing(std::span<const int64_t> counts, std::span<const double> ms);

}  // namespace brrr::insight
