// ONNX files with quantised weights: what they compute is near the original, the rest of the file
// stays as it is, and what cannot be quantised is refused.
#include "folders/quantized/quantized_onnx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cpu/target.h"
#include "base/file.h"
#include "base/temporary_folder.h"
#include "formats/onnx/onnx_writer.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"

namespace brrr::io {
namespace {

constexpr int64_t kRows = 6, kWidth = 128, kInner = 160;

/// y = relu(x W1) W2' + b, W1 of a MatMul and W2 of a Gemm with transB.
class OnnxFixture : public testing::Test {
 protected:
  OnnxFixture() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (auto* numbers : {&first_, &second_}) {
      numbers->resize(static_cast<size_t>(kWidth * kInner));
      for (float& x : *numbers) x = normal(random);
    }
    bias_.assign(static_cast<size_t>(kWidth), 0.5f);
  }

  static onnx::TensorProto tensor(std::string_view name, std::vector<int64_t> dims,
                                  const std::vector<float>& numbers) {
    onnx::TensorProto t;
    t.name = name;
    t.type = onnx::ElementType::f32;
    t.dims = std::move(dims);
    t.bytes = std::as_bytes(std::span(numbers));
    return t;
  }
  static onnx::ValueInfo value(std::string_view name, int64_t columns) {
    onnx::ValueInfo v;
    v.name = name;
    v.type.kind = onnx::ValueKind::tensor;
    v.type.element = onnx::ElementType::f32;
    v.type.shape = {{{kRows, ""}, {columns, ""}}};
    return v;
  }
  static onnx::NodeProto node(std::string_view op, std::string_view name,
                              std::vector<std::string_view> inputs, std::string_view output) {
    onnx::NodeProto n;
    n.op_type = op;
    n.name = name;
    n.inputs = std::move(inputs);
    n.outputs = {output};
    return n;
  }

  onnx::ModelProto model(int64_t opset) {
    onnx::ModelProto m;
    m.ir_version = 10;
    m.producer = "a test";
    m.opsets[""] = opset;
    m.metadata = {{"author", "someone"}};
    m.graph.name = "two layers";
    m.graph.nodes = {node("MatMul", "/up/MatMul", {"x", "up.weight"}, "h"),
                     node("Relu", "", {"h"}, "r"),
                     node("Gemm", "/down/Gemm", {"r", "down.weight", "bias"}, "y")};
    onnx::AttributeProto transposed;
    transposed.name = "transB";
    transposed.kind = onnx::AttributeProto::Kind::integer;
    transposed.integer = 1;
    m.graph.nodes[2].attributes = {transposed};
    m.graph.initializers = {tensor("up.weight", {kWidth, kInner}, first_),
                            tensor("down.weight", {kWidth, kInner}, second_),
                            tensor("bias", {kWidth}, bias_)};
    m.graph.inputs = {value("x", kWidth)};
    m.graph.outputs = {value("y", kWidth)};
    return m;
  }
  fs::path written(int64_t opset, onnx::Placement placement = onnx::Placement::inside) {
    const fs::path path = folder_.path() / "model.onnx";
    onnx::write_model(path, model(opset), placement);
    return path;
  }

  static std::vector<float> outputs_of(const std::shared_ptr<const Runnable>& runnable) {
    RunnableSession session(runnable, cpu::cpu_backend(), {});
    std::vector<float> x(static_cast<size_t>(kRows * kWidth));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    PortValues inputs;
    inputs.emplace("x", HostTensor::of<float>({kRows, kWidth}, x));
    const PortValues outputs = session.run(inputs);
    const HostTensor& y = outputs.at("y").tensors[0];
    std::vector<float> numbers(static_cast<size_t>(kRows * kWidth));
    std::memcpy(numbers.data(), y.bytes.data(), y.bytes.size());
    return numbers;
  }

