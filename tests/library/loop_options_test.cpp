// Schedules, clipping and the scaling of gradients in training loops of one's own graphs.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "brrr/brrr.h"
#include "library/message_of.h"

namespace {

using brrr::Batch;
using brrr::Tensor;
using brrr::test::message_of;

/// The mean over rows of factor x . w, whose gradient is the mean of the rows of factor x.
brrr::Graph product(double factor) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {4, 2});
  const auto w = g.parameter("w", {2, 1}, "ones");
  g.output("loss", brrr::mean(brrr::matmul(x, w) * factor));
  return g;
}

Batch rows(float a, float b) {
  return {{"x", Tensor::of<float>({4, 2}, {a, b, a, b, a, b, a, b})}};
}

struct Loop {
  explicit Loop(const brrr::RunOptions& options, const brrr::Sgd& sgd = {.lr = 1, .momentum = 0},
                double factor = 1)
      : run(brrr::Run::from_env(options)),
        step(run.prepare(product(factor), sgd, std::vector<Batch>()).step) {}
  std::vector<float> weights() const {
    const Tensor w = run.parameter("w");
    return {w.as<float>().begin(), w.as<float>().end()};
  }
  brrr::Run run;
  brrr::Run::Step step;
};

TEST(LoopOptions, SchedulesAreThoseOfBrrrTrain) {
  const auto rates = [](const std::string& schedule, int64_t warmup) {
    Loop loop({.max_steps = 10, .schedule = schedule, .warmup_steps = warmup}, {.lr = 0.5});
    std::vector<double> list;
    for (int i = 0; i < 10; ++i) list.push_back(loop.step(rows(1, 1)).learning_rate);
    return list;
  };
  const std::vector<double> cosine = rates("cosine", 4);
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(cosine[static_cast<size_t>(i)], 0.5 * (i + 1) / 5);
  for (int i = 4; i < 10; ++i)
    EXPECT_NEAR(cosine[static_cast<size_t>(i)],
                0.05 + 0.45 * 0.5 * (1 + std::cos(std::acos(-1.0) * (i - 4) / 6)), 1e-12);
  const std::vector<double> linear = rates("linear", 0);
  for (int i = 0; i < 10; ++i)
    EXPECT_NEAR(linear[static_cast<size_t>(i)], 0.5 * (1 - i / 10.0), 1e-12);
  EXPECT_EQ(rates("constant", 0), std::vector<double>(10, 0.5));
  EXPECT_EQ(rates("constant_with_warmup", 1)[0], 0.25);
  EXPECT_EQ(rates("", 0), std::vector<double>(10, 0.5));  // batches of one's own: constant
  EXPECT_EQ(message_of([] { Loop loop({.schedule = "cosine"}); }),
            "the schedule cosine needs max_steps, where the rate ends");
  EXPECT_NE(message_of([] { Loop loop({.max_steps = 2, .schedule = "cosinus"}); }), "");
}

TEST(LoopOptions, GradientsAreClippedByTheirNorm) {
  Loop clipped({.max_grad_norm = 0.5});
  EXPECT_NEAR(clipped.step(rows(3, 4)).grad_norm, 5, 1e-5);  // before clipping
  EXPECT_NEAR(clipped.weights()[0], 1 - 0.3, 1e-5);
  EXPECT_NEAR(clipped.weights()[1], 1 - 0.4, 1e-5);
  Loop small({.max_grad_norm = 10});
  small.step(rows(3, 4));
  EXPECT_NEAR(small.weights()[0], 1 - 3, 1e-5);
  Loop unclipped({.max_grad_norm = 0});
  unclipped.step(rows(3, 4));
  EXPECT_NEAR(unclipped.weights()[1], 1 - 4, 1e-5);
}

TEST(LoopOptions, MicroBatchesAreAveraged) {
  Loop loop({.accumulate = 2, .max_grad_norm = 0});
  const brrr::StepResult r = loop.step({{rows(1, 2), rows(3, 6)}});
  EXPECT_NEAR(r.loss, 6, 1e-5);
  EXPECT_NEAR(loop.weights()[0], 1 - 2, 1e-5);
  EXPECT_NEAR(loop.weights()[1], 1 - 4, 1e-5);
}

TEST(LoopOptions, GradientsOfHalfPrecisionAreScaled) {
  Loop loop({.precision = brrr::DType::f16, .max_grad_norm = 0});
  const brrr::StepResult good = loop.step(rows(0.5, 1));
  EXPECT_EQ(good.loss_scale, 65536);
  EXPECT_NEAR(good.grad_norm, std::hypot(0.5, 1), 1e-3);  // not that of the scaled gradients
  EXPECT_NEAR(loop.weights()[0], 1 - 0.5, 1e-3);
}

TEST(LoopOptions, TheScaleFallsUntilGradientsFitIntoHalfPrecision) {
  Loop loop({.precision = brrr::DType::f16, .max_grad_norm = 0}, {.lr = 1e-2, .momentum = 0}, 10);
  const std::vector<float> before = loop.weights();
  // The gradient of the product is 10 / 4 of the scale, and f16 ends at 65504.
  for (const double scale : {65536, 32768}) {
    const brrr::StepResult bad = loop.step(rows(0.5, 1));
    EXPECT_EQ(bad.loss_scale, scale);
    EXPECT_FALSE(std::isfinite(bad.grad_norm));
    EXPECT_EQ(loop.weights(), before);
  }
  const brrr::StepResult good = loop.step(rows(0.5, 1));
  EXPECT_EQ(good.loss_scale, 16384);
  EXPECT_NEAR(good.grad_norm, std::hypot(5, 10), 1e-2);
  EXPECT_NEAR(loop.weights()[1], 0.9, 1e-3);
}

TEST(LoopOptions, AStepThatIsNotFiniteChangesNothingAndKeepsItsBatch) {
  Loop loop({});
  loop.step(rows(1, 1));
  const std::vector<float> before = loop.weights();
  EXPECT_FALSE(std::isfinite(loop.step(rows(NAN, 1)).loss));
  EXPECT_EQ(loop.weights(), before);
  EXPECT_TRUE(std::isfinite(loop.step(rows(1, 1)).loss));
}

}  // namespace
