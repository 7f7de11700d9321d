#pragma once
// How a model continues a text, whoever runs its programs: token by token through a window. When
// the window is full, the older half is forgotten and the rest is read again. Generation
// (infer/generator.h) and the samples of a run that trains (train/text_samples.h) share it.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sampling/sampler.h"

namespace brrr::infer {

/// How many tokens of a text that is longer than `context` are read: its last half.
inline int64_t kept_at_the_end(int64_t context) { return context > 1 ? context / 2 : 1; }

/// The logits [V] after the last token of a window, valid until the next call.
using WindowLogits = std::function<std::span<const float>(std::span<const int32_t> window)>;

struct Window {
  int64_t context = 0;     // the most tokens that it holds
  int64_t vocabulary = 0;  // V
  WindowLogits logits;
};

/// Continues `prompt` (at least one token) by up to `count` tokens; `on_token` gets each as it
/// comes and may return false to stop. Returns the new tokens. Throws UserError for a prompt that
/// is empty or has tokens outside the vocabulary.
std::vector<int32_t> continue_text(const Window& window, std::span<const int32_t> prompt,
                                   int64_t count, Sampler sampler,
                                   const std::function<bool(int32_t)>& on_token = {});

/// The tokens that the cache of a model holds, so that only those that are new to it are run. It
/// lives as long as the weights stay what they are.
class CachedTokens {
 public:
  /// A cache of keys and values can go back to any of its tokens, the state of a recurrent model
  /// only to the beginning.
  explicit CachedTokens(bool can_go_back = true) : can_go_back_(can_go_back) {}

  /// Runs tokens whose first stands at `position`; returns the logits [V] after the last.
  using Run =
      std::function<std::span<const float>(std::span<const int32_t> tokens, int64_t position)>;

  /// The logits after the last token of the window. `run` gets at most `longest` tokens at once, by
  /// powers of two, so that prompts of all lengths need few programs.
  std::span<const float> logits_of(std::span<const int32_t> window, size_t longest, const Run& run);

 private:
  bool can_go_back_;
  std::vector<int32_t> tokens_;
};

}  // namespace brrr::infer
