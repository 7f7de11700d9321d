#pragma once
// A batch for language models, as loaders make it.

#include "data/batch_source.h"

namespace brrr::test {

inline io::Batch token_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                             int64_t count) {
  const auto copy = [](auto ids) { return std::vector<int32_t>(ids.begin(), ids.end()); };
  return {{{"tokens", copy(tokens)}, {"targets", copy(targets)}}, count};
}

}  // namespace brrr::test
