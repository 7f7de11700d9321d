// The regime (compute, bandwidth, overhead) of kernels that are made for one, and the other regime
// that the same kernel has at another size. The only tests that need times; beside other programs
// they skip.
#include "insight/profile/verdict.h"

#include <gtest/gtest.h>

#include "base/host_load.h"
#include "insight/profile/profile.h"
#include "insight/profile_sample.h"
#include "ops/ops.h"
#include "passes/pipeline.h"

namespace brrr::insight {
namespace {

/// The regime in which a graph's kernels spend most of their time.
Bound regime(const Graph& graph, const Ceilings& ceilings, bool fuse) {
  PipelineOptions options;
  if (!fuse) options.disabled = {"fuse"};
  const auto workload = graph_workload(graph, options);
  workload->allocate();
  const Profile p = profile(*workload, ceilings, 0.05);
  std::array<double, kBounds> ms{};
  for (const Group& g : p.by_kind)
    for (size_t i = 0; i < kBounds; ++i) ms[i] += g.bound_ms[i];
  return static_cast<Bound>(std::max_element(ms.begin(), ms.end()) - ms.begin());
}

/// What the last of several measurements found, and what other programs took meanwhile.
struct Found {
  Bound regime;
  double other_processors;
};

/// Measures until the expected regime is found, six times at most; ceilings are measured anew
/// between two tries, because another program may have disturbed them.
Found measure_regime(Bound expected, const Graph& graph, bool fuse = true) {
  constexpr int kTries = 6;
  static Ceilings ceilings = measure_ceilings(int64_t{1} << 30, 0.02);
  HostLoad load;
  Bound found = regime(graph, ceilings, fuse);
  for (int tries = 1; found != expected && tries < kTries; ++tries) {
    ceilings = measure_ceilings(int64_t{1} << 30, 0.02);
    found = regime(graph, ceilings, fuse);
  }
  return {found, load.read().other_processors(machine_processors())};
}

/// Expects a regime of a graph. Beside other programs a wrong one proves nothing: skips.
#define EXPECT_REGIME(expected, ...)                                                  \
  do {                                                                                \
    const Found found = measure_regime(expected, __VA_ARGS__);                        \
    if (found.regime != (expected) && found.other_processors > kDisturbingProcessors) \
      GTEST_SKIP() << "other programs used the processors during the measurement";    \
    EXPECT_EQ(found.regime, expected);                                                \
  } while (false)

Graph square_product(int64_t n) {
  Graph g;
  g.output("c", matmul(g.input("a", {n, n}, DType::f32), g.input("b", {n, n}, DType::f32)));
  return g;
}

Graph chain(int64_t length, int64_t elements) {
  Graph g;
  Value x = g.input("x", {elements}, DType::f32), a = g.input("a", {elements}, DType::f32);
  for (int64_t i = 0; i < length; ++i) x = x * a;
  g.output("y", x);
  return g;
}

// Instrumented code spends its time elsewhere.
class Regimes : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(BRRR_SANITIZED)
    GTEST_SKIP() << "instrumented code is not measured";
#endif
  }
};

TEST_F(Regimes, ALargeProductComputesASmallOneIsOverhead) {
  EXPECT_REGIME(Bound::compute, square_product(768));
  EXPECT_REGIME(Bound::overhead, square_product(4));
}

TEST_F(Regimes, AThinProductWaitsForBytes) {
  Graph g;  // a vector times a matrix: two operations for every four bytes
  g.output("c",
           matmul(g.input("a", {1, 4096}, DType::f32), g.input("b", {4096, 8192}, DType::f32)));
  EXPECT_REGIME(Bound::bandwidth, g);
}

TEST_F(Regimes, ABigChainWaitsForBytesUntilItComputes) {
  EXPECT_REGIME(Bound::bandwidth, chain(4, 1 << 22));
  EXPECT_REGIME(Bound::overhead, chain(4, 8));
  EXPECT_REGIME(Bound::compute, chain(512, 1 << 20));  // fused: one pass, 512 products each
}

TEST_F(Regimes, AThousandTinyOpsAreOverheadLargeOnesAreNot) {
  EXPECT_REGIME(Bound::overhead, chain(1000, 16), false);
  EXPECT_REGIME(Bound::bandwidth, chain(20, 1 << 20), false);
}

TEST_F(Regimes, MeasuredCeilingsAreOrdered) {
  HostLoad load;
  const Ceilings c = measure_ceilings(int64_t{256} << 20, 0.01);
  if (load.read().other_processors(machine_processors()) > kDisturbingProcessors)
    GTEST_SKIP() << "other programs used the processors during the measurement";
  EXPECT_GT(c.f32, 1e9);
  ASSERT_GE(c.levels.size(), 2u);
  EXPECT_EQ(c.levels.back().name, "memory");
  EXPECT_GT(c.levels.front().read, c.levels.back().read);
  for (const MemoryLevel& l : c.levels) {
    EXPECT_GT(l.write, 0);
    EXPECT_LE(l.write, l.read);
  }
  EXPECT_GT(c.launch_seconds, 1e-9);
  EXPECT_LT(c.launch_seconds, 1e-3);
  EXPECT_GT(c.tick_seconds, 1e-10);
}

}  // namespace
}  // namespace brrr::insight
