// Control flow and functions of ONNX files, beside what ONNX's own suite covers: small files that
// are written here and run.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/onnx_writer.h"

namespace brrr::test {
namespace {

using namespace onnx_file;
using Floats = std::vector<float>;

template <typename T>
HostTensor host(const Shape& shape, const std::vector<T>& values, DType dtype) {
  HostTensor t(dtype, shape);
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}
HostTensor vector_of(const Floats& values) {
  return host(Shape{std::ssize(values)}, values, DType::f32);
}
HostTensor scalar_of(int64_t value) {
  return host(Shape{}, std::vector<int64_t>{value}, DType::i64);
}

/// An input that is too large for its values to be part of a binding: what depends on it is data.
constexpr int64_t kLarge = 100;
HostTensor large(Floats values) {
  values.resize(kLarge);
  return vector_of(values);
}
/// Cuts the first elements of "large" out as `name`.
std::string first_of_large(std::string_view name, std::string_view count) {
  return node("Slice", {"large", "from", std::string(count)}, {std::string(name)});
}
const std::string kLargeInput = value("large", kFloat, {kLarge});
const std::string kFrom = integers("from", {1}, {0}), kTwo = integers("n2", {1}, {2}),
                  kThree = integers("n3", {1}, {3});

Floats floats_of(const PortValue& value) {
  const HostTensor& t = value.tensor();
  EXPECT_EQ(t.dtype, DType::f32);
  Floats list(static_cast<size_t>(t.shape.elements()));
  std::memcpy(list.data(), t.bytes.data(), t.bytes.size());
  return list;
}

/// A file with its bytes, and a session of it.
class OnnxRun {
 public:
  explicit OnnxRun(std::string bytes)
      : bytes_(std::move(bytes)),
        session_(onnx::open_module(onnx::File::parse(bytes_, "test.onnx")), cpu::cpu_backend()) {}
  Floats operator()(const PortValues& inputs) {
    return floats_of(session_.run(inputs).begin()->second);
  }
  size_t last_programs() const { return session_.last_programs().size(); }

 private:
  std::string bytes_;
  RunnableSession session_;
};

const Texts kLoopInputs = {value("i", kInt64), value("c", kBool), value("x", kFloat, {2})};

TEST(OnnxControl, LoopsInLoopsReadWeightsOfTheOutside) {
  // Twice: x = 2 x three times, and then + b.
  const std::string inner =
      graph({value("j", kInt64), value("d", kBool), value("y", kFloat, {2})},
            {value("d2", kBool), value("y2", kFloat, {2})},
            {node("Identity", {"d"}, {"d2"}), node("Mul", {"y", "w"}, {"y2"})});
  const std::string outer =
      graph(kLoopInputs, {value("c2", kBool), value("x3", kFloat, {2}), value("row", kFloat, {2})},
            {node("Identity", {"c"}, {"c2"}),
             node("Loop", {"three", "", "x"}, {"x2"}, {graph_attribute("body", inner)}),
             node("Add", {"x2", "b"}, {"x3"}), node("Mul", {"x3", "w"}, {"row"})});
  OnnxRun run(model(
      graph({value("x0", kFloat, {2})}, {value("all", kFloat, {2, 2})},
            {node("Loop", {"two", "", "x0"}, {"last", "rows"}, {graph_attribute("body", outer)}),
             node("Mul", {"rows", "w"}, {"all"})},
            {integers("two", {}, {2}), integers("three", {}, {3}), floats("w", {2}, {2, 1}),
             floats("b", {2}, {1, 5})})));
  // x: 1, 1 -> 9, 6 -> 73, 11; rows: times w; all: once more.
  EXPECT_EQ(run({{"x0", vector_of({1, 1})}}), (Floats{36, 6, 292, 11}));
  EXPECT_EQ(run.last_programs(), 1u);
}

/// while (sum(x) < limit) x = 2 x, with or without rows.
std::string doubling(const Texts& more_outputs, const Texts& more_nodes, const std::string& trips) {
  Texts outputs = {value("c2", kBool), value("x2", kFloat, {2})};
  outputs.insert(outputs.end(), more_outputs.begin(), more_outputs.end());
  Texts nodes = {node("Add", {"x", "x"}, {"x2"}),
                 node("ReduceSum", {"x2"}, {"s"}, {integer("keepdims", 0)}),
                 node("Less", {"s", "limit"}, {"c2"})};
  nodes.insert(nodes.end(), more_nodes.begin(), more_nodes.end());
  Texts results = {"last"};
  for (size_t i = 0; i < more_outputs.size(); ++i) results.push_back("out");
  return model(graph({kLargeInput, value("limit", kFloat)},
                     {value(more_outputs.empty() ? "last" : "out", kFloat, {-1})},
                     {first_of_large("x0", "n2"),
                      node("Loop", {trips, "", "x0"}, results,
                           {graph_attribute("body", graph(kLoopInputs, outputs, nodes))})},
                     {integers("many", {}, {1000}), kFrom, kTwo}));
}
HostTensor limit_of(float limit) { return host(Shape{}, Floats{limit}, DType::f32); }

TEST(OnnxControl, AConditionOnDataEndsALoop) {
  for (const char* trips : {"many", ""}) {
    OnnxRun run(doubling({}, {}, trips));
    EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(20)}}), (Floats{8, 16}));
    EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(100)}}), (Floats{64, 128}));
    EXPECT_EQ(run.last_programs(), 1u);
  }
}

