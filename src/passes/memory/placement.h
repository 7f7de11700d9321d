#pragma once
// Offsets for buffers whose lifetimes are known: buffers that live at the same time never overlap.
// Each in turn gets the narrowest gap that is wide enough and free for its whole life, the lowest
// of equal ones; or the place behind everything where there is none.

#include <cstdint>
#include <span>
#include <vector>

namespace brrr {

/// `bytes` that are alive from step `first` to step `last`.
struct Lifetime {
  int64_t bytes;
  int32_t first, last;
};

struct Placement {
  std::vector<int64_t> offsets;  // [lifetime]
  int64_t bytes = 0;             // of the whole region
};

/// Takes the lifetimes as they come; quadratic in their number.
Placement place_in_order(std::span<const Lifetime> lifetimes);
/// The same for lifetimes that are sorted by their first step, in n log n.
Placement place_over_time(std::span<const Lifetime> lifetimes);

}  // namespace brrr
