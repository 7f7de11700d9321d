// Graphs and training loops of one's own, by the C++ face.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "brrr/brrr.h"
#include "library/message_of.h"

namespace {

namespace fs = std::filesystem;
using brrr::Batch;
using brrr::Tensor;
using brrr::test::message_of;

/// Removes a folder of its own at the end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "brrr-library-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// y = tanh(x w + b) v, as a mean squared error.
brrr::Graph small_net(double dropout = 0) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {8, 3}), y = g.input("y", brrr::f32, {8, 1});
  auto h = brrr::tanh(brrr::linear(x, 5, "first"));
  if (dropout > 0) h = brrr::dropout(h, dropout);
  const auto out = brrr::linear(h, 1, "second");
  g.output("out", out);
  g.output("loss", brrr::mean_squared_error(out, y));
  return g;
}

Batch batch_of(int seed) {
  std::vector<float> x(24), y(8);
  for (int i = 0; i < 24; ++i) x[i] = std::sin(static_cast<float>(i * 7 + seed));
  for (int i = 0; i < 8; ++i) y[i] = x[3 * i] - 0.5f * x[3 * i + 1] * x[3 * i + 2];
  return {{"x", Tensor::of<float>({8, 3}, x)}, {"y", Tensor::of<float>({8, 1}, y)}};
}

std::vector<Batch> batches(int count) {
  std::vector<Batch> list;
  for (int i = 0; i < count; ++i) list.push_back(batch_of(i % 4));
  return list;
}

TEST(OwnGraph, ComputesWhatItsOpsSay) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {2, 3});
  g.output("y", brrr::relu(x * 2 + 1) / 4);
  g.output("total", brrr::mean(x));
  g.output("turned", brrr::reshape(brrr::transpose(x, {1, 0}), {6}));
  brrr::Module m = g.compile();
  const auto out = m.run({{"x", Tensor::of<float>({2, 3}, {-2, -1, 0, 1, 2, 3})}});
  EXPECT_EQ(out.at("y").as<float>()[0], 0.0f);
  EXPECT_EQ(out.at("y").as<float>()[5], 1.75f);
  EXPECT_EQ(out.at("total").as<float>()[0], 0.5f);
  EXPECT_EQ(out.at("turned").as<float>()[1], 1.0f);
  EXPECT_EQ(out.at("turned").sizes(), (std::vector<int64_t>{6}));
  EXPECT_EQ(brrr::Graph::parse(g.str()).str(), g.str());
}

TEST(OwnGraph, TwoLayersOfOneValueHaveParametersOfTheirOwn) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {2, 3});
  g.output("y", brrr::linear(x, 4) * brrr::linear(x, 4));
  const auto y = g.compile().run({{"x", Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6})}}).at("y");
  const auto is_negative = [](float v) { return v < 0; };
  // A product of one layer with itself has no negative element; these layers differ.
  EXPECT_TRUE(std::ranges::any_of(y.as<float>(), is_negative));
}

TEST(OwnGraph, GradientsAgreeWithDifferences) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {4});
  const auto loss = brrr::mean(brrr::square(brrr::sin(x)));
  g.output("loss", loss);
  g.output("dx", g.gradient(loss, {x})[0]);
  brrr::Module m = g.compile();
  const std::vector<float> at{0.3f, -1.2f, 2.0f, 0.9f};
  const auto run = [&](const std::vector<float>& values) {
    return m.run({{"x", Tensor::of<float>({4}, values)}});
  };
  const auto dx = run(at).at("dx");
  for (size_t i = 0; i < at.size(); ++i) {
    auto more = at, less = at;
    more[i] += 1e-2f, less[i] -= 1e-2f;
    const double difference =
        (run(more).at("loss").as<float>()[0] - run(less).at("loss").as<float>()[0]) / 2e-2;
    EXPECT_NEAR(dx.as<float>()[i], difference, 1e-3);
  }
}

