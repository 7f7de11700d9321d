#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"

namespace brrr::infer {

void validate(const Sampling& s) {
  if (!(s.temperature >= 0 && s.temperature <= 100))
    usage_error("--temperature must be between 0 (greedy) and 100; got {}", s.temperature);
  if (s.top_k < 0) usage_error("--top-k must be 0 (no limit) or more; got {}", s.top_k);
  if (!(s.top_p > 0 && s.top_p <= 1)) usage_error("--top-p must be in (0, 1]; got {}", s.top_p);
}

Sampler::Sampler(const Sampling& sampling, uint32_t sample_number)
    : sampling_(sampling), random_({sampling.seed, sample_number}, 0x5a3d1e) {}

int32_t Sampler::next(std::span<const float> logits) {
  for (float x : logits)
    if (std::isnan(x))
      user_error(
          "the model gave logits that are not numbers: its weights are damaged or it diverged");
  if (sampling_.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());

  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto larger = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t kept = logits.size();
  if (sampling_.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling_.top_k));
  if (kept < order_.size())
    std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(kept), order_.end(),
                      larger);
  else if (sampling_.top_p < 1)
    std::sort(order_.begin(), order_.end(), larger);
  const double top = *std::max_element(logits.begin(), logits.end());
  weight_.resize(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    weight_[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order_[i])]) - top) /
                          sampling_.temperature);
    total += weight_[i];
  }
  if (sampling_.top_p < 1) {
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weight_[i];
      if (sum >= sampling_.top_p * total) {
        kept = i + 1;
        total = sum;
        break;
      }
    }
  }
  const double draw = static_cast<double>(random_.next_uniform()) * total;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weight_[i];
    if (draw < sum) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace brrr::infer
