#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/errors.h"

namespace brrr::infer {
namespace {

float largest_of(std::span<const float> x) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (size_t i = 0; i < x.size(); ++i) most = x[i] > most ? x[i] : most;
  return most;
}

/// The largest logit. Throws UserError where one is no number.
float largest(std::span<const float> logits) {
  int nans = 0;
#pragma omp simd reduction(| : nans)
  for (size_t i = 0; i < logits.size(); ++i) nans |= static_cast<int>(logits[i] != logits[i]);
  if (nans != 0)
    user_error("the model produced NaN logits: its weights are damaged, or its training diverged");
  return largest_of(logits);
}

}  // namespace

void validate(const Sampling& s) {
  if (!(s.temperature >= 0 && s.temperature <= 100))
    usage_error("--temperature must be between 0 (greedy) and 100; got {}", s.temperature);
  if (s.top_k < 0) usage_error("--top-k must be 0 (no limit) or more; got {}", s.top_k);
  if (!(s.top_p > 0 && s.top_p <= 1)) usage_error("--top-p must be in (0, 1]; got {}", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) usage_error("--min-p must be in [0, 1]; got {}", s.min_p);
  if (!(s.repetition_penalty >= kLeastRepetitionPenalty &&
        s.repetition_penalty <= kMostRepetitionPenalty))
    usage_error("--repetition-penalty must be between {} and {} (1: none); got {}",
                kLeastRepetitionPenalty, kMostRepetitionPenalty, s.repetition_penalty);
  for (const auto& [name, value] :
       {std::pair{"presence", s.presence_penalty}, {"frequency", s.frequency_penalty}})
    if (!(value >= -100 && value <= 100))
      usage_error("--{}-penalty must be between -100 and 100 (0: none); got {}", name, value);
}

Sampler::Sampler(const Sampling& sampling, uint32_t sample_number)
    : sampling_(sampling), random_({sampling.seed, sample_number}, 0x5a3d1e) {}

bool Sampler::has_penalties() const {
  return sampling_.repetition_penalty != 1 || sampling_.presence_penalty != 0 ||
         sampling_.frequency_penalty != 0;
}

void Sampler::read(std::span<const int32_t> prompt) {
  if (has_penalties())
    for (const int32_t token : prompt) times_.try_emplace(token, 0);
}

std::span<const float> Sampler::penalise(std::span<const float> logits) {
  penalised_.assign(logits.begin(), logits.end());
  for (const auto& [token, times] : times_) {
    float& logit = penalised_[static_cast<size_t>(token)];
    const auto x = static_cast<double>(logit);
    const double repeated =
        x > 0 ? x / sampling_.repetition_penalty : x * sampling_.repetition_penalty;
    const double said = times > 0 ? sampling_.presence_penalty +
                                        sampling_.frequency_penalty * static_cast<double>(times)
                                  : 0;
    logit = static_cast<float>(repeated - said);
  }
  return penalised_;
}

int32_t Sampler::next(std::span<const float> logits) {
  if (!has_penalties()) return draw(logits);
  const int32_t token = draw(penalise(logits));
  ++times_[token];
  return token;
}

int32_t Sampler::draw(std::span<const float> logits) {
  const float top = largest(logits);
  if (sampling_.temperature == 0)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());

  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(top)) /
                    sampling_.temperature);
  };
  /// Of those in order_; returns the sum.
  const auto weigh = [&] {
    weight_.clear();
    double sum = 0;
    for (int32_t id : order_) {
      weight_.push_back(weight(logits[static_cast<size_t>(id)]));
      sum += weight_.back();
    }
    return sum;
  };
  const size_t all = logits.size();
  const bool takes_all = sampling_.top_k == 0 || static_cast<size_t>(sampling_.top_k) >= all;
  double total = 0;
  if (takes_all && sampling_.top_p < 1) {
    for (float x : logits) total += weight(x);
    double sum = 0;
    order_.clear();
    for (size_t n = 256; sum < sampling_.top_p * total && order_.size() < all; n *= 4) {
      keep_likeliest(logits, std::min(n, all));
      sum = weigh();
    }
  } else {
    if (takes_all) {
      order_.resize(all);
      std::iota(order_.begin(), order_.end(), 0);
    } else {
      keep_likeliest(logits, static_cast<size_t>(sampling_.top_k));
    }
    total = weigh();
  }
  size_t kept = order_.size();
  if (sampling_.top_p < 1) {
    double sum = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      sum += weight_[i];
      if (sum >= sampling_.top_p * total) {
        kept = i + 1;
        total = sum;
        break;
      }
    }
  }
  if (sampling_.min_p > 0) {  // the weight of the likeliest is 1
    size_t left = 0;
    total = 0;
    for (size_t i = 0; i < kept; ++i) {
      if (weight_[i] < sampling_.min_p) continue;
      order_[left] = order_[i];
      weight_[left++] = weight_[i];
      total += weight_[i];
    }
    kept = left;
  }
  const double drawn = static_cast<double>(random_.next_uniform()) * total;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weight_[i];
    if (drawn < sum) return order_[i];
  }
  return order_[kept - 1];
}

void Sampler::keep_likeliest(std::span<const float> logits, size_t n) {
  const auto is_likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  constexpr size_t kBlock = 64;
  const auto nth = static_cast<std::ptrdiff_t>(n - 1);
  // What is not above the n-th likeliest so far need not be looked at: most blocks are skipped.
  float bound = 0;
  bool has_bound = false;
  order_.clear();
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block =
        logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (has_bound && !(largest_of(block) > bound)) continue;
    for (size_t i = 0; i < block.size(); ++i)
      if (!has_bound || block[i] > bound) order_.push_back(static_cast<int32_t>(begin + i));
    if (order_.size() < 2 * n + kBlock) continue;
    std::nth_element(order_.begin(), order_.begin() + nth, order_.end(), is_likelier);
    order_.resize(n);
    bound = logits[static_cast<size_t>(order_.back())];
    has_bound = true;
  }
  n = std::min(n, order_.size());
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n), order_.end(),
                    is_likelier);
  order_.resize(n);
}

}  // namespace brrr::infer