  TemporaryFolder folder_{"brrr-onnx"};
  std::vector<float> first_, second_, bias_;
};

TEST_F(OnnxFixture, ComputesNearlyWhatTheFloatsDo) {
  for (const auto placement : {onnx::Placement::inside, onnx::Placement::external})
    for (const int64_t bits : {8, 4}) {
      const fs::path path = written(bits == 8 ? 13 : 21, placement);
      const auto file = onnx::File::load(path);
      const std::vector<OnnxWeight> weights = onnx_weights(*file, bits);
      ASSERT_EQ(weights.size(), 2u);
      EXPECT_EQ(weights[0].axis, 1);
      EXPECT_EQ(weights[0].inputs, kWidth);
      EXPECT_EQ(weights[1].axis, 0);
      EXPECT_EQ(weights[1].inputs, kInner);
      const QuantizedOnnx made(path, bits, bits == 4 ? 32 : 0, weights);
      EXPECT_LT(made.bytes().size(), file->bytes() / (bits == 8 ? 3 : 4));
      const auto back = onnx::File::parse(made.bytes(), "back");
      EXPECT_EQ(back->producer, "a test");
      EXPECT_EQ(back->graph.name, "two layers");
      EXPECT_EQ(back->metadata.at(0).second, "someone");
      EXPECT_EQ(back->graph.nodes.size(), 5u);
      EXPECT_EQ(back->graph.nodes[0].op_type, "DequantizeLinear");
      const std::vector<float> plain = outputs_of(onnx::open_module(path));
      const std::vector<float> quantised = outputs_of(onnx::open_module(back));
      EXPECT_LT(relative_error(plain, quantised), bits == 8 ? 0.02 : 0.3);
      EXPECT_GT(relative_error(plain, quantised), 0);
      EXPECT_NEAR(made.weights()[0].error, bits == 8 ? 0.008 : 0.1, bits == 8 ? 0.004 : 0.05);
    }
}

TEST_F(OnnxFixture, ReadsAMatrixThroughItsTranspose) {
  onnx::ModelProto m = model(13);
  onnx::NodeProto swap = node("Transpose", "", {"down.weight"}, "turned");
  onnx::AttributeProto order;
  order.name = "perm";
  order.kind = onnx::AttributeProto::Kind::integers;
  order.integers = {1, 0};
  swap.attributes = {order};
  m.graph.nodes[2] = node("MatMul", "/down", {"r", "turned"}, "y");
  m.graph.nodes.insert(m.graph.nodes.begin(), swap);
  const fs::path path = folder_.path() / "turned.onnx";
  onnx::write_model(path, m, onnx::Placement::inside);
  const std::vector<OnnxWeight> weights = onnx_weights(*onnx::File::load(path), 8);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[1].axis, 0);
  EXPECT_EQ(weights[1].node, "/down");
  const QuantizedOnnx made(path, 8, 0, weights);
  EXPECT_LT(relative_error(outputs_of(onnx::open_module(path)),
                           outputs_of(onnx::open_module(onnx::File::parse(made.bytes(), "back")))),
            0.02);
}

TEST_F(OnnxFixture, GivesNewValuesAndNodesNamesThatAreFree) {
  onnx::ModelProto m = model(13);
  // A value of the graph, a name inside a subgraph, and a node have the names that come first.
  m.graph.nodes[0].outputs = {"up.weight_quantized"};
  m.graph.nodes[1].inputs = {"up.weight_quantized"};
  m.graph.nodes[1].name = "down.weight_DequantizeLinear";
  onnx::AttributeProto branch;
  branch.name = "body";
  branch.kind = onnx::AttributeProto::Kind::graph;
  onnx::GraphProto inner;
  inner.name = "inner";
  inner.nodes = {node("Relu", "", {"r"}, "up.weight_scale")};
  inner.outputs = {value("up.weight_scale", kInner)};
  branch.graph = std::make_shared<onnx::GraphProto>(inner);
  onnx::NodeProto holder = node("Holder", "", {"r"}, "unused");
  holder.domain = "a.test";
  holder.attributes = {branch};
  const auto names_of_nodes = [&](bool has_subgraph) {
    onnx::ModelProto with = m;
    if (has_subgraph) with.graph.nodes.push_back(holder);
    const fs::path path = folder_.path() / "clash.onnx";
    onnx::write_model(path, with, onnx::Placement::inside);
    const QuantizedOnnx made(path, 8, 0, onnx_weights(*onnx::File::load(path), 8));
    const auto back = onnx::File::parse(made.bytes(), "back");
    if (!has_subgraph) {
      EXPECT_LT(
          relative_error(outputs_of(onnx::open_module(path)), outputs_of(onnx::open_module(back))),
          0.02);
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < 2; ++i) {
      const onnx::NodeProto& n = back->graph.nodes[i];
      for (const std::string_view name : {n.inputs[0], n.inputs[1], n.name})
        names.emplace_back(name);
    }
    return names;
  };
  EXPECT_EQ(names_of_nodes(false),
            (std::vector<std::string>{"up.weight_quantized_2", "up.weight_scale",
                                      "up.weight_DequantizeLinear", "down.weight_quantized",
                                      "down.weight_scale", "down.weight_DequantizeLinear_2"}));
  EXPECT_EQ(names_of_nodes(true)[1], "up.weight_scale_2");
}

