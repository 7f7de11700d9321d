// Running a Runnable whatever made it: programs by the types of the inputs, shared state, memory.
#include "runtime/runnable_session.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "ops/ops.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

/// y = x * w for "x" f32 [rows, length] and the weight "w" f32 [length of the binding's columns].
std::shared_ptr<const Runnable> scaled(std::shared_ptr<const WeightSource> weights) {
  GraphMaker maker;
  const Type x{DType::f32, {Dim::symbol("rows"), Dim::symbol("length")}};
  maker.inputs = {port_of("x", x)};
  maker.outputs = {port_of("y", x), port_of("sum", {DType::f32, {}})};
  maker.graph = [](const std::map<std::string, Type>& inputs) {
    Graph g;
    const Value in = g.input("x", inputs.at("x").shape, DType::f32);
    const Value y = in * g.parameter("w", {1});
    g.output("y", y);
    g.output("sum", sum(y, {0, 1}));
    return g;
  };
  maker.weights = std::move(weights);
  maker.summary = "x times w";
  return make_runnable(std::move(maker));
}

std::shared_ptr<const WeightSource> weight(float value) {
  auto weights = std::make_shared<WeightList>(
      "the test", nullptr, [value](std::string_view, std::span<float> to) { to[0] = value; });
  weights->add({"w", DType::f32, {1}, {}});
  return weights;
}

PortValues ones(int64_t rows, int64_t length) {
  PortValues inputs;
  inputs.emplace("x", HostTensor::filled(DType::f32, {rows, length}, 1));
  return inputs;
}

TEST(RunnableSession, BuildsAProgramForEachShape) {
  RunnableSession session(scaled(weight(3)), cpu::cpu_backend());
  EXPECT_EQ(session.run(ones(2, 4)).find("sum")->second.tensor().number(0), 24);
  EXPECT_EQ(session.run(ones(2, 4)).find("y")->second.tensor().shape, Shape({2, 4}));
  EXPECT_EQ(session.programs(), 1u);
  EXPECT_EQ(session.run(ones(1, 4)).find("sum")->second.tensor().number(0), 12);
  EXPECT_EQ(session.programs(), 2u);
}

TEST(RunnableSession, ComputesTheWantedOutputsAlone) {
  RunnableSession session(scaled(weight(3)), cpu::cpu_backend());
  const PortValues outputs = session.run(ones(2, 4), {"sum"});
  EXPECT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs.begin()->first, "sum");
  const OutputView view = session.run_in_place(ones(2, 5), {"y"});
  EXPECT_EQ(view.shape, Shape({2, 5}));
  EXPECT_EQ(view.numbers[9], 3);
}

TEST(RunnableSession, OutputsKeepTheirMemoryFromRunToRun) {
  RunnableSession session(scaled(weight(3)), cpu::cpu_backend());
  PortValues outputs;
  session.run_into(outputs, ones(2, 4));
  const std::byte* const memory = outputs.find("y")->second.tensor().bytes.data();
  session.run_into(outputs, ones(2, 4));
  EXPECT_EQ(outputs.find("y")->second.tensor().bytes.data(), memory);
  EXPECT_EQ(outputs.find("sum")->second.tensor().number(0), 24);
  session.run_into(outputs, ones(3, 5), {"y"});
  EXPECT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs.find("y")->second.tensor().shape, Shape({3, 5}));
}

TEST(RunnableSession, RefusesOtherInputsThanItsOwn) {
  RunnableSession session(scaled(weight(3)), cpu::cpu_backend());
  EXPECT_USER_ERROR(session.run({}), "the input 'x' (f32[rows,length]) is missing");
  PortValues more = ones(1, 1);
  more.emplace("z", HostTensor::filled(DType::f32, {1}, 1));
  EXPECT_USER_ERROR(session.run(more), "there is no input 'z'");
  PortValues flat;
  flat.emplace("x", HostTensor::filled(DType::f32, {4}, 1));
  EXPECT_USER_ERROR(session.run(flat), "must be f32[rows,length]");
}

TEST(RunnableSession, NamesAWeightThatItsSourceLacks) {
  RunnableSession session(scaled(nullptr), cpu::cpu_backend());
  EXPECT_USER_ERROR(session.run(ones(1, 1)), "x times w: the tensor w is missing");
}

// The graph takes its size from one input; another of the same bytes would be read wrongly.
TEST(RunnableSession, RefusesInputsThatDoNotGoTogether) {
  GraphMaker maker;
  const Type type{DType::f32, {Dim::symbol("rows"), Dim::symbol("length")}};
  maker.inputs = {port_of("a", type), port_of("b", type)};
  maker.outputs = {port_of("y", type)};
  maker.graph = [](const std::map<std::string, Type>& inputs) {
    Graph g;
    const Shape& shape = inputs.at("a").shape;
    g.output("y", g.input("a", shape, DType::f32) + g.input("b", shape, DType::f32));
    return g;
  };
  RunnableSession session(make_runnable(maker), cpu::cpu_backend());
  PortValues inputs;
  inputs.emplace("a", HostTensor::filled(DType::f32, {2, 3}, 1));
  inputs.emplace("b", HostTensor::filled(DType::f32, {3, 2}, 1));
  EXPECT_USER_ERROR(session.run(inputs),
                    "the input 'b' must be f32[2,3] beside the others; got f32[3,2]");
}

// The last open size is the one that is made smaller: "length".
TEST(RunnableSession, NamesTheLargestShapeThatFits) {
  RunnableSession session(scaled(weight(1)), cpu::cpu_backend());
  session.run(ones(1, 10));
  session.engine().set_limit(session.engine().arena_bytes() + (int64_t{1} << 16));
  int64_t fits = 0;
  try {
    session.run(ones(1, 1 << 20));
    ADD_FAILURE() << "it fits";
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::kNoMemory);
    const std::string said = e.what(), before = "the largest that fits is rows 1, length ";
    ASSERT_NE(said.find("[bindings] rows 1, length 1048576 needs"), std::string::npos) << said;
    ASSERT_NE(said.find(before), std::string::npos) << said;
    fits = std::stoll(said.substr(said.find(before) + before.size()));
  }
  EXPECT_THROW(session.run(ones(1, fits + 1)), UserError);
  EXPECT_EQ(session.run(ones(1, fits)).find("sum")->second.tensor().number(0),
            static_cast<double>(fits));
}

}  // namespace
}  // namespace brrr
