#include "infer/token_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/threads/parallel.h"
#include "infer/model_runnable.h"
#include "infer/runner.h"

namespace brrr::infer {
namespace {

/// The logits of a window take about so much memory, once for each variant.
constexpr int64_t kLogitBytes = int64_t{1} << 27;
constexpr int64_t kLeastWindow = 16;  // tokens
constexpr double kStandardErrors = 2;

/// One token's figures of one variant.
struct TokenFigures {
  double loss = 0, divergence = 0, cosine = 1;
  bool agrees = true;
};

/// The largest logit, and the logarithm of the sum of all exponentials.
struct Normalizer {
  size_t best = 0;
  double log_sum = 0, mean = 0;
};

Normalizer normalizer_of(std::span<const float> logits) {
  Normalizer n;
  n.best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
  const double top = static_cast<double>(logits[n.best]);
  double sum = 0, total = 0;
  for (const float x : logits) {
    sum += std::exp(static_cast<double>(x) - top);
    total += static_cast<double>(x);
  }
  n.log_sum = top + std::log(sum);
  n.mean = total / static_cast<double>(logits.size());
  return n;
}

TokenFigures figures_of(std::span<const float> first, const Normalizer& of_first,
                        std::span<const float> logits, size_t target) {
  const Normalizer n = normalizer_of(logits);
  TokenFigures f;
  f.loss = n.log_sum - static_cast<double>(logits[target]);
  f.agrees = n.best == of_first.best;
  double divergence = 0, product = 0, first_norm = 0, norm = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double a = static_cast<double>(first[i]), b = static_cast<double>(logits[i]);
    divergence += std::exp(a - of_first.log_sum) * ((a - of_first.log_sum) - (b - n.log_sum));
    const double x = a - of_first.mean, y = b - n.mean;
    product += x * y;
    first_norm += x * x;
    norm += y * y;
  }
  f.divergence = std::max(divergence, 0.0);
  f.cosine = product / std::max(std::sqrt(first_norm * norm), 1e-300);
  return f;
}

/// Sums over tokens.
struct Sums {
  double loss = 0, difference = 0, squared_difference = 0, divergence = 0, cosine = 0, agreeing = 0;

  void add(const TokenFigures& f, double first_loss) {
    const double difference_now = f.loss - first_loss;
    loss += f.loss;
    difference += difference_now;
    squared_difference += difference_now * difference_now;
    divergence += f.divergence;
    cosine += f.cosine;
    agreeing += f.agrees ? 1 : 0;
  }
  TokenComparison means(int64_t count) const {
    const auto n = static_cast<double>(count);
    TokenComparison c;
    c.loss = loss / n;
    c.loss_difference = difference / n;
    const double variance =
        std::max(0.0, squared_difference / n - c.loss_difference * c.loss_difference);
    c.difference_error = std::sqrt(variance / std::max(1.0, n - 1));
    c.divergence = divergence / n;
    c.cosine = cosine / n;
    c.agreement = agreeing / n;
    return c;
  }
};

}  // namespace

bool TokenComparison::is_beyond_noise() const {
  return std::fabs(loss_difference) > kStandardErrors * difference_error;
}

std::vector<TokenComparison> compare_on_tokens(const models::ModelPtr& definition,
                                               std::span<const ComparedModel> variants,
                                               std::span<const int32_t> ids, int64_t context,
                                               const Memory& memory) {
  BRRR_CHECK(ids.size() >= 2 && !variants.empty(), "{} tokens and {} variants", ids.size(),
             variants.size());
  const auto vocabulary = definition->sizes().vocabulary;
  const int64_t affordable = kLogitBytes / (vocabulary * static_cast<int64_t>(sizeof(float)));
  const int64_t predicted = std::ssize(ids) - 1;
  const int64_t window = std::min({context, predicted, std::max(kLeastWindow, affordable)});
  PortValues inputs;
  inputs.emplace("tokens", HostTensor::filled(DType::i32, {1, window}, 0));
  std::vector<std::unique_ptr<Runner>> runners;
  for (const ComparedModel& v : variants) {
    RunnableOptions how;
    how.passes = for_inference(v.precision.dtype, v.precision.quantization);
    runners.push_back(
        std::make_unique<Runner>(forward_runnable(definition, v.weights, TextLayout::padded),
                                 cpu::cpu_backend(), how, counting_all(memory)));
    runners.back()->prepare(inputs);
    runners.back()->allocate();
  }
  std::vector<Sums> sums(variants.size());
  std::vector<std::vector<TokenFigures>> figures(
      variants.size(), std::vector<TokenFigures>(static_cast<size_t>(window)));
  int64_t counted = 0;
  for (int64_t begin = 0; begin < predicted; begin += window) {
    const int64_t count = std::min(window, predicted - begin);
    // Tokens behind the end of the text are padding, which earlier positions do not see.
    std::vector<int32_t> tokens(static_cast<size_t>(window), 0);
    std::copy_n(ids.begin() + begin, count, tokens.begin());
    std::memcpy(inputs.find("tokens")->second.tensors[0].bytes.data(), tokens.data(),
                tokens.size() * sizeof(int32_t));
    std::vector<std::span<const float>> logits;
    for (const auto& runner : runners) logits.push_back(runner->run_in_place(inputs).numbers);
    const auto width = static_cast<size_t>(vocabulary);
    parallel_for(count, 1, [&](int64_t from, int64_t to) {
      for (auto t = static_cast<size_t>(from); t < static_cast<size_t>(to); ++t) {
        const auto target = static_cast<size_t>(ids[static_cast<size_t>(begin) + t + 1]);
        const std::span<const float> first = logits[0].subspan(t * width, width);
        const Normalizer of_first = normalizer_of(first);
        for (size_t v = 0; v < logits.size(); ++v)
          figures[v][t] = figures_of(first, of_first, logits[v].subspan(t * width, width), target);
      }
    });
    for (size_t t = 0; t < static_cast<size_t>(count); ++t)
      for (size_t v = 0; v < sums.size(); ++v) sums[v].add(figures[v][t], figures[0][t].loss);
    counted += count;
    if (!std::ranges::all_of(sums, [](const Sums& s) { return std::isfinite(s.loss); })) break;
  }
  std::vector<TokenComparison> result;
  for (const Sums& s : sums) result.push_back(s.means(counted));
  return result;
}

}  // namespace brrr::infer
