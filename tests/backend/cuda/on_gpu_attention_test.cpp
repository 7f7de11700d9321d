// Attention of so many heads on a GPU of this machine that the kernels whose threads stay on their
// multiprocessor take several blocks of rows each, and wait for each other; skipped where there is
// no GPU. tests/backend/cuda_device runs the same check on the fake driver, on two multiprocessors.

#include "backend/cuda/device.h"
#include "backend/cuda/target.h"
#include "support/attention_ways.h"

namespace brrr::cuda {
namespace {

class OnGpuAttention : public testing::TestWithParam<test::ManyHeads> {
 protected:
  void SetUp() override {
    const LiveGpus live = live_gpus();
    std::string reason = live.gpus.empty() ? live.reason : missing_libraries();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (live.gpus[0].description.memory_bytes < int64_t{16} << 30)
      GTEST_SKIP() << "16 GiB of memory are needed";
  }
};

std::string name_of_case(const testing::TestParamInfo<test::ManyHeads>& info) {
  const test::ManyHeads& c = info.param;
  return fmt::format("{}_{}Heads_{}Tokens_{}{}", brrr::name_of(c.dtype), c.batches * c.heads,
                     c.length, c.width, c.causal ? "_Causal" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OnGpuAttention,
    testing::Values(test::ManyHeads{.batches = 50, .heads = 12, .length = 2048, .width = 64},
                    // Lengths that fill no tile.
                    test::ManyHeads{.batches = 5,
                                    .heads = 123,
                                    .length = 1999,
                                    .width = 64,
                                    .dtype = DType::f16,
                                    .causal = false},
                    test::ManyHeads{.batches = 20, .heads = 16, .length = 2048, .width = 128}),
    name_of_case);

TEST_P(OnGpuAttention, EveryWayOfManyHeads) {
  const Backend backend = backend_named("cuda");
  const test::WaysChecked done = test::WaysOfAttention(backend, GetParam()).check();
  test::tell(done);
  EXPECT_GE(done.ways, 2) << "nothing to compare with";
}

}  // namespace
}  // namespace brrr::cuda
