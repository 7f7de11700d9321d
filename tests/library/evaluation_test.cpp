// Evaluation graphs of training runs of one's own, and the forecast of a step.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "brrr/brrr.h"
#include "library/message_of.h"

namespace {

using brrr::Batch;
using brrr::Tensor;
using brrr::test::message_of;

/// "loss", "error" (the mean of the absolute error) and "out" f32 [rows, 1] of a small net.
brrr::Graph net(int64_t rows, double dropout = 0) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {rows, 3}), y = g.input("y", brrr::f32, {rows, 1});
  auto h = brrr::tanh(brrr::linear(x, 5, "first"));
  if (dropout > 0) h = brrr::dropout(h, dropout);
  const auto out = brrr::linear(h, 1, "second");
  g.output("out", out);
  g.output("loss", brrr::mean_squared_error(out, y));
  g.output("error", brrr::mean(brrr::relu(out - y) + brrr::relu(y - out)));
  return g;
}

Batch batch_of(int64_t rows, int seed) {
  const auto count = static_cast<size_t>(rows);
  std::vector<float> x(3 * count), y(count);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(7 * i) + static_cast<float>(seed));
  for (size_t i = 0; i < count; ++i) y[i] = x[3 * i] - 0.5f * x[3 * i + 1];
  return {{"x", Tensor::of<float>({rows, 3}, x)}, {"y", Tensor::of<float>({rows, 1}, y)}};
}

class Evaluations : public ::testing::Test {
 protected:
  brrr::Run trained(double dropout = 0, brrr::RunOptions options = {}) {
    auto run = brrr::Run::from_env(std::move(options));
    const auto step =
        run.prepare(net(8, dropout), brrr::AdamW{.lr = 0.02}, std::vector<Batch>()).step;
    for (int i = 0; i < 20; ++i) step(batch_of(8, i));
    return run;
  }
};

TEST_F(Evaluations, OfTheRunsOwnGraphHaveNoDropout) {
  brrr::Run run = trained(0.5);
  const std::vector<Batch> batches = {batch_of(8, 1), batch_of(8, 2)};
  const brrr::Evaluation e = run.evaluate({"loss", "error"}, batches);
  EXPECT_EQ(e.rows, 16);
  EXPECT_FLOAT_EQ(static_cast<float>(e.at("loss")),
                  static_cast<float>((run.evaluate(batches[0]) + run.evaluate(batches[1])) / 2));
  EXPECT_EQ(run.evaluate({"error"}, batches).at("error"), e.at("error"));
  EXPECT_GT(e.at("error"), 0);
}

TEST_F(Evaluations, OfAnotherGraphReadTheSameParameters) {
  brrr::Run run = trained();
  const brrr::Graph other = net(3);
  const auto losses = [&] {
    const brrr::Evaluation whole = run.evaluate({"loss"}, batch_of(8, 5));
    brrr::Evaluation both = run.evaluate(other, {"loss"}, batch_of(3, 5));
    EXPECT_EQ(both.rows, 3);
    both += whole;
    EXPECT_EQ(both.rows, 11);
    return std::pair(both.at("loss"), whole.at("loss"));
  };
  const auto before = losses();
  // The first three rows of the batch by hand: the loss of 8 rows is another number.
  EXPECT_NE(before.first, before.second);
  const int64_t bytes = run.plan().arena_bytes;
  losses();
  EXPECT_EQ(run.plan().arena_bytes, bytes);
  EXPECT_EQ(losses(), before);
}

TEST_F(Evaluations, FollowTheParameters) {
  auto run = brrr::Run::from_env();
  const auto step = run.prepare(net(8), brrr::AdamW{.lr = 0.02}, std::vector<Batch>()).step;
  const brrr::Graph other = net(4);
  const auto loss = [&] { return run.evaluate(other, {"loss"}, batch_of(4, 3)); };
  const double first = loss().at("loss");
  for (int i = 0; i < 60; ++i) step(batch_of(8, i % 4));
  const double later = loss().at("loss");
  EXPECT_LT(later, 0.5 * first);
  // By the weights that the run gives out.
  const Tensor w1 = run.parameter("first.weight"), b1 = run.parameter("first.bias"),
               w2 = run.parameter("second.weight"), b2 = run.parameter("second.bias");
  brrr::Module m = net(4).compile(
      {{"first.weight", w1}, {"first.bias", b1}, {"second.weight", w2}, {"second.bias", b2}});
  const Batch batch = batch_of(4, 3);
  const auto found = m.run({batch.begin(), batch.end()}, {"loss"});
  EXPECT_NEAR(later, static_cast<double>(found.at("loss").as<float>()[0]), 1e-6);
}

