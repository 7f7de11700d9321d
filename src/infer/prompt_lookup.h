#pragma once
// PromptLookup guesses the next tokens of a text: those that followed an earlier occurrence of its
// last tokens (prompt lookup decoding, Saxena 2023). The model verifies a guess in one step, at the
// cost of more rows, so guessing pauses while the acceptance rate is low.

#include <cstdint>
#include <span>
#include <vector>

namespace brrr::infer {

class PromptLookup {
 public:
  /// `most`: maximum number of tokens of a guess; 0: never guesses.
  explicit PromptLookup(int64_t most) : most_(most) {}

  /// Returns at most `room` tokens that may follow `text`, or none.
  std::vector<int32_t> guess(std::span<const int32_t> text, int64_t room);
  /// Updates the acceptance rate.
  void learn(int64_t guessed, int64_t right);

 private:
  int64_t most_;
  double rate_ = 0.5;  // acceptance rate, an exponential moving average
  int64_t pause_ = 0;  // steps until the next guess
};

}  // namespace brrr::infer
