#pragma once
// Choosing the next token from logits: temperature, top-k, top-p, all on the host in double.

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"

namespace brrr::infer {

struct Sampling {
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 200;       // 0: no limit
  double top_p = 1.0;        // smallest set of tokens whose probability reaches it
  uint32_t seed = 1337;
};

/// Throws UserError for values out of range.
void validate(const Sampling& sampling);

/// Deterministic in (sampling, sample number, position): the same seed gives the same text,
/// whatever else is generated beside it.
class Sampler {
 public:
  Sampler(const Sampling& sampling, uint32_t sample_number);
  /// Draws from logits [V]. Ties go to the smaller id.
  int32_t next(std::span<const float> logits);

 private:
  /// order_: the ids of the n largest logits, the largest first.
  void keep_likeliest(std::span<const float> logits, size_t n);

  Sampling sampling_;
  RngStream random_;
  std::vector<int32_t> order_;  // the ids to choose among, and their weights
  std::vector<double> weight_;
};

}  // namespace brrr::infer
