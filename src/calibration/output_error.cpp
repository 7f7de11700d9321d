#include "calibration/output_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr::calibration {
namespace {

constexpr int64_t kRows = 8;  // that share a walk over the Gram matrix

/// The sum of d gram dᵀ over `rows` rows d, which share each walk over the Gram matrix.
double square_of_rows(const float* d, int64_t rows, const float* gram, int64_t width) {
  std::vector<float> product(static_cast<size_t>(rows * width), 0.0f);
  for (int64_t k = 0; k < width; ++k) {
    const float* const line = gram + k * width;
    for (int64_t r = 0; r < rows; ++r) {
      const float factor = d[r * width + k];
      float* const to = product.data() + r * width;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) to[j] += factor * line[j];
    }
  }
  double sum = 0;
  for (int64_t i = 0; i < rows * width; ++i)
    sum += static_cast<double>(product[static_cast<size_t>(i)]) * static_cast<double>(d[i]);
  return sum;
}

}  // namespace

double output_square(std::span<const float> difference, std::span<const float> gram,
                     int64_t width) {
  BRRR_CHECK(std::ssize(gram) == width * width && std::ssize(difference) % width == 0,
             "{} numbers and a Gram matrix of {} for {} inputs", difference.size(), gram.size(),
             width);
  const int64_t rows = std::ssize(difference) / width, chunks = (rows + kRows - 1) / kRows;
  std::vector<double> sums(static_cast<size_t>(chunks));
  parallel_chunks(chunks, [&](int64_t chunk) {
    const int64_t first = chunk * kRows, count = std::min(kRows, rows - first);
    sums[static_cast<size_t>(chunk)] =
        square_of_rows(difference.data() + first * width, count, gram.data(), width);
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::max(total, 0.0);
}

std::vector<float> sampled_rows(std::span<const float> weight, int64_t width) {
  const int64_t rows = std::ssize(weight) / width, count = std::min(rows, kMeasuredRows);
  std::vector<float> sample;
  for (int64_t i = 0; i < count; ++i) {
    const auto first = weight.begin() + i * rows / count * width;
    sample.insert(sample.end(), first, first + width);
  }
  return sample;
}

double output_error(std::span<const float> weight, std::span<const float> quantised,
                    std::span<const float> gram, int64_t width) {
  std::vector<float> difference(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) difference[i] = quantised[i] - weight[i];
  const double outputs = output_square(weight, gram, width);
  return outputs > 0 ? std::sqrt(output_square(difference, gram, width) / outputs) : 0;
}

}  // namespace brrr::calibration
