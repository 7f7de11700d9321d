#include "cli/texts/class_scores.h"

#include <algorithm>
#include <cmath>

namespace brrr::cli {

std::vector<double> probabilities_of(std::span<const float> logits, const models::Task& task) {
  std::vector<double> p(logits.begin(), logits.end());
  if (task.head == models::Head::values) return p;
  if (task.several) {
    for (double& x : p) x = 1 / (1 + std::exp(-x));
    return p;
  }
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace brrr::cli