TEST_F(Evaluations, ChangeNoStep) {
  std::vector<double> losses[2];
  for (const int evaluates : {0, 1}) {
    auto run = brrr::Run::from_env({.precision = brrr::bf16, .accumulate = 2});
    const auto step = run.prepare(net(8, 0.1), brrr::AdamW{.lr = 0.02}, std::vector<Batch>()).step;
    const brrr::Graph other = net(16, 0.1);
    for (int i = 0; i < 12; ++i) {
      losses[evaluates].push_back(step({{batch_of(8, i), batch_of(8, i + 1)}}).loss);
      if (evaluates == 1) run.evaluate(other, {"loss"}, batch_of(16, i));
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(Evaluations, NeedOnlyTheInputsOfTheirOutputs) {
  brrr::Run run = trained();
  brrr::Graph g = net(2);
  g.output("mean", brrr::mean(brrr::matmul(g.input("z", brrr::f32, {2, 2}),
                                           g.input("u", brrr::f32, {2, 2}))));
  EXPECT_GT(run.evaluate(g, {"loss"}, batch_of(2, 1)).at("loss"), 0);
}

TEST_F(Evaluations, OfGraphsThatAreMadeForEachGiveTheSame) {
  brrr::Run run = trained();
  const double wanted = run.evaluate(net(4), {"loss"}, batch_of(4, 1)).at("loss");
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(run.evaluate(net(4), {"loss"}, batch_of(4, 1)).at("loss"), wanted) << i;
}

TEST_F(Evaluations, WhatIsWrongIsNamed) {
  brrr::Run run = trained();
  const std::vector<Batch> batches = {batch_of(8, 1)};
  EXPECT_EQ(message_of([&] { run.evaluate({"losss"}, batches); }),
            "the graph has no output 'losss'; did you mean 'loss'?");
  EXPECT_EQ(message_of([&] { run.evaluate({"out"}, batches); }),
            "the output 'out' must be f32[] for a mean; it is f32[8,1]");
  EXPECT_EQ(message_of([&] { run.evaluate({"loss"}, std::vector<Batch>()); }),
            "an evaluation takes batches; got none");
  EXPECT_EQ(message_of([&] { run.evaluate({"loss"}, Batch{batches[0][0]}); }),
            "the input 'y' f32[8,1] is missing");
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {8, 3});
  g.output("n", brrr::mean(brrr::linear(x, 5, "frist")));
  EXPECT_EQ(message_of([&] { run.evaluate(g, {"n"}, Batch{batches[0][0]}); }),
            "the run has no parameter 'frist.weight'; did you mean 'first.weight'?");
  brrr::Graph wide;
  const auto wide_x = wide.input("x", brrr::f32, {8, 3});
  wide.output("n", brrr::mean(brrr::linear(wide_x, 6, "first")));
  EXPECT_EQ(
      message_of([&] { run.evaluate(wide, {"n"}, Batch{batches[0][0]}); }),
      "the parameter 'first.weight' of the run is f32[3,5]; the evaluation graph has f32[3,6]");
  EXPECT_GT(run.evaluate({"loss"}, batches).at("loss"), 0);  // the run goes on
}

TEST_F(Evaluations, AreKeptWithinTheMemoryLimit) {
  brrr::Run run = trained(0, {.memory_limit = "2GiB"});
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {200'000'000, 3});
  g.output("n", brrr::mean(brrr::tanh(brrr::linear(x, 5, "first"))));
  float one = 1;  // never read: the graph does not fit
  const Tensor none = Tensor::borrow<float>({200'000'000, 3}, &one);
  try {
    run.evaluate(g, {"n"}, Batch{{"x", none}});
    FAIL() << "a graph of gigabytes was run";
  } catch (const brrr::Error& e) {
    EXPECT_EQ(e.status(), BRRR_NO_MEMORY) << e.what();
  }
  EXPECT_GT(run.evaluate({"loss"}, batch_of(8, 1)).at("loss"), 0);
}

TEST_F(Evaluations, AForecastIsATimeOrUnknown) {
  brrr::Run run = trained();
  const double known = run.plan().step_seconds;
  EXPECT_GE(known, 0);
  EXPECT_LT(known, 1);
}

}  // namespace
