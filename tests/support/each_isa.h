#pragma once
// Tests that run once for each instruction set: kernels are limited to it, and the test is skipped
// where the machine lacks it.

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/threads/thread_team.h"
#include "support/long_proof.h"

namespace brrr::test {

class EachIsa : public testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    cpu::best_isa();  // applies BRRR_ISA before the first limit
    if (GetParam() > cpu::machine_isa())
      GTEST_SKIP() << "this machine has no " << cpu::isa_name(GetParam());
    cpu::limit_isa(GetParam());
  }
  void TearDown() override {
    cpu::limit_isa(cpu::best_isa());
    set_thread_count(usable_processors());
  }
  /// All of a long list on the best instruction set of this machine, `count` of it on the others,
  /// which run the same source. Under the sanitizers, a third of `count` on every instruction set.
  template <typename T>
  std::vector<T> cases_for(const std::vector<T>& cases, size_t count) const {
    const bool whole = GetParam() == cpu::machine_isa() && !is_sanitized();
    const size_t some = is_sanitized() ? std::max<size_t>(2, count / 3) : count;
    return whole ? cases : sampled(cases, some, cpu::isa_name(GetParam()));
  }
};

/// For INSTANTIATE_TEST_SUITE_P(Isa, Suite, every_isa(), isa_of).
inline auto every_isa() {
  return testing::ValuesIn(cpu::all_isas().begin(), cpu::all_isas().end());
}
inline std::string isa_of(const testing::TestParamInfo<cpu::Isa>& row) {
  return std::string(cpu::isa_name(row.param));
}

}  // namespace brrr::test
