// Places of buffers: what lives at the same time lies apart, and the fast way finds the same
// places.
#include "passes/memory/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "support/tensors.h"

namespace brrr {
namespace {

// Few sizes in every other list, so that gaps are equal and buffers side by side.
std::vector<Lifetime> random_lifetimes(uint32_t seed) {
  RngStream rng({seed, 0}, 0);
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(rng.next_u32() % n); };
  const auto steps = static_cast<uint32_t>(1 + below(60));
  std::vector<Lifetime> lifetimes;
  for (int i = below(120); i >= 0; --i) {
    const int32_t first = below(steps) - 1;
    lifetimes.push_back({64 * (1 + below(seed % 2 == 0 ? 3 : 50)), first,
                         first + below(below(4) == 0 ? steps : 4)});
  }
  return lifetimes;
}

void expect_apart(const std::vector<Lifetime>& lifetimes, const Placement& placement) {
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const Lifetime& a = lifetimes[i];
    EXPECT_LE(placement.offsets[i] + a.bytes, placement.bytes);
    for (size_t j = 0; j < i; ++j) {
      const Lifetime& b = lifetimes[j];
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool apart = placement.offsets[i] + a.bytes <= placement.offsets[j] ||
                         placement.offsets[j] + b.bytes <= placement.offsets[i];
      EXPECT_TRUE(apart || !together) << i << " and " << j;
    }
  }
}

TEST(Placement, OverTimeIsThatInOrder) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    std::vector<Lifetime> lifetimes = random_lifetimes(seed);
    expect_apart(lifetimes, place_in_order(lifetimes));
    std::stable_sort(lifetimes.begin(), lifetimes.end(),
                     [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    const Placement expected = place_in_order(lifetimes), found = place_over_time(lifetimes);
    ASSERT_EQ(found.offsets, expected.offsets);
    EXPECT_EQ(found.bytes, expected.bytes);
    expect_apart(lifetimes, found);
  }
}

TEST(Placement, OfNothingIsNothing) {
  EXPECT_EQ(place_in_order({}).bytes, 0);
  EXPECT_EQ(place_over_time({}).bytes, 0);
}

}  // namespace
}  // namespace brrr