TEST(OnnxControl, RowsOfALoopThatDataEndsAreAsManyAsItsIterations) {
  OnnxRun run(doubling({value("s", kFloat)}, {}, "many"));
  EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(20)}}), (Floats{6, 12, 24}));
  EXPECT_EQ(run.last_programs(), 2u);
  EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(60)}}), (Floats{6, 12, 24, 48, 96}));
}

// Longer than one program has room for: a row has the number of its iteration and what is carried.
TEST(OnnxControl, ALongLoopWithRowsGoesOnInFurtherPrograms) {
  const std::string body =
      graph(kLoopInputs, {value("c2", kBool), value("x2", kFloat, {2}), value("row", kFloat, {2})},
            {node("Add", {"x", "step"}, {"x2"}), node("Slice", {"x2", "from", "n1"}, {"first"}),
             node("Less", {"first", "limit"}, {"c2"}),
             node("Cast", {"i"}, {"f"}, {integer("to", kFloat)}),
             node("Reshape", {"f", "n1"}, {"number"}),
             node("Concat", {"number", "first"}, {"row"}, {integer("axis", 0)})});
  const auto counting = [&](const std::string& trips, int64_t most) {
    return model(
        graph({kLargeInput, value("limit", kFloat)}, {value("out", kFloat, {-1})},
              {first_of_large("x0", "n2"),
               node("Loop", {trips, "", "x0"}, {"last", "rows"}, {graph_attribute("body", body)}),
               node("Reshape", {"rows", "flat"}, {"list"}),
               node("Concat", {"list", "last"}, {"out"}, {integer("axis", 0)})},
              {integers("flat", {1}, {-1}), integers("n1", {1}, {1}), integers("most", {}, {most}),
               floats("step", {2}, {1, 3}), kFrom, kTwo}));
  };
  constexpr int64_t kMany = 25'000;
  const auto expect_rows = [&](const Floats& y, int64_t count) {
    ASSERT_EQ(std::ssize(y), 2 * count + 2);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(y[static_cast<size_t>(2 * i)], static_cast<float>(i));
      ASSERT_EQ(y[static_cast<size_t>(2 * i + 1)], static_cast<float>(i + 6)) << i;
    }
    EXPECT_EQ(y[static_cast<size_t>(2 * count)], static_cast<float>(count + 5));
    EXPECT_EQ(y[static_cast<size_t>(2 * count + 1)], static_cast<float>(3 * count));
  };
  const auto given = [](int64_t count) {
    return PortValues{{"large", large({5, 0})}, {"limit", limit_of(static_cast<float>(count + 5))}};
  };
  OnnxRun open(counting("", 0));
  for (const int64_t count : {kMany, int64_t{1}, int64_t{1024}, int64_t{1025}})
    expect_rows(open(given(count)), count);
  // A number of iterations that is far too large for one program changes nothing.
  OnnxRun limited(counting("most", int64_t{1} << 40));
  expect_rows(limited(given(kMany)), kMany);
  EXPECT_LE(limited.last_programs(), 8u);
}

