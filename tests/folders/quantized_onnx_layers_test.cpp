// Quantised ONNX files: layers other than products of matrices, weights behind nodes that move
// them, in half precision and in the branches of If, and activations in 8 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cpu/target.h"
#include "base/file.h"
#include "base/temporary_folder.h"
#include "folders/quantized/quantized_onnx.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/onnx_writer.h"

namespace brrr::io {
namespace {

using namespace test::onnx_file;  // NOLINT(google-build-using-namespace)
using Dims = std::vector<int64_t>;

constexpr int kHalf = 10;  // TensorProto.FLOAT16

int64_t elements_of(const Dims& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

std::vector<float> random_numbers(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(elements_of(dims)));
  for (float& x : numbers) x = normal(random);
  return numbers;
}
std::string random_floats(const std::string& name, const Dims& dims, unsigned seed = 3) {
  return floats(name, dims, random_numbers(dims, seed));
}
/// Small enough that gates are not saturated.
std::string gates(const std::string& name, const Dims& dims, unsigned seed) {
  std::vector<float> numbers = random_numbers(dims, seed);
  for (float& x : numbers) x *= 0.1f;
  return floats(name, dims, numbers);
}
std::string constant(const std::string& name, const Dims& dims, unsigned seed) {
  return node("Constant", {}, {name},
              {attribute("value", test::bytes_field(5, random_floats("", dims, seed)), 4)});
}
HostTensor random_tensor(const Dims& dims, unsigned seed = 7) {
  return HostTensor::of<float>(dims, random_numbers(dims, seed));
}

class OnnxLayers : public testing::Test {
 protected:
  fs::path write(const std::string& graph_bytes) {
    const fs::path path = folder_.path() / "m.onnx";
    write_file_atomically(path, model(graph_bytes));
    return path;
  }
  static std::vector<float> run(const std::shared_ptr<const onnx::File>& file,
                                const PortValues& inputs) {
    RunnableSession session(onnx::open_module(file), cpu::cpu_backend(), {});
    const PortValues outputs = session.run(inputs);
    std::vector<float> all;
    for (const auto& [name, value] : outputs)
      for (int64_t i = 0; i < value.tensor().shape.elements(); ++i)
        all.push_back(static_cast<float>(value.tensor().number(i)));
    return all;
  }
  /// Quantises all weights to 8 bits, and returns how far the outputs are from the original.
  double error_of(const fs::path& path, const PortValues& inputs,
                  const ActivationRanges& ranges = {}) {
    const auto file = onnx::File::load(path);
    weights_ = onnx_weights(*file, 8);
    const QuantizedOnnx made(path, 8, 0, weights_, ranges);
    bytes_ = made.bytes();
    back_ = onnx::File::parse(bytes_, "back");
    return relative_error(run(file, inputs), run(back_, inputs));
  }
  static std::vector<std::string> operators(const onnx::GraphProto& graph) {
    std::vector<std::string> names;
    for (const onnx::NodeProto& n : graph.nodes) names.emplace_back(n.op_type);
    return names;
  }
  std::string refusal(const fs::path& path) {
    try {
      onnx_weights(*onnx::File::load(path), 8);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }

  TemporaryFolder folder_{"brrr-onnx-layers"};
  std::vector<OnnxWeight> weights_;
  std::string bytes_;
  std::shared_ptr<const onnx::File> back_;
};

TEST_F(OnnxLayers, ConvolutionsHaveAScaleForEachOutputChannel) {
  const Dims shape{64, 96, 3};
  for (const std::string op : {"Conv", "ConvTranspose"}) {
    const int64_t channels = op == "Conv" ? 96 : 64;
    const fs::path path = write(graph({value("x", kFloat, {1, channels, 20})}, {value("y")},
                                      {node(op, {"x", "w"}, {"y"})}, {random_floats("w", shape)}));
    const double error = error_of(path, {{"x", random_tensor({1, channels, 20})}});
    EXPECT_GT(error, 0) << op;
    EXPECT_LT(error, 0.02) << op;
    ASSERT_EQ(weights_.size(), 1u);
    EXPECT_EQ(weights_[0].axis, op == "Conv" ? 0 : 1);
    EXPECT_EQ(weights_[0].outputs, op == "Conv" ? 64 : 96);
    EXPECT_EQ(weights_[0].inputs, op == "Conv" ? 288 : 192);
    EXPECT_EQ(back_->graph.initializers[0].type, onnx::ElementType::i8);
    EXPECT_EQ(back_->graph.initializers[0].dims, shape);
    EXPECT_EQ(back_->graph.initializers[1].dims, Dims{weights_[0].outputs});
  }
}

TEST_F(OnnxLayers, RecurrentWeightsHaveAScaleForEachGateRow) {
  struct Case {
    const char* op;
    int64_t count, directions;
  };
  for (const auto& [op, count, directions] : {Case{"LSTM", 4, 1}, {"LSTM", 4, 2}, {"GRU", 3, 1}}) {
    Texts attributes{integer("hidden_size", 96)};
    if (directions == 2)
      attributes.push_back(attribute("direction", test::bytes_field(4, "bidirectional"), 3));
    const Dims w{directions, count * 96, 64}, r{directions, count * 96, 96};
    const fs::path path = write(graph({value("x", kFloat, {5, 1, 64})}, {value("y")},
                                      {node(op, {"x", "w", "r"}, {"y"}, attributes)},
                                      {gates("w", w, 3), gates("r", r, 4)}));
    const double error = error_of(path, {{"x", random_tensor({5, 1, 64})}});
    EXPECT_GT(error, 0) << op;
    EXPECT_LT(error, 0.03) << op << " of " << directions;
    ASSERT_EQ(weights_.size(), 2u) << op;
    for (const OnnxWeight& weight : weights_) EXPECT_EQ(weight.axis, 1);
    EXPECT_EQ(weights_[0].outputs, count * 96);
    EXPECT_EQ(weights_[0].inputs, directions * 64);
  }
}

TEST_F(OnnxLayers, FollowsAWeightThroughNodesThatMoveIt) {
  const Texts initializers{gates("w", {384, 64}, 3),     integers("zero", {1}, {0}),
                           integers("half", {1}, {192}), integers("end", {1}, {384}),
                           gates("r", {1, 384, 96}, 4),  integers("axis", {1}, {0})};
  // The gates' halves are exchanged, as exporters reorder gates.
  const Texts nodes{node("Slice", {"w", "zero", "half", "axis"}, {"first"}),
                    node("Slice", {"w", "half", "end", "axis"}, {"second"}),
                    node("Concat", {"second", "first"}, {"joined"}, {integer("axis", 0)}),
                    node("Identity", {"joined"}, {"same"}),
                    node("Unsqueeze", {"same", "axis"}, {"w3"}),
                    node("LSTM", {"x", "w3", "r"}, {"y"}, {integer("hidden_size", 96)})};
  const auto path =
      write(graph({value("x", kFloat, {3, 1, 64})}, {value("y")}, nodes, initializers));
  EXPECT_LT(error_of(path, {{"x", random_tensor({3, 1, 64})}}), 0.03);
  ASSERT_EQ(weights_.size(), 2u);
  EXPECT_EQ(weights_[0].initializer, "w");
  EXPECT_EQ(weights_[0].axis, 0);
  EXPECT_EQ(weights_[0].products.size(), 1u);

  const Texts reshaped{node("Transpose", {"t"}, {"turned"}, {integer_list("perm", {1, 0})}),
                       node("Reshape", {"turned", "shape"}, {"w3"}),
                       node("Conv", {"x", "w3"}, {"y"})};
  const auto conv =
      write(graph({value("x", kFloat, {1, 96, 9})}, {value("y")}, reshaped,
                  {random_floats("t", {288, 64}), integers("shape", {3}, {64, 96, -1})}));
  EXPECT_LT(error_of(conv, {{"x", random_tensor({1, 96, 9})}}), 0.02);
  EXPECT_EQ(weights_.at(0).axis, 1);
  EXPECT_EQ(weights_.at(0).outputs, 64);
}

TEST_F(OnnxLayers, KeepsAConstantThatIsReadOtherwise) {
  const Texts w{random_floats("w", {160, 160})};
  const Texts in{value("x", kFloat, {2, 160})};
  const Texts multiply{node("MatMul", {"x", "w"}, {"y"})};
  const auto refused = [&](const Texts& more, const Texts& outputs) {
    Texts nodes = multiply;
    nodes.insert(nodes.end(), more.begin(), more.end());
    return refusal(write(graph(in, outputs, nodes, w))).find("no MatMul, Gemm, Conv") !=
           std::string::npos;
  };
  EXPECT_FALSE(refused({}, {value("y")}));
  EXPECT_TRUE(refused({node("Relu", {"w"}, {"z"})}, {value("y"), value("z")}));
  EXPECT_TRUE(refused({}, {value("y"), value("w")})) << "an output of the model";
  EXPECT_TRUE(refused({node("Identity", {"w"}, {"z"})}, {value("y"), value("z")}));
  // Two products that want scales along different axes.
  EXPECT_TRUE(
      refused({node("Gemm", {"x", "w"}, {"z"}, {integer("transB", 1)})}, {value("y"), value("z")}));
  // Reads that double with each node end.
  Texts doubling{node("Concat", {"w", "w"}, {"c0"}, {integer("axis", 0)})};
  for (int i = 0; i < 40; ++i)
    doubling.push_back(node("Concat", {fmt::format("c{}", i), fmt::format("c{}", i)},
                            {fmt::format("c{}", i + 1)}, {integer("axis", 0)}));
  EXPECT_TRUE(refused(doubling, {value("y")}));
}

TEST_F(OnnxLayers, WeightsOfHalfPrecisionComeBackAsSuch) {
  const Dims shape{160, 160};
  std::vector<uint16_t> halves;
  for (const float x : random_numbers(shape, 3)) halves.push_back(f16_from_float(x));
  const Texts nodes{node("Cast", {"x"}, {"h"}, {integer("to", kHalf)}),
                    node("MatMul", {"h", "w"}, {"p"}),
                    node("Cast", {"p"}, {"y"}, {integer("to", 1)})};
  const fs::path path = write(graph({value("x", kFloat, {4, 160})}, {value("y")}, nodes,
                                    {tensor("w", shape, halves, kHalf)}));
  EXPECT_LT(error_of(path, {{"x", random_tensor({4, 160})}}), 0.02);
  EXPECT_EQ(weights_.at(0).type, onnx::ElementType::f16);
  EXPECT_EQ(operators(back_->graph),
            (std::vector<std::string>{"DequantizeLinear", "Cast", "Cast", "MatMul", "Cast"}));
}

TEST_F(OnnxLayers, QuantisesConstantsInBranches) {
  // Both branches call their constant w; one of them also reads an initializer of the main graph.
  const std::string then_branch =
      graph({}, {value("z")}, {constant("w", {160, 160}, 3), node("MatMul", {"x", "w"}, {"z"})});
  const std::string else_branch = graph(
      {}, {value("z")}, {node("MatMul", {"x", "w"}, {"h"}), node("MatMul", {"h", "outer"}, {"z"})},
      {random_floats("w", {160, 160}, 4)});
  const fs::path path = write(graph({value("x", kFloat, {2, 160}), value("c", kBool)}, {value("y")},
                                    {node("If", {"c"}, {"y"},
                                          {graph_attribute("then_branch", then_branch),
                                           graph_attribute("else_branch", else_branch)})},
                                    {random_floats("outer", {160, 160}, 5)}));
  for (const bool condition : {false, true}) {
    HostTensor c(DType::boolean, {});
    c.bytes[0] = static_cast<std::byte>(condition);
    const double error = error_of(path, {{"x", random_tensor({2, 160})}, {"c", c}});
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 0.03);
  }
  ASSERT_EQ(weights_.size(), 3u);
  EXPECT_EQ(weights_[0].initializer, "outer");
  EXPECT_EQ(weights_[0].graph, 0u);
  EXPECT_EQ(weights_[0].products[0].graph, 2u);
  EXPECT_TRUE(weights_[1].is_constant_node);
  EXPECT_EQ(weights_[1].graph, 1u);
  EXPECT_EQ(weights_[2].graph, 2u);
  EXPECT_LT(bytes_.size(), read_file(path).size() / 3);
  const onnx::NodeProto& branches = back_->graph.nodes.at(1);
  EXPECT_EQ(operators(*branches.find("then_branch")->graph),
            (std::vector<std::string>{"DequantizeLinear", "MatMul"}));
  EXPECT_EQ(operators(*branches.find("else_branch")->graph),
            (std::vector<std::string>{"DequantizeLinear", "MatMul", "MatMul"}));
  EXPECT_TRUE(quantizable_activations(weights_).empty()) << "they are in bodies";
}

TEST_F(OnnxLayers, ActivationsAreRoundedInTheirRanges) {
  const Texts nodes{node("Relu", {"x"}, {"r"}), node("MatMul", {"r", "a"}, {"h"}),
                    node("Gemm", {"r", "b"}, {"g"}), node("Add", {"h", "g"}, {"s"}),
                    node("MatMul", {"s", "a"}, {"y"})};
  const fs::path path =
      write(graph({value("x", kFloat, {4, 160})}, {value("y")}, nodes,
                  {random_floats("a", {160, 160}), random_floats("b", {160, 160}, 4)}));
  const PortValues inputs{{"x", random_tensor({4, 160})}};
  const auto weights = onnx_weights(*onnx::File::load(path), 8);
  EXPECT_EQ(quantizable_activations(weights), (std::vector<std::string>{"r", "s"}));
  const ActivationRanges ranges{{"r", {0, 3.5f}}, {"s", {-60, 60}}};
  const double exact = error_of(path, inputs), rounded = error_of(path, inputs, ranges);
  EXPECT_LT(rounded, 0.03);
  EXPECT_GT(rounded, exact);
  EXPECT_EQ(operators(back_->graph),
            (std::vector<std::string>{"DequantizeLinear", "DequantizeLinear", "Relu",
                                      "QuantizeLinear", "DequantizeLinear", "MatMul", "Gemm", "Add",
                                      "QuantizeLinear", "DequantizeLinear", "MatMul"}));
  EXPECT_EQ(back_->graph.nodes[5].inputs[0], "r_dequantized");
  EXPECT_EQ(back_->graph.nodes[6].inputs[0], "r_dequantized");
  // A range that is too small clips.
  EXPECT_GT(error_of(path, inputs, {{"r", {0, 0.5f}}, {"s", {-60, 60}}}), 0.3);
}

TEST_F(OnnxLayers, RecurrentWeightsBesideRoundedActivationsAreMultiplied) {
  const Texts nodes{node("MatMul", {"x", "a"}, {"h"}),
                    node("LSTM", {"h", "w", "r"}, {"y"}, {integer("hidden_size", 96)})};
  const fs::path path = write(graph(
      {value("x", kFloat, {3, 1, 160})}, {value("y")}, nodes,
      {gates("a", {160, 160}, 3), gates("w", {1, 384, 160}, 4), gates("r", {1, 384, 96}, 5)}));
  const PortValues inputs{{"x", random_tensor({3, 1, 160})}};
  EXPECT_LT(error_of(path, inputs, {{"x", {-4, 4}}}), 0.05);
  const std::vector<std::string> ops = operators(back_->graph);
  EXPECT_EQ(std::ranges::count(ops, "Mul"), 2);
  EXPECT_EQ(std::ranges::count(ops, "DequantizeLinear"), 2) << "of a and of x";
}

TEST(ActivationScale, KeepsZeroExact) {
  const ActivationScale positive = activation_scale({0, 25.5f});
  EXPECT_EQ(positive.zero, 0);
  EXPECT_FLOAT_EQ(positive.scale, 0.1f);
  const ActivationScale both = activation_scale({-1, 1});
  EXPECT_NEAR(both.zero, 127.5, 0.5);
  const ActivationScale away = activation_scale({2, 5.1f});
  EXPECT_EQ(away.zero, 0);
  EXPECT_FLOAT_EQ(away.scale, 0.02f) << "the range includes 0";
  EXPECT_EQ(activation_scale({-3, -1}).zero, 255);
  for (const float tiny : {0.0f, 1e-40f}) EXPECT_EQ(activation_scale({0, tiny}).scale, 1);
}

}  // namespace
}  // namespace brrr::io