TEST(OwnLoop, LearnsAndGivesTheSameBitsAgain) {
  std::vector<double> losses[2];
  for (std::vector<double>& of_run : losses) {
    auto run = brrr::Run::from_env({.accumulate = 2});
    auto [step, loader] = run.prepare(small_net(), brrr::AdamW{.lr = 0.02}, batches(200));
    for (const auto& batch : loader) of_run.push_back(step(batch).loss);
    EXPECT_EQ(run.steps_done(), 100);
    EXPECT_LT(of_run.back(), 0.5 * of_run.front());
    const brrr::Plan plan = run.plan();
    EXPECT_GT(plan.arena_bytes, 0);
    EXPECT_GE(plan.process_bytes, plan.arena_bytes);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(OwnLoop, AResumedRunHasTheBitsOfTheUndisturbedOne) {
  const Folder folder;
  const auto start = [](brrr::Run& run) {
    return run.prepare(small_net(0.1), brrr::AdamW{.lr = 0.01}, batches(0)).step;
  };
  auto whole = brrr::Run::from_env();
  const auto step = start(whole);
  double last = 0;
  for (int i = 0; i < 10; ++i) {
    if (i == 6) whole.save_state(folder / "run");
    last = step(batch_of(i)).loss;
  }
  auto resumed = brrr::Run::from_env();
  const auto next = start(resumed);
  resumed.load_state(folder / "run" / "checkpoint-000006");
  EXPECT_EQ(resumed.steps_done(), 6);
  double again = 0;
  for (int i = 6; i < 10; ++i) again = next(batch_of(i)).loss;
  EXPECT_EQ(again, last);
  const auto weights = [](const brrr::Run& run) {
    const Tensor t = run.parameter("first.weight");
    return std::vector<float>(t.as<float>().begin(), t.as<float>().end());
  };
  EXPECT_EQ(weights(whole), weights(resumed));
  whole.save(folder / "out");
  EXPECT_TRUE(fs::exists(folder / "out" / "model.safetensors"));
}

TEST(OwnLoop, TimedStepsShowTheirKernels) {
  auto run = brrr::Run::from_env();
  const auto step = run.prepare(small_net(), brrr::AdamW(), batches(0)).step;
  EXPECT_NE(message_of([&] { run.profile(); }).find("no step was timed"), std::string::npos);
  step(batch_of(0));
  run.time_steps();
  step(batch_of(1));
  step(batch_of(2));
  run.time_steps(false);
  step(batch_of(3));
  const std::string table = run.profile();
  EXPECT_NE(table.find("2 steps timed"), std::string::npos) << table;
  EXPECT_NE(table.find("adamw"), std::string::npos) << table;
}

TEST(OwnLoop, EvaluationHasNoDropout) {
  auto run = brrr::Run::from_env();
  const auto step = run.prepare(small_net(0.5), brrr::Sgd{.lr = 0.0}, batches(0)).step;
  EXPECT_EQ(run.evaluate(batch_of(1)), run.evaluate(batch_of(1)));
  EXPECT_NE(step(batch_of(1)).loss, step(batch_of(1)).loss);
}

TEST(OwnLoop, TwoRunsInTwoThreadsHaveTheBitsThatEachHasAlone) {
  const auto losses = [](double rate) {
    auto run = brrr::Run::from_env();
    auto [step, loader] = run.prepare(small_net(), brrr::AdamW{.lr = rate}, batches(30));
    std::vector<double> list;
    for (const auto& batch : loader) list.push_back(step(batch).loss);
    return list;
  };
  const auto a = losses(0.01), b = losses(0.02);
  std::vector<double> together_a, together_b;
  std::thread other([&] { together_a = losses(0.01); });
  together_b = losses(0.02);
  other.join();
  EXPECT_EQ(together_a, a);
  EXPECT_EQ(together_b, b);
}

TEST(OwnLoop, WhatIsWrongIsNamed) {
  auto run = brrr::Run::from_env();
  const auto step = run.prepare(small_net(), brrr::AdamW(), batches(0)).step;
  EXPECT_EQ(message_of([&] {
              step(Batch{{"x", Tensor(brrr::f32, {8, 2})}});
            }),
            "the input 'x' is f32[8,3]; got f32[8,2]");
  EXPECT_EQ(message_of([&] {
              step(Batch{{"x", Tensor(brrr::f32, {8, 3})}, {"z", Tensor(brrr::f32, {8, 1})}});
            }),
            "the graph has no input 'z'; it has x, y");
  EXPECT_NE(message_of([&] { run.parameter("first.wieght"); }).find("did you mean 'first.weight'"),
            std::string::npos);
  EXPECT_EQ(message_of([] {
              auto other = brrr::Run::from_env();
              other.prepare(small_net(), brrr::AdamW(), batches(0), "lost");
            }),
            "the graph has no output 'lost' that could be the loss");
  EXPECT_NE(message_of([] {
              auto other = brrr::Run::from_env({.memory_limit = "1MiB"});
              other.prepare(small_net(), brrr::AdamW(), batches(0));
            }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              auto other = brrr::Run::from_env({.more = {{"weight-deccay", "0"}}});
              other.prepare(small_net(), brrr::AdamW(), batches(0));
            }).find("did you mean 'weight_decay'"),
            std::string::npos);
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {2});
  EXPECT_NE(message_of([&] { brrr::call("geluu", {x}); }).find("did you mean 'gelu'"),
            std::string::npos);
}

TEST(Tensors, DlpackSharesTheMemory) {
  Tensor t = Tensor::of<float>({2, 2}, {1, 2, 3, 4});
  const Tensor back = Tensor::from_dlpack(t.to_dlpack());
  EXPECT_EQ(back.data(), t.data());
  EXPECT_EQ(back.sizes(), t.sizes());
  t = Tensor();
  EXPECT_EQ(back.as<float>()[3], 4.0f);
  EXPECT_NE(message_of([&] { back.as<int32_t>(); }), "");
}

}  // namespace
