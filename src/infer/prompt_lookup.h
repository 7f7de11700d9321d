#pragma once
// PromptLookup: guesses the next tokens of a text from what followed the last tokens earlier in it
// (Saxena 2023, prompt lookup decoding). A guess costs rows of products; where too few guesses are
// right it pauses.

#include <cstdint>
#include <span>
#include <vector>

namespace brrr::infer {

class PromptLookup {
 public:
  /// `most`: tokens of a guess; 0: never guesses.
  explicit PromptLookup(int64_t most) : most_(most) {}

  /// Returns at most `room` tokens that may follow `text`; often none.
  std::vector<int32_t> guess(std::span<const int32_t> text, int64_t room);
  /// Learns how many of the guessed tokens were right.
  void learn(int64_t guessed, int64_t right);

 private:
  int64_t most_;
  double rate_ = 0.5;  // share of guessed tokens that are right, the recent ones weigh more
  int64_t pause_ = 0;  // steps until the next guess
};

}  // namespace brrr::infer
