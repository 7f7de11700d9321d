#pragma once
// What a model of initial weights generates, for tests that compile it in several ways.

#include <cstdlib>
#include <vector>

#include "backend/cpu/target.h"
#include "infer/generator.h"
#include "models/initialise.h"
#include "sampling/sampler.h"

namespace brrr::test {

/// 60 sampled tokens behind a prompt of several, which is a product of several rows; without the
/// pass `disabled` where it is not empty.
inline std::vector<int32_t> generated(const models::ModelPtr& model,
                                      const infer::GeneratorOptions& options,
                                      const char* disabled = "") {
  if (*disabled != '\0') ::setenv("BRRR_DISABLE_PASS", disabled, 1);
  infer::Generator generator(model, cpu::cpu_backend(),
                             models::made_weights(*model, models::initial_weights(*model, 5)),
                             options);
  infer::Sampling sampling;
  sampling.temperature = 1;
  std::vector<int32_t> tokens =
      generator.generate(std::vector<int32_t>{3, 1, 4, 1, 5}, 60, infer::Sampler(sampling, 11));
  ::unsetenv("BRRR_DISABLE_PASS");
  return tokens;
}

}  // namespace brrr::test
