// Integers chosen on calibration rows: factors of Gram matrices, errors of outputs against rounding
// to nearest.

#include "calibration/gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "calibration/calibrator.h"
#include "calibration/output_error.h"
#include "support/temp_folder.h"

namespace brrr::calibration {
namespace {

std::vector<float> random_numbers(int64_t count, uint32_t seed) {
  RngStream random(RngKey{seed, 7}, 3);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = random.next_uniform() - 0.5F;
  return numbers;
}

/// xᵀ x of rows whose channels follow one another, with a few large ones, as activations have.
std::vector<float> correlated_gram(int64_t width, int64_t rows, uint32_t seed) {
  std::vector<float> x = random_numbers(width * rows, seed);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 1; i < width; ++i) {
      float& value = x[static_cast<size_t>(r * width + i)];
      value = 0.9F * x[static_cast<size_t>(r * width + i - 1)] + 0.5F * value;
    }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; i += 29) x[static_cast<size_t>(r * width + i)] *= 6;
  std::vector<float> gram(static_cast<size_t>(width * width), 0.0F);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i)
      for (int64_t j = 0; j < width; ++j)
        gram[static_cast<size_t>(i * width + j)] +=
            x[static_cast<size_t>(r * width + i)] * x[static_cast<size_t>(r * width + j)];
  return gram;
}

double error_of(const std::vector<float>& weight, const io::IntegerMatrix& q,
                const std::vector<float>& gram) {
  std::vector<float> back(weight.size());
  io::dequantize(q.form, q.integers, q.scales, back);
  return output_error(weight, back, gram, q.form.columns);
}

TEST(InverseFactor, IsThatOfTheDampedMatrix) {
  constexpr int64_t kWidth = 150;  // more than two blocks
  const std::vector<float> gram = correlated_gram(kWidth, 400, 1);
  constexpr double kDamping = 0.01;
  const std::vector<float> u = inverse_factor(gram, kWidth, kDamping);
  double mean = 0;
  for (int64_t i = 0; i < kWidth; ++i)
    mean += static_cast<double>(gram[static_cast<size_t>(i * (kWidth + 1))]) / kWidth;
  // (Uᵀ U) G = 1.
  std::vector<double> inverse(gram.size(), 0.0);
  for (int64_t k = 0; k < kWidth; ++k)
    for (int64_t i = k; i < kWidth; ++i)
      for (int64_t j = k; j < kWidth; ++j)
        inverse[static_cast<size_t>(i * kWidth + j)] +=
            static_cast<double>(u[static_cast<size_t>(k * kWidth + i)]) *
            static_cast<double>(u[static_cast<size_t>(k * kWidth + j)]);
  for (int64_t i = 0; i < kWidth; ++i)
    for (int64_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k)
        sum += inverse[static_cast<size_t>(i * kWidth + k)] *
               (static_cast<double>(gram[static_cast<size_t>(k * kWidth + j)]) +
                (k == j ? kDamping * mean : 0));
      ASSERT_NEAR(sum, i == j ? 1 : 0, 2e-3) << i << ", " << j;
      if (j < i) {
        ASSERT_EQ(u[static_cast<size_t>(i * kWidth + j)], 0);
      }
    }
}

TEST(InverseFactor, AMatrixThatIsNotPositiveIsRefused) {
  const std::vector<float> gram{1, 3, 3, 1};
  EXPECT_USER_ERROR(inverse_factor(gram, 2, 0.01), "is not positive definite");
}

TEST(Gptq, ChangesOutputsLessThanRoundingToNearest) {
  constexpr int64_t kRows = 48, kWidth = 256;
  const std::vector<float> weight = random_numbers(kRows * kWidth, 2),
                           gram = correlated_gram(kWidth, 600, 3);
  for (const auto& [bits, group] : {std::pair<int64_t, int64_t>(4, 32), {4, 128}, {4, 0}, {8, 0}})
    for (const bool orders_inputs : {true, false}) {
      SCOPED_TRACE(fmt::format("{} bits by {}, ordered {}", bits, group, orders_inputs));
      const io::IntegerForm form{kRows, kWidth, bits, group};
      const io::IntegerMatrix q =
          gptq(weight, form, gram, {.damping = 0.01, .orders_inputs = orders_inputs});
      EXPECT_LT(error_of(weight, q, gram),
                0.7 * error_of(weight, io::quantize(weight, form), gram));
      for (const int8_t i : q.integers) ASSERT_LE(std::abs(int{i}), form.most());
    }
}

TEST(Gptq, UncorrelatedInputsAreRoundedToNearest) {
  constexpr int64_t kRows = 8, kWidth = 96;
  const std::vector<float> weight = random_numbers(kRows * kWidth, 4);
  std::vector<float> gram(static_cast<size_t>(kWidth * kWidth), 0.0F);
  for (int64_t i = 0; i < kWidth; ++i) gram[static_cast<size_t>(i * (kWidth + 1))] = 2;
  const io::IntegerForm form{kRows, kWidth, 4, 32};
  for (const bool orders_inputs : {true, false}) {
    const io::IntegerMatrix q = gptq(weight, form, gram, {.orders_inputs = orders_inputs}),
                            nearest = io::quantize(weight, form);
    EXPECT_EQ(q.integers, nearest.integers);
    EXPECT_EQ(q.scales, nearest.scales);
  }
}

TEST(Gptq, InputsThatAreAlwaysZeroDoNotMatter) {
  constexpr int64_t kRows = 8, kWidth = 64;
  const std::vector<float> weight = random_numbers(kRows * kWidth, 5);
  std::vector<float> gram = correlated_gram(kWidth, 200, 6);
  for (int64_t i = 0; i < kWidth; ++i)
    gram[static_cast<size_t>(i * kWidth + 9)] = gram[static_cast<size_t>(9 * kWidth + i)] = 0;
  const io::IntegerForm form{kRows, kWidth, 4, 32};
  const io::IntegerMatrix q = gptq(weight, form, gram);
  EXPECT_LT(error_of(weight, q, gram), error_of(weight, io::quantize(weight, form), gram));
}

TEST(QuantizeClipped, NeverChangesOutputsMore) {
  constexpr int64_t kRows = 32, kWidth = 128;
  std::vector<float> weight = random_numbers(kRows * kWidth, 8);
  for (size_t i = 0; i < weight.size(); i += 41) weight[i] *= 3;  // outliers
  // Without products between groups, so that the parts are the whole.
  std::vector<float> gram = correlated_gram(kWidth, 400, 9);
  for (int64_t i = 0; i < kWidth; ++i)
    for (int64_t j = 0; j < kWidth; ++j)
      if (i / 32 != j / 32) gram[static_cast<size_t>(i * kWidth + j)] = 0;
  const io::IntegerForm form{kRows, kWidth, 4, 32};
  EXPECT_LT(error_of(weight, quantize_clipped(weight, form, gram), gram),
            0.95 * error_of(weight, io::quantize(weight, form), gram));
}

}  // namespace
}  // namespace brrr::calibration
