// Losses and gradients of large logits, by every instruction set.

#include "support/large_logits.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

class LargeLogits : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, LargeLogits, test::every_isa(), test::isa_of);

TEST_P(LargeLogits, LossesAndGradientsAreThoseOfTheDifferences) {
  test::check_large_logits(cpu_backend(), {2, 3, 37, 1500});
}

}  // namespace
}  // namespace brrr::cpu
