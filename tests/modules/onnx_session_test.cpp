// ONNX files run: bindings, values that shapes depend on, sizes that only data knows, functions,
// and what is refused.

#include "runtime/runnable_session.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "support/long_proof.h"
#include "support/onnx_fields.h"

namespace brrr::test {
namespace {

using namespace onnx_bytes;  // NOLINT: builders of bytes

/// A session over bytes that it keeps.
struct Opened {
  explicit Opened(std::string model)
      : bytes(std::move(model)),
        session(onnx::open_module(onnx::File::parse(bytes, "m.onnx")), cpu::cpu_backend()) {}
  HostTensor run(const PortValues& inputs, const std::string& output = "y") {
    return session.run(inputs).find(output)->second.tensor();
  }
  std::string error(const PortValues& inputs) {
    try {
      session.run(inputs);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  std::string bytes;
  RunnableSession session;
};

HostTensor floats(const std::vector<int64_t>& sizes, const std::vector<float>& values) {
  return HostTensor::of<float>(sizes, values);
}
HostTensor longs(const std::vector<int64_t>& sizes, const std::vector<int64_t>& values) {
  return HostTensor::of<int64_t>(sizes, values);
}

template <typename T>
void expect_values(const HostTensor& t, const Shape& shape, const std::vector<T>& values) {
  EXPECT_EQ(t.shape, shape);
  EXPECT_EQ(t.dtype, dtype_for<T>());
  const auto got = t.as<T>();
  EXPECT_EQ(std::vector<T>(got.begin(), got.end()), values);
}

// x and its sizes: Shape -> Gather -> Concat -> Reshape, as exporters write it.
std::string flattening() {
  return model(input("x", kFloat, {-1, -1, 2}) +
               initializer(tensor("zero", kInt64, {1}, raw<int64_t>({0}))) +
               initializer(tensor("rest", kInt64, {1}, raw<int64_t>({-1}))) +
               node("Shape", {"x"}, {"s"}) + node("Gather", {"s", "zero"}, {"b"}) +
               node("Concat", {"b", "rest"}, {"t"}, attribute("axis", 0)) +
               node("Reshape", {"x", "t"}, {"y"}) + output("y", kFloat, {-1, -1}));
}

TEST(OnnxSession, ProgramsAreKeptByShape) {
  Opened m(flattening());
  expect_values<float>(m.run({{"x", floats({1, 2, 2}, {1, 2, 3, 4})}}), {1, 4}, {1, 2, 3, 4});
  EXPECT_EQ(m.session.programs(), 1u);
  expect_values<float>(m.run({{"x", floats({2, 1, 2}, {1, 2, 3, 4})}}), {2, 2}, {1, 2, 3, 4});
  m.run({{"x", floats({1, 2, 2}, {5, 6, 7, 8})}});
  EXPECT_EQ(m.session.programs(), 2u);
  EXPECT_EQ(m.session.last_programs().size(), 1u);
}

// Small inputs on which shapes depend are part of what a program is built for.
TEST(OnnxSession, ValuesOfShapesAreBound) {
  Opened m(model(input("x", kFloat, {-1}) + input("shape", kInt64, {2}) +
                 node("Reshape", {"x", "shape"}, {"y"}) + output("y", kFloat, {-1, -1})));
  const HostTensor x = floats({4}, {1, 2, 3, 4});
  expect_values<float>(m.run({{"x", x}, {"shape", longs({2}, {2, 2})}}), {2, 2}, {1, 2, 3, 4});
  expect_values<float>(m.run({{"x", x}, {"shape", longs({2}, {1, -1})}}), {1, 4}, {1, 2, 3, 4});
  EXPECT_EQ(m.session.programs(), 2u);
  EXPECT_NE(m.error({{"x", x}, {"shape", longs({2}, {3, -1})}}).find("Reshape"), std::string::npos);
}

// NonZero of what was computed: the program ends, and the next begins with how many were found.
std::string found_elements() {
  return model(input("x", kFloat, {-1}) + initializer(tensor("one", kFloat, {1}, raw<float>({1}))) +
               initializer(tensor("w", kFloat, {1}, raw<float>({10}))) +
               node("Mul", {"x", "w"}, {"scaled"}) + node("Greater", {"x", "one"}, {"large"}) +
               node("NonZero", {"large"}, {"found"}) +
               node("Transpose", {"found"}, {"ids"}, attribute("perm", {1, 0})) +
               node("GatherND", {"scaled", "ids"}, {"y"}) + output("y", kFloat, {-1}));
}

TEST(OnnxSession, ASizeThatDataKnowsEndsAProgram) {
  Opened m(found_elements());
  expect_values<float>(m.run({{"x", floats({4}, {0, 2, 1, 3})}}), {2}, {20, 30});
  EXPECT_EQ(m.session.last_programs().size(), 2u);
  expect_values<float>(m.run({{"x", floats({4}, {5, 0, 0, 0})}}), {1}, {50});
  expect_values<float>(m.run({{"x", floats({4}, {0, 0, 0, 0})}}), {0}, {});
  // The first program serves all, the second one any finding of so many elements.
  EXPECT_EQ(m.session.programs(), 4u);
  m.run({{"x", floats({4}, {0, 4, 1, 9})}});
  EXPECT_EQ(m.session.programs(), 4u);
}

// What data decides is different in every run: programs for what was read long ago are forgotten.
TEST(OnnxSession, ProgramsForWhatWasReadAreForgotten) {
  // So much padding as x says, before and behind some numbers.
  constexpr int kNumbers = 256;
  Opened m(
      model(input("x", kFloat, {2}) +
            initializer(tensor("w", kFloat, {kNumbers}, raw(std::vector<float>(kNumbers, 1)))) +
            node("Cast", {"x"}, {"pads"}, attribute("to", kInt64)) +
            node("Pad", {"w", "pads"}, {"y"}) + output("y", kFloat, {-1})));
  const auto run = [&](int number) {
    const int before = 16 * (number % 64), behind = 16 * (number / 64);
    const HostTensor y =
        m.run({{"x", floats({2}, {static_cast<float>(before), static_cast<float>(behind)})}});
    EXPECT_EQ(y.shape.elements(), kNumbers + before + behind);
    EXPECT_EQ(y.number(before), 1);
  };
  size_t most = 0;
  const int all = rounds(1 << 12, 1 << 11);
  for (int number = 0; number < all; ++number) {
    run(number);
    most = std::max(most, m.session.programs());
  }
  EXPECT_LT(most, static_cast<size_t>(all) * 3 / 4);
  run(1);  // one that is gone comes back
}

std::string function_model() {
  // double(a) = a + a; f(a) = double(double(a)) with the axis of a flattening from the call.
  const std::string twice =
      bytes_field(25, bytes_field(1, "twice") + bytes_field(10, "own") + bytes_field(4, "a") +
                          bytes_field(5, "b") + node("Add", {"a", "a"}, {"b"}, "", "", 7) +
                          bytes_field(9, opset("", 18)));
  const std::string four =
      bytes_field(25, bytes_field(1, "four") + bytes_field(10, "own") + bytes_field(4, "a") +
                          bytes_field(5, "c") + bytes_field(6, "from") +
                          node("twice", {"a"}, {"b"}, "", "own", 7) +
                          node("twice", {"b"}, {"d"}, "", "own", 7) +
                          node("Flatten", {"d"}, {"c"}, referring("axis", "from", 2), "", 7) +
                          bytes_field(9, opset("", 18)) + bytes_field(9, opset("own", 1)));
  return model(input("x", kFloat, {2, 2}) +
                   node("four", {"x"}, {"y"}, attribute("from", 0), "own") +
                   output("y", kFloat, {-1, -1}),
               18, twice + four + bytes_field(8, opset("own", 1)));
}

TEST(OnnxSession, FunctionsAreInlined) {
  Opened m(function_model());
  expect_values<float>(m.run({{"x", floats({2, 2}, {1, 2, 3, 4})}}), {1, 4}, {4, 8, 12, 16});
}

TEST(OnnxSession, ARecursiveFunctionIsRefused) {
  const std::string loop =
      bytes_field(25, bytes_field(1, "again") + bytes_field(10, "own") + bytes_field(4, "a") +
                          bytes_field(5, "b") + node("again", {"a"}, {"b"}, "", "own", 7));
  Opened m(model(
      input("x", kFloat, {1}) + node("again", {"x"}, {"y"}, "", "own") + output("y", kFloat, {1}),
      18, loop + bytes_field(8, opset("own", 1))));
  EXPECT_NE(m.error({{"x", floats({1}, {1})}}).find("calls itself"), std::string::npos);
}

TEST(OnnxSession, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& nodes) {
    Opened m(model(input("x", kFloat, {2}) + nodes + output("y", kFloat, {2})));
    return m.error({{"x", floats({2}, {1, 2})}});
  };
  EXPECT_NE(error(node("Add", {"x", "later"}, {"y"}) + node("Neg", {"x"}, {"later"}))
                .find("nothing before it gives"),
            std::string::npos);
  EXPECT_NE(error(node("Neg", {"x"}, {"y"}) + node("Abs", {"x"}, {"y"})).find("given twice"),
            std::string::npos);
  EXPECT_NE(error(node("Frobnicate", {"x"}, {"y"})).find("Frobnicate 'y': not supported"),
            std::string::npos);
  EXPECT_NE(error(node("Neg", {"x"}, {"y"}, "", "com.example")).find("com.example"),
            std::string::npos);
  EXPECT_NE(error("").find("nothing gives the output 'y'"), std::string::npos);
  EXPECT_NE(error(node("Transpose", {"x"}, {"y"}, attribute("perm", std::vector<int64_t>{3})))
                .find("axis 3"),
            std::string::npos);
}

// Operators whose operands are missing, blank, or of a shape that no exporter writes.
TEST(OnnxSession, BrokenNodesAreRefused) {
  const auto error = [](const std::string& nodes) {
    Opened m(model(input("x", kFloat, {2}) + initializer(tensor("e", kInt64, {0}, "")) + nodes +
                   output("y", kFloat, {2})));
    return m.error({{"x", floats({2}, {1, 2})}});
  };
  for (const char* op : {"NonZero",
                         "Concat",
                         "Range",
                         "ConstantOfShape",
                         "Unique",
                         "HannWindow",
                         "Tile",
                         "TopK",
                         "Reshape",
                         "Expand",
                         "Slice",
                         "Pad",
                         "Unsqueeze",
                         "Trilu",
                         "CumSum",
                         "OneHot",
                         "NonMaxSuppression",
                         "Conv",
                         "LSTM",
                         "Attention",
                         "Resize"}) {
    EXPECT_NE(error(node(op, {}, {"y"})).find(op), std::string::npos) << op;
    // Some of these are complete: what counts is that each ends, in a result or in one line.
    for (const std::vector<std::string>& operands : {std::vector<std::string>{"x"},
                                                     {"x", ""},
                                                     {"x", "", "e"},
                                                     {"x", "e", "e", "e"},
                                                     {"e", "x"}})
      EXPECT_EQ(error(node(op, operands, {"y"})).find("internal error"), std::string::npos) << op;
  }
}

// Functions that call one another twice: 2^40 nodes in a small file.
TEST(OnnxSession, FunctionsThatMultiplyAreRefused) {
  std::string functions;
  for (int i = 0; i < 40; ++i) {
    const std::string inner = i == 0 ? "Neg" : "f" + std::to_string(i - 1);
    const std::string domain = i == 0 ? "" : "own";
    functions += bytes_field(
        25, bytes_field(1, "f" + std::to_string(i)) + bytes_field(10, "own") + bytes_field(4, "a") +
                bytes_field(5, "c") + node(inner, {"a"}, {"b"}, "", domain, 7) +
                node(inner, {"b"}, {"c"}, "", domain, 7) + bytes_field(9, opset("", 18)) +
                bytes_field(9, opset("own", 1)));
  }
  Opened m(model(
      input("x", kFloat, {1}) + node("f39", {"x"}, {"y"}, "", "own") + output("y", kFloat, {1}), 18,
      functions + bytes_field(8, opset("own", 1))));
  EXPECT_NE(m.error({{"x", floats({1}, {1})}}).find("nodes are lowered"), std::string::npos);
}

TEST(OnnxSession, IndicesOutsideAnAxisAreRefused) {
  const auto error = [](const std::string& op, const std::vector<int64_t>& dims, int64_t index) {
    Opened m(model(input("x", kFloat, {2, 3}) +
                   initializer(tensor("i", kInt64, dims, raw<int64_t>({0, index}))) +
                   node(op, {"x", "i"}, {"y"}) + output("y", kFloat, {-1})));
    return m.error({{"x", floats({2, 3}, {1, 2, 3, 4, 5, 6})}});
  };
  EXPECT_EQ(error("GatherND", {1, 2}, 2), "");
  EXPECT_EQ(error("GatherND", {1, 2}, -3), "");
  EXPECT_NE(error("GatherND", {1, 2}, 3), "");
  EXPECT_NE(error("GatherND", {1, 2}, -4), "");
  EXPECT_NE(error("GatherElements", {2, 1}, 2), "");
}

TEST(OnnxSession, NaNStaysNaN) {
  Opened m(
      model(input("x", kFloat, {-1}) + node("Relu", {"x"}, {"y"}) + output("y", kFloat, {-1})));
  const HostTensor y = m.run({{"x", floats({3}, {-1, NAN, 2})}});
  EXPECT_EQ(y.number(0), 0);
  EXPECT_TRUE(std::isnan(y.number(1)));
}

TEST(OnnxSession, InputsAreChecked) {
  Opened m(flattening());
  const HostTensor x = floats({1, 2, 2}, {1, 2, 3, 4});
  EXPECT_NE(m.error({}).find("'x' (f32[n,n,2]) is missing"), std::string::npos) << m.error({});
  EXPECT_NE(m.error({{"z", x}}).find("no input 'z'"), std::string::npos);
  EXPECT_NE(m.error({{"x", floats({4}, {1, 2, 3, 4})}}).find("must be f32[n,n,2]; got f32[4]"),
            std::string::npos);
  EXPECT_NE(m.error({{"x", longs({1, 1, 2}, {1, 2})}}).find("got i64"), std::string::npos);
  EXPECT_NE(m.error({{"x", floats({1, 1, 3}, {1, 2, 3})}}).find("got f32[1,1,3]"),
            std::string::npos);
}

TEST(OnnxSession, ANewerOpsetIsRefused) {
  const std::string bytes = model(output("y", kFloat, {1}), onnx::kNewestOpset + 1);
  EXPECT_THROW(onnx::open_module(onnx::File::parse(bytes, "m.onnx")), Unsupported);
}

// 40 shapes share one temporary region: what is kept for each is little.
TEST(OnnxSession, ManyShapesTakeLittleMore) {
  Opened m(model(input("x", kFloat, {-1, 64}) +
                 initializer(tensor("w", kFloat, {64, 64}, std::string(64 * 64 * 4, '\0'))) +
                 node("MatMul", {"x", "w"}, {"h"}) + node("Tanh", {"h"}, {"y"}) +
                 output("y", kFloat, {-1, 64})));
  const auto run = [&](int64_t rows) {
    m.run({{"x", HostTensor(DType::f32, {rows, 64})}});
    return m.session.engine().arena_bytes();
  };
  const int64_t largest = run(4000);
  for (int64_t rows = 1; rows <= 40; ++rows) run(rows * 97);
  EXPECT_LE(static_cast<double>(m.session.engine().arena_bytes()),
            1.2 * static_cast<double>(largest));
}

}  // namespace
}  // namespace brrr::test