TEST(OnnxControl, ALoopWithRowsThatNeverEndsIsAnError) {
  OnnxRun run(doubling({value("s", kFloat)}, {}, ""));
  try {
    run({{"large", large({-1, -2})}, {"limit", limit_of(20)}});
    FAIL() << "expected an error";
  } catch (const UserError& e) {
    EXPECT_NE(
        std::string(e.what()).find("still holds after 1048576 iterations; a loop that needs more "
                                   "must say"),
        std::string::npos)
        << e.what();
  }
}

TEST(OnnxControl, AConditionThatNeverEndsIsAnError) {
  OnnxRun run(doubling({}, {}, ""));
  try {
    run({{"large", large({-1, -2})}, {"limit", limit_of(20)}});
    FAIL() << "expected an error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("still holds after"), std::string::npos) << e.what();
  }
}

TEST(OnnxControl, ALoopThatMustBeUnrolledHasALimit) {
  const std::string body = graph(kLoopInputs, {value("c2", kBool), value("x2", kFloat, {-1})},
                                 {node("Identity", {"c"}, {"c2"}),
                                  node("Concat", {"x", "one"}, {"x2"}, {integer("axis", 0)})});
  OnnxRun run(
      model(graph({kLargeInput}, {value("y", kFloat, {-1})},
                  {node("Loop", {"many", "", "large"}, {"y"}, {graph_attribute("body", body)})},
                  {integers("many", {}, {20'000}), floats("one", {1}, {1})})));
  try {
    run({{"large", large({})}});
    FAIL() << "expected an error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("more than 10000 iterations"), std::string::npos)
        << e.what();
  }
}

TEST(OnnxControl, WhatControlsALoopHasToBeANumberAndAnAnswer) {
  const std::string body = graph(kLoopInputs, {value("x", kFloat), value("x", kFloat, {2})}, {});
  const auto error = [&](const Texts& inputs) {
    OnnxRun run(model(graph({kLargeInput}, {value("y", kFloat, {-1})},
                            {node("Loop", inputs, {"y"}, {graph_attribute("body", body)})},
                            {integers("none", {0}, {}), integers("three", {}, {3})})));
    try {
      run({{"large", large({})}});
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error({"none", "", "large"}).find("must be i64[]; got i64[0]"), std::string::npos);
  EXPECT_NE(error({"three", "three", "large"}).find("must be bool[]; got i64[]"),
            std::string::npos);
  EXPECT_NE(error({"three", "", "large"}).find("must be bool[]; got f32[100]"), std::string::npos);
}

// x = concat(x, x) as long as its sum is below a limit: the sizes depend on data.
TEST(OnnxControl, ShapesChangeFromIterationToIteration) {
  const std::string body =
      graph(kLoopInputs, {value("c2", kBool), value("x2", kFloat, {-1}), value("s", kFloat)},
            {node("Concat", {"x", "x"}, {"x2"}, {integer("axis", 0)}),
             node("ReduceSum", {"x2"}, {"s"}, {integer("keepdims", 0)}),
             node("Less", {"s", "limit"}, {"c2"})});
  OnnxRun run(
      model(graph({kLargeInput, value("limit", kFloat)}, {value("y", kFloat, {-1})},
                  {first_of_large("x0", "n2"),
                   node("Loop", {"", "", "x0"}, {"last", "sums"}, {graph_attribute("body", body)}),
                   node("Concat", {"last", "sums"}, {"y"}, {integer("axis", 0)})},
                  {kFrom, kTwo})));
  EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(10)}}),
            (Floats{1, 2, 1, 2, 1, 2, 1, 2, 6, 12}));
  EXPECT_EQ(run.last_programs(), 3u);  // up to each condition, and the rest
  EXPECT_EQ(run({{"large", large({1, 2})}, {"limit", limit_of(5)}}), (Floats{1, 2, 1, 2, 6}));
}

// Branches of different shapes, chosen by data in each iteration.
TEST(OnnxControl, AnIfOnDataInsideAnUnrolledLoop) {
  const std::string longer = graph({}, {value("t", kFloat, {-1})},
                                   {node("Concat", {"x", "w"}, {"t"}, {integer("axis", 0)})});
  const std::string same = graph({}, {value("e", kFloat, {-1})}, {node("Neg", {"x"}, {"e"})});
  const std::string body = graph(
      kLoopInputs, {value("c2", kBool), value("x2", kFloat, {-1}), value("s", kFloat)},
      {node("Identity", {"c"}, {"c2"}), node("ReduceSum", {"x"}, {"s"}, {integer("keepdims", 0)}),
       node("Greater", {"s", "zero"}, {"p"}),
       node("If", {"p"}, {"x2"},
            {graph_attribute("then_branch", longer), graph_attribute("else_branch", same)})});
  OnnxRun run(model(graph(
      {kLargeInput}, {value("y", kFloat, {-1})},
      {first_of_large("x0", "n2"),
       node("Loop", {"four", "", "x0"}, {"last", "sums"}, {graph_attribute("body", body)}),
       node("Concat", {"last", "sums"}, {"y"}, {integer("axis", 0)})},
      {integers("four", {}, {4}), floats("zero", {}, {0}), floats("w", {1}, {-8}), kFrom, kTwo})));
  // 1 2 -> 1 2 -8 -> -1 -2 8 -> -1 -2 8 -8 -> 1 2 -8 8
  EXPECT_EQ(run({{"large", large({1, 2})}}), (Floats{1, 2, -8, 8, 3, -5, 5, -3}));
  EXPECT_EQ(run.last_programs(), 5u);
  // -1 0 -> 1 0 -> 1 0 -8 -> -1 0 8 -> -1 0 8 -8
  EXPECT_EQ(run({{"large", large({-1, 0})}}), (Floats{-1, 0, 8, -8, -1, 1, -7, 7}));
}

TEST(OnnxControl, BothBranchesOfAnIfOnDataShareAProgramAndTheirWeights) {
  const std::string then = graph({}, {value("t", kFloat, {2})}, {node("Mul", {"x", "w"}, {"t"})});
  const std::string otherwise =
      graph({}, {value("e", kFloat, {2})},
            {node("Add", {"x", "v"}, {"m"}), node("Mul", {"m", "w"}, {"e"})});
  OnnxRun run(model(graph(
      {value("p", kBool, {1}), value("x", kFloat, {2}), value("v", kFloat, {2})},
      {value("y", kFloat, {2})},
      {node("If", {"p"}, {"b"},
            {graph_attribute("then_branch", then), graph_attribute("else_branch", otherwise)}),
       node("Add", {"b", "w"}, {"y"})},
      {floats("w", {2}, {2, 3})})));
  const HostTensor x = vector_of({1, 10}), v = vector_of({5, 5});
  const auto given = [&](uint8_t p) {
    return PortValues{
        {"p", host(Shape{1}, std::vector<uint8_t>{p}, DType::boolean)}, {"x", x}, {"v", v}};
  };
  EXPECT_EQ(run(given(1)), (Floats{4, 33}));
  EXPECT_EQ(run(given(0)), (Floats{14, 48}));
  EXPECT_EQ(run.last_programs(), 1u);
}

// The shape of what an earlier graph alone has is still known behind the place where it ended.
TEST(OnnxControl, WhatWasKnownStaysKnownWhereAGraphEnds) {
  OnnxRun run(model(graph(
      {kLargeInput}, {value("y", kFloat, {-1})},
      {first_of_large("x", "n3"), node("Neg", {"x"}, {"n"}), node("Shape", {"n"}, {"shape"}),
       node("Relu", {"x"}, {"r"}), node("NonZero", {"r"}, {"ids"}),
       node("Cast", {"ids"}, {"numbers"}, {integer("to", kFloat)}),
       node("Reshape", {"numbers", "flat"}, {"row"}), node("Expand", {"one", "shape"}, {"ones"}),
       node("Concat", {"row", "ones"}, {"y"}, {integer("axis", 0)})},
      {integers("flat", {1}, {-1}), floats("one", {}, {7}), kFrom, kThree})));
  EXPECT_EQ(run({{"large", large({1, 0, 4})}}), (Floats{0, 2, 7, 7, 7}));
  EXPECT_EQ(run({{"large", large({0, 0, 4})}}), (Floats{2, 7, 7, 7}));
}

TEST(OnnxControl, ANumberOfIterationsThatDependsOnAnInput) {
  const std::string body =
      graph(kLoopInputs, {value("c2", kBool), value("x2", kFloat, {2})},
            {node("Identity", {"c"}, {"c2"}), node("Add", {"x", "x"}, {"x2"})});
  OnnxRun run(
      model(graph({value("n", kInt64), value("x0", kFloat, {2})}, {value("y", kFloat, {2})},
                  {node("Loop", {"n", "", "x0"}, {"y"}, {graph_attribute("body", body)})})));
  for (const int64_t n : {0, 1, 5})
    EXPECT_EQ(
        run({{"n", scalar_of(n)}, {"x0", vector_of({1, 3})}}),
        (Floats{std::ldexp(1.0f, static_cast<int>(n)), std::ldexp(3.0f, static_cast<int>(n))}));
}

// -- functions
// -------------------------------------------------------------------------------------

/// y = Elu(x) with the call's alpha, and the sum of two of them.
const Texts kFunctions = {
    function("Bent", {"a"}, {"b"}, {node("Elu", {"a"}, {"b"}, {number_of_call("alpha", "slope")})},
             {}, {number("slope", 4)}),
    function("Twice", {"a"}, {"r"},
             {node("Bent", {"a"}, {"p"}, {number_of_call("slope", "k")}, "own"),
              node("Bent", {"a"}, {"q"}, {}, "own"), node("Add", {"p", "q"}, {"r"})},
             {"k"})};

TEST(OnnxFunctions, AttributesReferToThoseOfTheCall) {
  OnnxRun run(model(graph({value("x", kFloat, {2})}, {value("y", kFloat, {2})},
                          {node("Twice", {"x"}, {"y"}, {number("k", 2)}, "own")}),
                    kFunctions));
  const float below = std::expm1(-1.0f);
  const Floats y = run({{"x", vector_of({3, -1})}});
  EXPECT_FLOAT_EQ(y[0], 6);
  EXPECT_NEAR(y[1], 2 * below + 4 * below, 1e-5);
}

TEST(OnnxFunctions, AFunctionThatCallsItselfIsRefused) {
  const std::string self = function("Self", {"a"}, {"b"}, {node("Self", {"a"}, {"b"}, {}, "own")});
  OnnxRun run(model(graph({value("x", kFloat, {2})}, {value("y", kFloat, {2})},
                          {node("Self", {"x"}, {"y"}, {}, "own")}),
                    {self}));
  try {
    run({{"x", vector_of({1, 2})}});
    FAIL() << "expected an error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("Self calls itself"), std::string::npos) << e.what();
  }
}

// A function ends the graph inside, and goes on there.
TEST(OnnxFunctions, AGraphEndsInsideAFunction) {
  const std::string positive =
      function("Found", {"a"}, {"r"},
               {node("Relu", {"a"}, {"p"}), node("NonZero", {"p"}, {"ids"}),
                node("Cast", {"ids"}, {"r"}, {integer("to", kFloat)})});
  OnnxRun run(model(graph({kLargeInput}, {value("y", kFloat, {1, -1})},
                          {node("Neg", {"large"}, {"n"}), node("Found", {"n"}, {"f"}, {}, "own"),
                           node("Neg", {"f"}, {"y"})}),
                    {positive}));
  EXPECT_EQ(run({{"large", large({-1, 0, -4})}}), (Floats{-0.0f, -2}));
  EXPECT_EQ(run.last_programs(), 2u);
}

}  // namespace
}  // namespace brrr::test
