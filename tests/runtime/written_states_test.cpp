// No program reads a weight that was never written: an engine fills what later programs bring, and
// a CHECK fails where nobody can.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cpu/target.h"
#include "ops/ops.h"
#include "runtime/engine.h"

namespace brrr {
namespace {

constexpr int64_t kWidth = 4;
constexpr int64_t kLarge = int64_t{1} << 18;

/// `parameter` times `factor`.
DerivedWeight times(const std::string& parameter, double factor) {
  Graph form;
  form.output("0", form.input("a0", {kWidth}, DType::f32) * factor);
  return {{parameter}, Region(std::move(form))};
}

Graph reads_weight(const DerivedWeight& weight) {
  Graph g;
  g.output("y", tanh(derived_input(g, weight)));
  return g;
}

Graph reads_parameter(const std::string& name) {
  Graph g;
  g.output("y", tanh(g.parameter(name, {kWidth})));
  return g;
}

/// atanh of the program's output.
float first_of(Engine& engine, size_t program) {
  engine.run(program);
  return std::atanh(reinterpret_cast<const float*>(engine.output(program, "y"))[0]);
}

/// Some f32 parameters, all elements of which are `value`.
std::shared_ptr<const WeightSource> all(float value) {
  const auto list = std::make_shared<WeightList>(
      "test", nullptr,
      [value](std::string_view, std::span<float> to) { std::ranges::fill(to, value); });
  for (const char* name : {"u", "v", "w"}) list->add({name, DType::f32, {kWidth}, {}});
  list->add({"large", DType::f32, {kLarge}, {}});
  return list;
}

std::string internal_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InternalError& e) {
    return e.what();
  }
  return "";
}

class WrittenStates : public testing::TestWithParam<WrittenBy> {};
INSTANTIATE_TEST_SUITE_P(By, WrittenStates, testing::Values(WrittenBy::anyone, WrittenBy::loader),
                         [](const auto& by) {
                           return by.param == WrittenBy::anyone ? "anyone" : "loader";
                         });

TEST_P(WrittenStates, AProgramThatReadsAWeightNobodyWroteIsStopped) {
  for (const bool comes_late : {false, true}) {
    Engine engine(cpu::cpu_backend(), GetParam());
    if (comes_late) {
      engine.add(reads_parameter("w"));
      engine.allocate();
    }
    const size_t parameter = engine.add(reads_parameter("v"));
    const size_t derived = engine.add(reads_weight(times("u", 2)));
    if (!comes_late) engine.allocate();
    const std::string of_parameter = internal_error_of([&] { engine.run(parameter); });
    EXPECT_NE(of_parameter.find("reads the parameter 'v', which was never written"),
              std::string::npos)
        << of_parameter;
    const std::string of_weight = internal_error_of([&] { engine.run(derived); });
    EXPECT_NE(of_weight.find("reads the derived 'u:mul:"), std::string::npos) << of_weight;
    Call call{derived, {}, {}};
    EXPECT_NE(internal_error_of([&] { engine.run(std::span(&call, 1)); }), "");
    EXPECT_NE(internal_error_of([&] { engine.first_non_finite(call); }), "");
    engine.fill_state("v", [](std::span<std::byte> to) { std::ranges::fill(to, std::byte{0}); });
    EXPECT_EQ(first_of(engine, parameter), 0);
  }
}

// Moments, sums, caches and counters begin as zeros.
TEST(EngineStates, OtherStatesBeginAsZeros) {
  for (const Role role :
       {Role::state, Role::moment, Role::gradient_sum, Role::loss_scale, Role::cache}) {
    Graph g;
    g.output("y", tanh(g.input("s", {kWidth}, DType::f32, role)));
    Engine engine(cpu::cpu_backend());
    const size_t p = engine.add(g);
    engine.allocate();
    EXPECT_EQ(first_of(engine, p), 0) << name_of(role);
  }
}

TEST_P(WrittenStates, WhatLaterProgramsBringIsFilledFromTheSource) {
  Engine engine(cpu::cpu_backend(), GetParam());
  const size_t first = engine.add(reads_weight(times("w", 2)));
  engine.allocate();
  engine.use_weights(all(0.25f));
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.5f);
  // Another form of the same parameter, the parameter itself, and weights of another one.
  const size_t other_form = engine.add(reads_weight(times("w", 3)));
  const size_t itself = engine.add(reads_parameter("w"));
  const size_t another = engine.add(reads_weight(times("v", 4)));
  EXPECT_FLOAT_EQ(first_of(engine, another), 1.0f);
  EXPECT_FLOAT_EQ(first_of(engine, itself), 0.25f);
  EXPECT_FLOAT_EQ(first_of(engine, other_form), 0.75f);
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.5f);
}

