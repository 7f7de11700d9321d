#include "infer/prompt_lookup.h"

#include <algorithm>

namespace brrr::infer {
namespace {

constexpr int64_t kLongest = 3;       // maximum length of the n-gram that is looked up
constexpr double kWorthwhile = 0.15;  // acceptance rate below which guessing pauses
constexpr int64_t kPause = 32;        // steps of a pause

}  // namespace

std::vector<int32_t> PromptLookup::guess(std::span<const int32_t> text, int64_t room) {
  const int64_t count = std::min(most_, room), size = std::ssize(text);
  if (count <= 0) return {};
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  for (int64_t n = std::min(kLongest, size - 1); n > 0; --n) {
    const auto end = text.last(static_cast<size_t>(n));
    // Search backwards for the latest earlier occurrence.
    for (int64_t at = size - n - 1; at >= 0; --at) {
      if (!std::ranges::equal(text.subspan(static_cast<size_t>(at), static_cast<size_t>(n)), end))
        continue;
      const auto behind = text.subspan(static_cast<size_t>(at + n));
      const auto taken = behind.first(std::min(static_cast<size_t>(count), behind.size()));
      return {taken.begin(), taken.end()};
    }
  }
  return {};
}

void PromptLookup::learn(int64_t guessed, int64_t right) {
  constexpr double kRecent = 0.2;
  rate_ += kRecent * (static_cast<double>(right) / static_cast<double>(guessed) - rate_);
  if (rate_ >= kWorthwhile) return;
  pause_ = kPause;
  rate_ = 2 * kWorthwhile;  // a few guesses after the pause decide again
}

}  // namespace brrr::infer