TEST_F(OnnxFixture, RefusesTensorsOfSubgraphsInOtherFiles) {
  const std::vector<float> numbers(static_cast<size_t>(kInner * 16));
  onnx::AttributeProto constant;
  constant.name = "value";
  constant.kind = onnx::AttributeProto::Kind::tensor;
  constant.tensor = std::make_shared<onnx::TensorProto>(tensor("table", {kInner, 16}, numbers));
  onnx::NodeProto of_attribute = node("Constant", "", {}, "c");
  of_attribute.attributes = {constant};
  onnx::AttributeProto branch;
  branch.name = "body";
  branch.kind = onnx::AttributeProto::Kind::graph;
  branch.graph = std::make_shared<onnx::GraphProto>();
  branch.graph->name = "inner";
  branch.graph->initializers = {tensor("table", {kInner, 16}, numbers)};
  onnx::NodeProto of_subgraph = node("Holder", "", {"r"}, "c");
  of_subgraph.domain = "a.test";
  of_subgraph.attributes = {branch};
  for (const onnx::NodeProto& added : {of_attribute, of_subgraph})
    for (const auto placement : {onnx::Placement::inside, onnx::Placement::external}) {
      onnx::ModelProto m = model(13);
      m.graph.nodes.push_back(added);
      const fs::path path = folder_.path() / "inner.onnx";
      onnx::write_model(path, m, placement);
      const std::vector<OnnxWeight> weights = onnx_weights(*onnx::File::load(path), 8);
      std::string message;
      try {
        const QuantizedOnnx made(path, 8, 0, weights);
      } catch (const UserError& e) {
        message = e.what();
      }
      if (placement == onnx::Placement::inside) {
        EXPECT_EQ(message, "") << added.op_type;
      } else {
        EXPECT_NE(message.find("inner.onnx: the tensor 'table' of an attribute, a subgraph"),
                  std::string::npos)
            << added.op_type << ": " << message;
      }
    }
}

TEST_F(OnnxFixture, NamesTheGroupsThatDivide) {
  const std::vector<OnnxWeight> all = onnx_weights(*onnx::File::load(written(21)), 4);
  const auto message = [](std::vector<OnnxWeight> weights, int64_t group) -> std::string {
    try {
      chosen_onnx_weights(weights, {}, group, "m.onnx");
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message(all, 32), "");
  EXPECT_EQ(message(all, 64),
            "m.onnx: down has 160 inputs, which groups of 64 do not divide; expected --group-size "
            "32");
  std::vector<OnnxWeight> odd = all;
  odd[0].inputs = 100;
  EXPECT_NE(message(odd, 32).find("no group size divides it: use --bits 8, or --keep up"),
            std::string::npos);
}

TEST_F(OnnxFixture, KeepsWhatIsNamedByWeightOrNode) {
  const auto file = onnx::File::load(written(13));
  const std::vector<OnnxWeight> all = onnx_weights(*file, 8);
  EXPECT_EQ(chosen_onnx_weights(all, {"up"}, 0, "m").size(), 1u);
  EXPECT_EQ(chosen_onnx_weights(all, {"/down/Gemm"}, 0, "m").at(0).initializer, "up.weight");
  EXPECT_THROW(chosen_onnx_weights(all, {"u"}, 0, "m"), UserError);
  EXPECT_THROW(chosen_onnx_weights(all, {"up", "down"}, 0, "m"), UserError);
  EXPECT_THROW(chosen_onnx_weights(all, {}, 128, "m"), UserError) << "160 inputs";
}

TEST_F(OnnxFixture, RefusesWhatItCannotQuantise) {
  const auto message = [&](const auto& f) -> std::string {
    try {
      f();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  const auto old = onnx::File::load(written(11));
  EXPECT_NE(
      message([&] { onnx_weights(*old, 8); }).find("has opset 11, and weights of 8 bits need"),
      std::string::npos);
  const fs::path path = written(13);
  const auto file = onnx::File::load(path);
  EXPECT_NE(message([&] { onnx_weights(*file, 4); }).find("or use --bits 8"), std::string::npos);
  const std::vector<OnnxWeight> weights = onnx_weights(*file, 8);
  const QuantizedOnnx made(path, 8, 0, weights);
  const auto twice = onnx::File::parse(made.bytes(), "twice");
  EXPECT_NE(message([&] { onnx_weights(*twice, 8); }).find("is quantised already (it has Dequ"),
            std::string::npos);
  first_[7] = NAN;
  const fs::path damaged = written(13);
  EXPECT_NE(message([&] { QuantizedOnnx(damaged, 8, 0, weights); }).find("up.weight contains NaN"),
            std::string::npos);
  onnx::ModelProto shared = model(13);
  shared.graph.outputs.push_back(value("up.weight", kInner));
  shared.graph.nodes[2].inputs[1] = "up.weight";
  shared.graph.initializers.erase(shared.graph.initializers.begin() + 1);
  const std::string bytes = onnx::model_bytes(shared);
  const auto none = onnx::File::parse(bytes, "none");
  EXPECT_NE(message([&] {
              onnx_weights(*none, 8);
            }).find("no MatMul, Gemm, Conv, LSTM or GRU has an f32 or f16"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr::io