// A parameter that was changed since is the source, not the file.
TEST(EngineStates, LaterFormsAreMadeOfTheParametersInTheEngine) {
  Graph both = reads_weight(times("w", 2));
  both.output("w", both.parameter("w", {kWidth}) * 1.0);
  Engine engine(cpu::cpu_backend());
  const size_t first = engine.add(both);
  engine.allocate();
  engine.use_weights(all(0.25f));
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.5f);
  std::ranges::fill(engine.state_f32("w"), 0.125f);
  const size_t later = engine.add(reads_weight(times("w", 3)));
  EXPECT_FLOAT_EQ(first_of(engine, later), 0.375f);
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.25f);
  // It is made again like those that were there from the beginning.
  std::ranges::fill(engine.state_f32("w"), 0.0625f);
  EXPECT_FLOAT_EQ(first_of(engine, later), 0.1875f);
  Graph update;
  const Value w = update.parameter("w", {kWidth});
  update.update(w, w + 0.125);
  engine.run(engine.add(update));
  EXPECT_FLOAT_EQ(first_of(engine, later), 0.5625f);
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.375f);
}

TEST_P(WrittenStates, LaterFormsOfLentParametersAreMadeWhereTheseLie) {
  const std::vector<float> w(kWidth, 0.25f);
  Engine engine(cpu::cpu_backend(), GetParam());
  const auto list = std::make_shared<WeightList>("test");
  list->add({"w", DType::f32, {kWidth}, std::as_bytes(std::span(w))});
  engine.use_weights(list);
  const size_t first = engine.add(reads_parameter("w"));
  engine.allocate();
  EXPECT_TRUE(engine.find_state("w")->is_lent);
  EXPECT_FLOAT_EQ(first_of(engine, first), 0.25f);
  const size_t later = engine.add(reads_weight(times("w", 3)));
  EXPECT_FLOAT_EQ(first_of(engine, later), 0.75f);
}

TEST(EngineStates, AProgramThatWritesAParameterNeedsNoOther) {
  Graph writes;
  writes.update(writes.parameter("w", {kWidth}), full(writes, {kWidth}, 0.5));
  Engine engine(cpu::cpu_backend());
  const size_t write = engine.add(writes), read = engine.add(reads_parameter("w"));
  engine.allocate();
  EXPECT_THROW(engine.run(read), InternalError);
  engine.run(write);
  EXPECT_FLOAT_EQ(first_of(engine, read), 0.5f);
}

// A derived weight of a length goes with the programs of that length, and comes again.
TEST(EngineStates, WhatOnlyDroppedProgramsReadIsGivenBack) {
  Engine engine(cpu::cpu_backend());
  engine.add(reads_weight(times("w", 2)));
  engine.allocate();
  engine.use_weights(all(0.25f));
  const Graph g = reads_weight(times("w", 3));
  const auto states = engine.states().size();
  const int64_t bytes = engine.arena_bytes(), forecast = engine.forecast().total();
  for (int round = 0; round < 3; ++round) {
    const Program program(g, engine.backend());
    const int64_t expected = engine.bytes_with(std::span(&program, 1));
    const size_t one = engine.add(g);
    EXPECT_EQ(engine.forecast().total(), expected);
    const size_t two = engine.add(g);
    EXPECT_EQ(engine.states().size(), states + 1);
    EXPECT_GT(engine.arena_bytes(), bytes);
    EXPECT_FLOAT_EQ(first_of(engine, two), 0.75f);
    engine.remove(one);
    EXPECT_FLOAT_EQ(first_of(engine, two), 0.75f);
    EXPECT_EQ(engine.bytes_with({}, std::span(&two, 1)), forecast);
    engine.remove(two);
    EXPECT_EQ(engine.states().size(), states);
    EXPECT_EQ(engine.arena_bytes(), bytes);
    EXPECT_EQ(engine.forecast().total(), forecast);
  }
}

// The states that a program would bring are part of what it needs.
TEST(EngineStates, LaterStatesCountTowardsTheLimit) {
  Engine engine(cpu::cpu_backend());
  engine.add(reads_parameter("w"));
  engine.allocate();
  engine.use_weights(all(0.25f));
  Graph g;
  g.output("y", slice(g.parameter("large", {kLarge}), 0, 0, 1));
  const int64_t before = engine.forecast().total();
  engine.set_limit(before + kLarge * 4 - 1);
  try {
    engine.add(g);
    ADD_FAILURE() << "it does not fit";
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::kNoMemory);
  }
  EXPECT_EQ(engine.find_state("large"), nullptr);
  engine.set_limit(before + kLarge * 4 + 4096);
  engine.run(engine.add(g));
  EXPECT_EQ(engine.find_state("large")->is_written, true);
}

// A source is kept, and rounded for what comes later, too.
TEST(EngineStates, UseWeightsFillsAnyFormat) {
  Engine engine(cpu::cpu_backend());
  engine.add(reads_parameter("w"));
  engine.allocate();
  engine.use_weights(all(1.0f / 3));
  Graph narrow;
  narrow.output("y", tanh(cast(narrow.parameter("v", {kWidth}, DType::bf16), DType::f32)));
  const size_t later = engine.add(narrow);
  EXPECT_FLOAT_EQ(first_of(engine, later), 0.333984375f);
}

}  // namespace
}  // namespace brrr
