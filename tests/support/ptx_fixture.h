#pragma once
// A test whose kernels run on the PTX machine: it is skipped where NVRTC is not installed.

#include <gtest/gtest.h>

#include "support/cuda_emulator.h"
#include "support/nvrtc.h"

namespace brrr::test {

class OnPtxMachine : public testing::Test {
 protected:
  void SetUp() override {
    if (Nvrtc::get() == nullptr) GTEST_SKIP() << "libnvrtc is not installed";
    before_ = set_emulation(Emulation::ptx);
    is_set_ = true;
  }
  void TearDown() override {
    if (is_set_) set_emulation(before_);
  }

 private:
  Emulation before_{};
  bool is_set_ = false;
};

}  // namespace brrr::test
