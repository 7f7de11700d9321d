#include "sampling/continuation.h"

#include <algorithm>
#include <bit>

#include "base/errors.h"

namespace brrr::infer {

std::vector<int32_t> continue_text(const Window& of, std::span<const int32_t> prompt, int64_t count,
                                   Sampler sampler, const std::function<bool(int32_t)>& on_token) {
  if (prompt.empty()) user_error("the prompt has no tokens; give at least one");
  for (int32_t id : prompt)
    if (id < 0 || id >= of.vocabulary)
      user_error("token {} of the prompt lies outside the vocabulary of {}", id, of.vocabulary);
  const auto context = static_cast<size_t>(of.context);
  const auto half = static_cast<size_t>(kept_at_the_end(of.context));
  std::vector<int32_t> window(prompt.begin(), prompt.end());
  if (window.size() > context)
    window.erase(window.begin(), window.end() - static_cast<int64_t>(half));
  sampler.read(prompt);
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < count) {
    const int32_t token = sampler.next(of.logits(window));
    out.push_back(token);
    if (on_token && !on_token(token)) break;
    if (window.size() == context)
      window.erase(window.begin(),
                   window.end() - static_cast<int64_t>(std::min(half, context - 1)));
    window.push_back(token);
  }
  return out;
}

std::span<const float> CachedTokens::logits_of(std::span<const int32_t> window, size_t longest,
                                               const Run& run) {
  size_t known = 0;
  while (known < tokens_.size() && known < window.size() && tokens_[known] == window[known])
    ++known;
  if (!can_go_back_ && (known < tokens_.size() || known == window.size())) known = 0;
  known = std::min(known, window.size() - 1);  // the last token is always run, for its logits
  std::span<const float> logits;
  // The largest power of two first.
  while (known < window.size()) {
    const size_t count = std::bit_floor(std::min(longest, window.size() - known));
    logits = run(window.subspan(known, count), static_cast<int64_t>(known));
    known += count;
  }
  tokens_.assign(window.begin(), window.end());
  return logits;
}

}  // namespace brrr::infer
