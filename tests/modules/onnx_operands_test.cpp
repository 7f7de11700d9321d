// What operators ask of their operands is checked: a file that breaks it is refused instead of
// being answered with numbers. And operators whose result has a size that only data knows.

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/call.h"
#include "modules/onnx/onnx_module.h"
#include "modules/onnx/operator_ranks.h"
#include "runtime/runnable_session.h"
#include "support/onnx_fields.h"

namespace brrr::test {
namespace {

using namespace onnx_bytes;  // NOLINT: builders of bytes

struct Operand {
  std::string name;
  HostTensor tensor;
};

Operand floats_of(const std::string& name, const std::vector<int64_t>& sizes) {
  HostTensor t(DType::f32, Shape(sizes));
  fill_tensor({t.dtype, t.shape}, t.bytes.data(),
              [](int64_t i) { return static_cast<double>(i % 7); });
  return {name, std::move(t)};
}
Operand longs_of(const std::string& name, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& values) {
  return {name, HostTensor::of<int64_t>(sizes, values)};
}

/// One node whose operands are all inputs of the file, with outputs y, z, ....
struct NodeRun {
  NodeRun(const std::string& op, std::vector<Operand> operands, const std::string& attributes = "",
          const std::vector<std::string>& outputs = {"y"}) {
    std::string graph;
    std::vector<std::string> names;
    for (Operand& operand : operands) {
      const HostTensor& t = operand.tensor;
      const int type = t.dtype == DType::f32   ? kFloat
                       : t.dtype == DType::i64 ? kInt64
                                               : static_cast<int>(kBool);
      graph += input(operand.name, type, t.shape.sizes());
      names.push_back(operand.name);
      inputs.emplace(operand.name, std::move(operand.tensor));
    }
    graph += node(op, names, outputs, attributes);
    for (const std::string& name : outputs) graph += bytes_field(12, bytes_field(1, name));
    bytes = model(graph, 19);
  }
  PortValues run() const {
    RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "m.onnx")),
                            cpu::cpu_backend());
    return session.run(inputs);
  }
  std::string error() const {
    try {
      run();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  std::string bytes;
  PortValues inputs;
};

std::vector<double> numbers(const PortValues& values, const std::string& name = "y") {
  const HostTensor& t = values.find(name)->second.tensor();
  std::vector<double> list;
  for (int64_t i = 0; i < t.shape.elements(); ++i) list.push_back(t.number(i));
  return list;
}

void expect_refused(const NodeRun& run, const std::string& with) {
  EXPECT_NE(run.error().find(with), std::string::npos) << run.error();
}

TEST(OnnxOperands, RanksThatTheSpecificationFixesAreChecked) {
  expect_refused({"Gemm", {floats_of("a", {2, 2, 3}), floats_of("b", {3, 4})}},
                 "operand 0 ('a') must have 2 axes; got f32[2,2,3]");
  expect_refused({"Gemm", {floats_of("a", {2, 3}), floats_of("b", {1, 3, 4})}}, "operand 1 ('b')");
  expect_refused(
      {"Gemm", {floats_of("a", {2, 3}), floats_of("b", {3, 4}), floats_of("c", {1, 2, 4})}},
      "must have 0 to 2 axes");
  expect_refused(
      {"MaxPool", {floats_of("x", {1, 4})}, attribute("kernel_shape", std::vector<int64_t>{1})},
      "must have at least 3 axes");
  expect_refused(
      {"Conv", {floats_of("x", {1, 1, 4}), floats_of("w", {2, 1, 2}), floats_of("b", {1, 2})}},
      "must have 1 axis");
  expect_refused({"DepthToSpace", {floats_of("x", {4, 2, 2})}, attribute("blocksize", 2)},
                 "must have 4 axes");
  for (const onnx::OperandRank& row : onnx::kOperandRanks) {
    EXPECT_NE(onnx::find_operator(row.domain, row.op_type, 24), nullptr) << row.op_type;
    EXPECT_EQ(onnx::rank_problem(row.domain, row.op_type, row.operand, row.fewest), "");
    if (row.fewest > 0) {
      EXPECT_NE(onnx::rank_problem(row.domain, row.op_type, row.operand, row.fewest - 1), "");
    }
    if (row.most < onnx::kAnyRank) {
      EXPECT_NE(onnx::rank_problem(row.domain, row.op_type, row.operand, row.most + 1), "");
    }
  }
  EXPECT_EQ(onnx::rank_problem("", "Add", 0, 9), "");
}

TEST(OnnxOperands, ShapesThatMustGoTogetherAreChecked) {
  expect_refused({"Gemm", {floats_of("a", {1, 3}), floats_of("b", {3, 4}), floats_of("c", {2, 4})}},
                 "C f32[2,4] must broadcast to the product, [1,4]");
  expect_refused({"BatchNormalization",
                  {floats_of("x", {1, 2, 2}), floats_of("s", {1}), floats_of("b", {2}),
                   floats_of("m", {2}), floats_of("v", {2})}},
                 "must be [2]; got f32[1]");
  expect_refused({"InstanceNormalization",
                  {floats_of("x", {1, 2, 2}), floats_of("s", {1}), floats_of("b", {1})}},
                 "must be [2]; got f32[1]");
  expect_refused(
      {"OneHot", {longs_of("i", {2}, {0, 1}), longs_of("d", {}, {3}), floats_of("v", {3})}},
      "expected two values");
  expect_refused({"ReverseSequence", {floats_of("x", {3, 2}), longs_of("l", {1}, {1})}},
                 "a length for each of 2 sequences");
  // Indices beyond the data would read its neighbours.
  const std::vector<int64_t> zeros(9, 0);
  expect_refused({"GatherElements",
                  {floats_of("x", {2, 3}), longs_of("i", {3, 3}, zeros)},
                  attribute("axis", 1)},
                 "at most its sizes beside axis 1");
  expect_refused({"GatherElements", {floats_of("x", {2, 3}), longs_of("i", {3}, {0, 0, 0})}},
                 "must have the rank of");
  expect_refused(
      {"ScatterElements",
       {floats_of("x", {2, 3}), longs_of("i", {1, 3}, {0, 0, 0}), floats_of("u", {3, 1})}},
      "must have the shape of the indices");
  expect_refused({"ScatterND",
                  {floats_of("x", {4, 3}), longs_of("i", {2, 1}, {0, 1}), floats_of("u", {3, 2})}},
                 "updates must be [2,3]; got [3,2]");
}

TEST(OnnxOperands, GatherNDRefusesBatchesOfOtherSizes) {
  const auto gather = [](const std::vector<int64_t>& x, const std::vector<int64_t>& ids) {
    std::vector<int64_t> values(static_cast<size_t>(Shape(ids).elements()), 1);
    return NodeRun("GatherND", {floats_of("x", x), longs_of("i", ids, values)},
                   attribute("batch_dims", 1));
  };
  for (const int64_t batches : {1, 3, 4})
    expect_refused(gather({2, 3}, {batches, 1}), "batch axis 0 has 2 elements");
  EXPECT_EQ(numbers(gather({2, 3}, {2, 1}).run()), (std::vector<double>{1, 4}));
}

TEST(OnnxOperands, PadsFirstAndThenCuts) {
  const auto padded = [](const std::string& mode, int64_t before, int64_t after) {
    return NodeRun("Pad", {floats_of("x", {5}), longs_of("p", {2}, {before, after})},
                   bytes_field(5, onnx_file::attribute("mode", bytes_field(4, mode), 3)));
  };
  using Numbers = std::vector<double>;
  // As ONNX Runtime 1.32 and OpenVINO, which agree on these.
  EXPECT_EQ(numbers(padded("reflect", 2, -1).run()), (Numbers{2, 1, 0, 1, 2, 3}));
  EXPECT_EQ(numbers(padded("reflect", -2, 2).run()), (Numbers{2, 3, 4, 3, 2}));
  EXPECT_EQ(numbers(padded("edge", 3, -3).run()), (Numbers{0, 0, 0, 0, 1}));
  EXPECT_EQ(numbers(padded("edge", -1, 2).run()), (Numbers{1, 2, 3, 4, 4, 4}));
  EXPECT_EQ(numbers(padded("constant", 3, -3).run()), (Numbers{0, 0, 0, 0, 1}));
  // As OpenVINO; ONNX Runtime refuses it. What is cut is reflected all the same.
  EXPECT_EQ(numbers(padded("reflect", 3, -3).run()), (Numbers{3, 2, 1, 0, 1}));
  EXPECT_EQ(numbers(padded("reflect", -1, -1).run()), (Numbers{1, 2, 3}));
  EXPECT_EQ(numbers(padded("wrap", 2, 0).run()), (Numbers{3, 4, 0, 1, 2, 3, 4}));
  // The two disagree.
  expect_refused(padded("wrap", 2, -1), "pads one end of an axis and cuts the other");
  expect_refused(padded("reflect", -4, -2), "cut more than there is");
}

TEST(OnnxOperands, WhatIsNotZeroIsFound) {
  const auto found = [](Operand x) {
    const PortValues values = NodeRun("NonZero", {std::move(x)}).run();
    return std::pair(values.find("y")->second.tensor().shape, numbers(values));
  };
  const auto [shape, places] = found(longs_of("x", {2, 3}, {0, 7, 0, -1, 0, 2}));
  EXPECT_EQ(shape, (Shape{2, 3}));
  EXPECT_EQ(places, (std::vector<double>{0, 1, 1, 1, 0, 2}));
  EXPECT_EQ(found(longs_of("x", {2, 2, 2}, {0, 0, 0, 0, 0, 0, 0, 5})),
            std::pair(Shape{3, 1}, std::vector<double>{1, 1, 1}));
  EXPECT_EQ(found(longs_of("x", {3}, {0, 0, 0})), std::pair(Shape{1, 0}, std::vector<double>{}));
  EXPECT_EQ(found(longs_of("x", {0, 2}, {})), std::pair(Shape{2, 0}, std::vector<double>{}));
  EXPECT_EQ(found(longs_of("x", {}, {3})).first, (Shape{0, 1}));
}

TEST(OnnxOperands, UniqueElementsComeOnce) {
  const float nan = std::nanf("");
  const std::vector<float> values{3, 1, nan, 3, -1, nan, 1, 3};
  const auto run = [&](int64_t sorted) {
    return NodeRun("Unique", {{"x", HostTensor::of<float>({2, 4}, values)}},
                   attribute("sorted", sorted), {"y", "first", "number", "counts"})
        .run();
  };
  // As NumPy: NaN is the largest, and one element.
  PortValues u = run(1);
  EXPECT_EQ(numbers(u, "first"), (std::vector<double>{4, 1, 0, 2}));
  EXPECT_EQ(numbers(u, "number"), (std::vector<double>{2, 1, 3, 2, 0, 3, 1, 2}));
  EXPECT_EQ(numbers(u, "counts"), (std::vector<double>{1, 2, 3, 2}));
  std::vector<double> y = numbers(u);
  ASSERT_EQ(y.size(), 4u);
  EXPECT_TRUE(std::isnan(y[3]));
  y.pop_back();
  EXPECT_EQ(y, (std::vector<double>{-1, 1, 3}));
  u = run(0);
  EXPECT_EQ(numbers(u, "first"), (std::vector<double>{0, 1, 2, 4}));
  EXPECT_EQ(numbers(u, "number"), (std::vector<double>{0, 1, 2, 0, 3, 2, 1, 0}));
  EXPECT_EQ(numbers(u, "counts"), (std::vector<double>{3, 2, 2, 1}));
}

}  // namespace
}  // namespace brrr::test
