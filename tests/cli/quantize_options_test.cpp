// brrr quantize with an ONNX file: the method that fits it, options that do not apply to it, and
// how its outputs are compared with those of the original.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/npy.h"
#include "formats/onnx/onnx_writer.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

constexpr int64_t kQuantizeRows = 6, kQuantizeWidth = 160;

class QuantizeOnnxFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
    for (size_t i = 0; i < weight_.size(); ++i) weight_[i] = std::sin(static_cast<float>(i * i));
  }

  static onnx::ValueInfo value(std::string_view name, onnx::ElementType element,
                               std::vector<onnx::Dimension> shape) {
    onnx::ValueInfo v;
    v.name = name;
    v.type.kind = onnx::ValueKind::tensor;
    v.type.element = element;
    v.type.shape = std::move(shape);
    return v;
  }
  static onnx::NodeProto node(std::string_view op, std::vector<std::string_view> inputs,
                              std::string_view output) {
    onnx::NodeProto n;
    n.op_type = op;
    n.inputs = std::move(inputs);
    n.outputs = {output};
    return n;
  }
  template <typename T>
  static onnx::TensorProto tensor(std::string_view name, onnx::ElementType type,
                                  std::vector<int64_t> dims, const std::vector<T>& numbers) {
    onnx::TensorProto t;
    t.name = name;
    t.type = type;
    t.dims = std::move(dims);
    t.bytes = std::as_bytes(std::span(numbers));
    return t;
  }

  /// h = x W; the graph has no output yet.
  onnx::ModelProto product() const {
    onnx::ModelProto m;
    m.ir_version = 10;
    m.opsets[""] = 13;
    m.graph.name = "product";
    m.graph.nodes = {node("MatMul", {"x", "w"}, "h")};
    m.graph.initializers = {
        tensor("w", onnx::ElementType::f32, {kQuantizeWidth, kQuantizeWidth}, weight_)};
    m.graph.inputs = {
        value("x", onnx::ElementType::f32, {{kQuantizeRows, ""}, {kQuantizeWidth, ""}})};
    return m;
  }
  void write(const onnx::ModelProto& model) const {
    onnx::write_model(folder_ / "m.onnx", model, onnx::Placement::inside);
  }

  /// Runs the verb; fills in `out_` and `err_`.
  int quantize(const std::string& arguments) {
    const std::string at = folder_.path().string();
    const int status =
        std::system(fmt::format("cd '{0}' && '{1}' quantize {2} >'{0}/out' 2>'{0}/err'", at,
                                BRRR_BINARY, arguments)
                        .c_str());
    out_ = read_file(folder_ / "out");
    err_ = read_file(folder_ / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void expect_refused(const std::string& arguments, int code, const std::string& part) {
    EXPECT_EQ(quantize(arguments), code) << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
    EXPECT_FALSE(fs::exists(folder_ / "q.onnx"));
  }

  test::TempFolder folder_;
  std::vector<float> weight_ =
      std::vector<float>(static_cast<size_t>(kQuantizeWidth * kQuantizeWidth));
  std::string out_, err_;
};

TEST_F(QuantizeOnnxFile, RefusesOptionsThatDoNotApply) {
  onnx::ModelProto m = product();
  m.graph.outputs = {
      value("h", onnx::ElementType::f32, {{kQuantizeRows, ""}, {kQuantizeWidth, ""}})};
  write(m);
  const std::string line = "m.onnx --output q.onnx ";
  expect_refused(line + "--text t.txt", 2, "--text is for a model folder");
  expect_refused(line + "--dtype bf16", 2, "--dtype is for a model folder");
  expect_refused(line + "--method dynamic", 2, "ONNX files are written with");
  expect_refused(line + "--bits 4", 1, "weights of 4 bits need opset 21");
  fs::create_directory(folder_ / "model");
  expect_refused("model --output new --no-measure --text absent.txt", 1, "absent.txt");
}

TEST_F(QuantizeOnnxFile, ComparesFloatsAndIntegers) {
  onnx::ModelProto m = product();
  m.graph.nodes.push_back(node("ArgMax", {"h"}, "best"));
  onnx::AttributeProto axis;
  axis.name = "axis";
  axis.kind = onnx::AttributeProto::Kind::integer;
  axis.integer = 1;
  m.graph.nodes.back().attributes = {axis};
  m.graph.outputs = {
      value("h", onnx::ElementType::f32, {{kQuantizeRows, ""}, {kQuantizeWidth, ""}}),
      value("best", onnx::ElementType::i64, {{kQuantizeRows, ""}, {1, ""}})};
  write(m);
  ASSERT_EQ(quantize("m.onnx --output q.onnx --json --max-loss-increase 100"), 0) << err_;
  const auto report = nlohmann::json::parse(out_);
  EXPECT_EQ(report["method"], "weight-only");
  ASSERT_EQ(report["outputs"].size(), 2u) << out_;
  for (const auto& output : report["outputs"]) {
    if (output["name"] == "h")
      EXPECT_GT(output["cosine"].get<double>(), 0.999);
    else
      EXPECT_GE(output["equal_share"].get<double>(), 0.5);
  }
}

TEST_F(QuantizeOnnxFile, RoundsActivationsInTheRangesOfItsInputs) {
  onnx::ModelProto m = product();
  m.graph.inputs[0].type.shape = {{{std::nullopt, "rows"}, {kQuantizeWidth, ""}}};
  m.graph.outputs = {
      value("h", onnx::ElementType::f32, {{std::nullopt, "rows"}, {kQuantizeWidth, ""}})};
  write(m);
  const auto save = [&](const std::string& name, int64_t rows, float scale, float first) {
    std::vector<float> x(static_cast<size_t>(rows * kQuantizeWidth));
    for (size_t i = 0; i < x.size(); ++i) x[i] = scale * std::cos(static_cast<float>(i));
    x[0] = first;
    io::write_npy(folder_ / name, HostTensor::of<float>({rows, kQuantizeWidth}, x));
  };
  save("a.npy", 3, 1, 4);
  save("b.npy", 5, 2, -6);
  save("nan.npy", 2, 1, NAN);
  io::write_npy(folder_ / "wide.npy", HostTensor::of<float>({1, 2}, {1, 2}));
  const std::string line = "m.onnx --output q.onnx --method static ";
  expect_refused(line + "--input x=a.npy --input x=nan.npy", 1, "x is NaN or infinite on the");
  expect_refused(line + "--input x=a.npy --input x=wide.npy", 1, "x");
  expect_refused(line +
                     "--input x=a.npy --input x=b.npy --input y=a.npy --input y=a.npy --input "
                     "y=a.npy",
                 2, "--input x is given 2 times and --input y 3 times");
  expect_refused(line + "--bits 4", 2, "--method static: expected --bits 8; got 4");
  expect_refused(line + "--percentile 99", 2, "--percentile is for --range percentile");
  expect_refused("m.onnx --output q.onnx --range entropy", 2, "--range is for --method static");
  expect_refused("m.onnx --output q.onnx --input x=a.npy --input x=b.npy", 2, "given twice");
  expect_refused("folder --output q.onnx --method static", 2,
                 "--method static is for an ONNX file");
  for (const std::string range : {"minmax", "percentile", "entropy"}) {
    ASSERT_EQ(quantize(line + "--input x=a.npy --input x=b.npy --json --force --range " + range), 0)
        << err_;
    const auto report = nlohmann::json::parse(out_);
    EXPECT_EQ(report["method"], "static");
    EXPECT_EQ(report["range"], range);
    EXPECT_EQ(report["runs"], 2);
    const auto bounds = report["activations"]["x"];
    EXPECT_GE(bounds[0].get<double>(), -6);
    EXPECT_LE(bounds[1].get<double>(), 4);
    if (range == "minmax") {
      EXPECT_EQ(bounds[0], -6);
      EXPECT_EQ(bounds[1], 4);
      EXPECT_GT(report["outputs"][0]["cosine"].get<double>(), 0.999);
    }
    EXPECT_TRUE(report["warnings"].empty() || range != "minmax") << out_;
    EXPECT_GT(report["weights"]["bytes_before"].get<double>(),
              3.5 * report["weights"]["bytes"].get<double>());
    EXPECT_EQ(quantize("q.onnx --output twice.onnx --method static"), 1);
    EXPECT_NE(err_.find("is quantised already (it has DequantizeLinear)"), std::string::npos);
    fs::remove(folder_ / "q.onnx");
  }
  ASSERT_EQ(quantize(line + "--size rows=4 --no-measure"), 0) << err_;
  EXPECT_NE(err_.find("WARNING: the ranges of activations come from made-up inputs (x)"),
            std::string::npos)
      << err_;
}

TEST_F(QuantizeOnnxFile, WarnsWhereNothingCanBeCompared) {
  onnx::ModelProto m = product();
  const std::vector<int64_t> zero = {0};
  m.graph.initializers.push_back(tensor("zero", onnx::ElementType::i64, {1}, zero));
  m.graph.nodes.push_back(node("Slice", {"h", "zero", "zero"}, "nothing"));
  m.graph.outputs = {value("nothing", onnx::ElementType::f32, {{0, ""}, {kQuantizeWidth, ""}})};
  write(m);
  ASSERT_EQ(quantize("m.onnx --output q.onnx"), 0) << err_;
  EXPECT_NE(err_.find("WARNING: the quality is not checked"), std::string::npos) << err_;
  EXPECT_EQ(out_.find("outputs against"), std::string::npos) << out_;
}

}  // namespace
}  // namespace brrr
