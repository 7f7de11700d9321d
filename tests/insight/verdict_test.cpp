// What a verdict is of given ceilings. tests/measured/ asks for those of this machine.
#include "insight/profile/verdict.h"

#include <gtest/gtest.h>

#include "insight/profile_sample.h"

namespace brrr::insight {
namespace {

TEST(Verdict, TheLongestOfTheThreeTimes) {
  const Ceilings c = sample_ceilings();
  const Verdict product = judge({200e6, 1e6, 1e6, DType::f32}, c, 3e-3);
  EXPECT_EQ(product.bound, Bound::compute);
  EXPECT_NEAR(product.ceiling_seconds, 2e-3, 1e-9);
  EXPECT_NEAR(product.fraction(4e-3), 0.5, 1e-9);
  // 30 MB do not fit into L3: read at 20, written at 10 GB/s.
  const Verdict copy = judge({0, 15e6, 15e6, DType::f32}, c, 1);
  EXPECT_EQ(copy.bound, Bound::bandwidth);
  EXPECT_NEAR(copy.ceiling_seconds, 15e6 / 20e9 + 15e6 / 10e9, 1e-12);
  // 1 MB in L2 is ten times as fast.
  EXPECT_NEAR(judge({0, 5e5, 5e5, DType::f32}, c, 1).ceiling_seconds, 1e6 / 200e9, 1e-12);
  // Faster than starting the team: it was not started.
  EXPECT_NEAR(judge({10, 100, 100, DType::f32}, c, 1e-6).ceiling_seconds, 1e-7, 1e-12);
  EXPECT_NEAR(judge({10, 100, 100, DType::f32}, c, 1e-5).ceiling_seconds, 2.1e-6, 1e-12);
}

TEST(Verdict, NodesWithoutAKernelHaveOneOfTheirOwn) {
  const Ceilings c = sample_ceilings();
  Work work{0, 15e6, 15e6, DType::f32};
  work.is_interpreted = true;
  const Verdict v = judge(work, c, 1);
  EXPECT_EQ(v.bound, Bound::reference);
  EXPECT_NEAR(v.ceiling_seconds, 15e6 / 20e9 + 15e6 / 10e9, 1e-12) << "a kernel's ceiling";
  EXPECT_EQ(phrase_of(v.bound), "reference loops");
}

TEST(Verdict, ProductsOfShortFloatsHaveTheCeilingOfTheirUnit) {
  Ceilings c = sample_ceilings();
  EXPECT_EQ(c.compute(DType::bf16), 100e9) << "no unit: computed in f32";
  c.bf16 = 900e9;
  EXPECT_EQ(c.compute(DType::bf16), 900e9);
  EXPECT_EQ(c.compute(DType::f16), 100e9);
  EXPECT_EQ(c.compute(DType::f32), 100e9);
}

}  // namespace
}  // namespace brrr::insight
