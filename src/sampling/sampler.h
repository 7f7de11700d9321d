#pragma once
// Choosing the next token from logits: penalties of what was said, temperature, top-k, top-p,
// min-p, all on the host in double.

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/rng.h"

namespace brrr::infer {

struct Sampling {
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 200;       // 0: no limit
  double top_p = 1.0;        // smallest set of tokens whose probability reaches it
  uint32_t seed = 1337;
  double min_p = 0;  // of the likeliest token's probability: what is below is not chosen
  /// Logits of tokens that stand in the prompt or were made are divided by it, or multiplied where
  /// they are negative (Keskar et al. 2019). 1: none.
  double repetition_penalty = 1;
  /// Taken off the logits of tokens that were made: once, and for each time.
  double presence_penalty = 0, frequency_penalty = 0;
};

/// Beyond these a logit is hardly one any more.
inline constexpr double kLeastRepetitionPenalty = 0.01, kMostRepetitionPenalty = 100;

/// Throws UserError for values out of range.
void validate(const Sampling& sampling);

/// Deterministic in (sampling, sample number, position): the same seed gives the same text,
/// whatever else is generated beside it.
class Sampler {
 public:
  Sampler(const Sampling& sampling, uint32_t sample_number);
  /// Tokens of the prompt, which the repetition penalty counts.
  void read(std::span<const int32_t> prompt);
  /// Draws from logits [V]. Ties go to the smaller id.
  int32_t next(std::span<const float> logits);

 private:
  bool has_penalties() const;
  /// The logits without what the penalties take; in penalised_.
  std::span<const float> penalise(std::span<const float> logits);
  int32_t draw(std::span<const float> logits);
  /// order_: the ids of the n largest logits, the largest first.
  void keep_likeliest(std::span<const float> logits, size_t n);

  Sampling sampling_;
  RngStream random_;
  std::vector<int32_t> order_;  // the ids to choose among, and their weights
  std::vector<double> weight_;
  std::map<int32_t, int64_t> times_;  // that a token was made; 0: it stands in the prompt
  std::vector<float> penalised_;
};

}  // namespace brrr::infer
