// An engine's derived weights hold whenever a program reads them, whoever wrote the parameters.

#include "runtime/weight_refresher.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/target.h"
#include "ops/ops.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"

namespace brrr {
namespace {

DerivedWeight in_bf16(const std::string& parameter) {
  Graph form;
  form.output("0", cast(form.input("a0", {4}, DType::f32), DType::bf16));
  return {{parameter}, Region(std::move(form))};
}

DerivedWeight joined(std::vector<std::string> parameters, DType dtype = DType::f32) {
  Graph form;
  std::vector<Value> parts;
  for (size_t i = 0; i < parameters.size(); ++i)
    parts.push_back(form.input(fmt::format("a{}", i), {4}, dtype));
  form.output("0", concat(parts, 0));
  return {std::move(parameters), Region(std::move(form))};
}

/// Gives what a derived weight holds, and holds its parameters, too.
Graph reader(const DerivedWeight& weight) {
  Graph g;
  for (const std::string& source : weight.sources) g.parameter(source, {4});
  g.output("y", cast(derived_input(g, weight), DType::f32));
  return g;
}

/// w + 1, and the derived weight with it where it is known.
Graph update(const std::string& parameter, const DerivedWeight* known) {
  Graph g;
  const Value w = g.parameter(parameter, {4}), next = w + 1.0;
  g.update(w, next);
  if (known != nullptr) g.update(derived_input(g, *known), make_weight(g, *known, {{next}}));
  return g;
}

std::vector<float> read(Engine& engine, size_t program) {
  engine.run(program);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(program, "y", room);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(WeightRefresher, WhoeverWritesAParameter) {
  Engine engine(cpu::cpu_backend());
  const DerivedWeight weight = in_bf16("w");
  const size_t look = engine.add(reader(weight));
  const size_t knows = engine.add(update("w", &weight)), blind = engine.add(update("w", nullptr));
  const int64_t forecast = engine.forecast().total();
  engine.allocate();
  EXPECT_EQ(engine.arena_bytes(), forecast) << "the refresh program is part of it";
  const std::span<float> w = engine.state_f32("w");
  std::fill(w.begin(), w.end(), 2.0f);
  EXPECT_EQ(read(engine, look), std::vector<float>(4, 2));
  engine.run(knows);
  EXPECT_EQ(read(engine, look), std::vector<float>(4, 3));
  engine.run(blind);
  EXPECT_EQ(read(engine, look), std::vector<float>(4, 4));
  engine.run(blind);
  engine.run(knows);
  EXPECT_EQ(read(engine, look), std::vector<float>(4, 6));
  load_parameters(engine, [](std::string_view, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.5f);
  });
  EXPECT_EQ(read(engine, look), std::vector<float>(4, 0.5f));
}

// The second makes stale what the third reads.
TEST(WeightRefresher, CallsInOneRun) {
  Engine engine(cpu::cpu_backend());
  const DerivedWeight weight = in_bf16("w");
  Graph first = reader(weight);
  first.outputs().clear();
  first.output("sum", sum(cast(derived_input(first, weight), DType::f32), {0}));
  const size_t look = engine.add(first), blind = engine.add(update("w", nullptr));
  engine.expect_calls(4);
  engine.allocate();
  std::ranges::fill(engine.state_f32("w"), 0.0f);
  const std::vector<Call> calls = {
      {look, {}, {"sum"}}, {blind, {}, {}}, {look, {}, {"sum"}}, {look, {}, {"sum"}}};
  const auto sums = engine.run(calls);
  EXPECT_EQ(sums[0][0], 0);
  EXPECT_EQ(sums[2][0], 4);
  EXPECT_EQ(sums[3][0], 4);
}

// They lie where the refresh program computes.
TEST(WeightRefresher, InputsOutliveIt) {
  Engine engine(cpu::cpu_backend());
  const DerivedWeight weight = in_bf16("w");
  Graph g = reader(weight);
  g.outputs().clear();
  const Value x = g.input("x", {4}, DType::f32);
  g.output("y", tanh(cast(derived_input(g, weight), DType::f32)) + x);
  const size_t look = engine.add(g);
  engine.allocate();
  const std::vector<float> given = {1, 2, 3, 4};
  engine.set_input<float>(look, "x", given);
  std::ranges::fill(engine.state_f32("w"), 0.0f);
  EXPECT_EQ(read(engine, look), given);
  std::ranges::fill(engine.state_f32("w"), 0.0f);
  Call call{look, {}, {}};
  call.set("x", std::span<const float>(given));
  engine.run(std::span(&call, 1));
  std::vector<std::byte> room;
  const auto y = engine.read_output(look, "y", room);
  EXPECT_EQ(std::memcmp(y.data(), given.data(), y.size()), 0);
}

TEST(WeightRefresher, KnowsWhoReadsWhat) {
  WeightRefresher weights;
  const DerivedWeight w = in_bf16("w"), both = joined({"v", "w"});
  EXPECT_TRUE(weights.add(0, reader(w)));
  EXPECT_FALSE(weights.add(1, update("w", &w)));
  EXPECT_FALSE(weights.add(2, update("w", nullptr)));
  EXPECT_TRUE(weights.add(3, reader(both)));
  EXPECT_EQ(weights.refreshable().size(), 2u);
  EXPECT_FALSE(weights.reads_stale(0));
  weights.wrote("v");
  EXPECT_FALSE(weights.reads_stale(0));
  EXPECT_TRUE(weights.reads_stale(3));
  weights.refreshed();
  weights.ran(1);
  EXPECT_FALSE(weights.reads_stale(0)) << "the update knows it";
  EXPECT_TRUE(weights.reads_stale(3)) << "and not this one";
  weights.ran(2);
  EXPECT_TRUE(weights.reads_stale(0));
  EXPECT_TRUE(weights.must_refresh_between(2, 0));
  EXPECT_FALSE(weights.must_refresh_between(1, 0));
  EXPECT_TRUE(weights.must_refresh_between(1, 3));
  EXPECT_FALSE(weights.must_refresh_between(0, 3));
}

// No kernel reads integers yet: the reference interpreter does, from the bytes in the arena.
TEST(WeightRefresher, WeightsInIntegers) {
  for (const Quantized& q : {Quantized{8, 0, 0}, Quantized{8, 1, 0}, Quantized{4, 0, 4}}) {
    Graph form;
    form.output("0", store(form.input("a0", {8, 3}, DType::f32), {Layout::rows, q}));
    const DerivedWeight weight{{"w"}, Region(std::move(form))};
    Engine engine(cpu::cpu_backend());
    Graph g;
    g.output("y", matmul(g.input("x", {1, 8}, DType::f32), derived_input(g, weight)));
    const size_t program = engine.add(g);
    EXPECT_LT(engine.forecast().parameter_bytes, 8 * 3 * 4 + 64);
    engine.allocate();
    load_parameters(engine, [](std::string_view, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = i % 2 == 0 ? 7 : -7;
    });
    const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
    engine.set_input<float>(program, "x", x);
    const std::vector<float> y = read(engine, program);  // rows alternate: 7 (1 - 2 + 3 - ...)
    for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(y[j], j % 2 == 0 ? -28 : 28, 1e-4);
  }
}

// Without its parameters in the engine a derived weight takes their place.
TEST(WeightRefresher, TheLoaderMakesWhatHasNoSources) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Engine engine(cpu::cpu_backend());
    const DerivedWeight weight = joined({"q", "k", "v"}, dtype);
    Graph g;
    g.output("y", cast(derived_input(g, weight), DType::f32));
    const size_t look = engine.add(g);
    EXPECT_GE(engine.forecast().parameter_bytes, weight.type().bytes());
    EXPECT_EQ(engine.forecast().state_bytes, 0);
    engine.allocate();
    std::vector<std::string> asked;
    load_parameters(engine, [&](std::string_view name, std::span<float> out) {
      asked.emplace_back(name);
      std::fill(out.begin(), out.end(), static_cast<float>(name[0]));
    });
    EXPECT_EQ(asked, (std::vector<std::string>{"q", "k", "v"}));
    const std::vector<float> y = read(engine, look);
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(y[i], static_cast<float>("qkv"[i / 4]));
  }
}

}  // namespace
}  // namespace brrr
