#pragma once
// Tests that need a GPU of this machine and NVIDIA's libraries; without them they are skipped, with
// the reason.

#include <gtest/gtest.h>

#include <string>

#include "backend/cuda/device.h"

namespace brrr::test {

class OnGpuTest : public testing::Test {
 protected:
  // Opening a GPU once keeps its context: making one takes longer than most of these tests.
  static void SetUpTestSuite() {
    if (const cuda::LiveGpus live = cuda::live_gpus();
        !live.gpus.empty() && cuda::missing_libraries().empty())
      static_cast<void>(cuda::open_gpu(0, live.gpus[0].description).release());
  }
  void SetUp() override {
    const cuda::LiveGpus live = cuda::live_gpus();
    const std::string reason = live.gpus.empty() ? live.reason : cuda::missing_libraries();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace brrr::test
