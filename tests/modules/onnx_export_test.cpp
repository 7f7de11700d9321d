// Graphs written as ONNX and read again: every op means the same, numbers follow the sizes, and
// what ONNX cannot say is refused.

#include "modules/onnx/export/onnx_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/errors.h"
#include "ir/text.h"
#include "modules/onnx/export/size_formula.h"
#include "modules/onnx/onnx_module.h"
#include "ops/control.h"
#include "ops/ops.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"
#include "support/tensors.h"

namespace brrr::test {
namespace {

using onnx::ExportedModel;
using onnx::ExportOptions;
using onnx::ExportSource;

/// A source of one graph without parameters.
ExportSource source_of(const Graph& graph) {
  ExportSource source;
  source.name = "test";
  source.graph = [&graph](const std::vector<int64_t>&) { return graph; };
  return source;
}

/// The graph that the file gives for inputs of these types.
Graph read_again(const ExportedModel& model, const Graph& inputs_of) {
  const std::string bytes = onnx::model_bytes(model.model());
  const auto module = onnx::open_module(onnx::File::parse(bytes, "exported.onnx"));
  GraphRequest request;
  for (const NodeId id : inputs_of.inputs(InputKind::data))
    request.data.emplace(inputs_of.input_name(id), inputs_of.type({id, 0}));
  for (const Port& port : module->outputs()) request.wanted.push_back(port.name);
  const LoweredGraph lowered = module->lower(request);
  EXPECT_TRUE(lowered.to_read.empty() && lowered.to_bind.empty());
  return lowered.graph;
}

void expect_same_values(const Graph& expected, const Graph& given, const reference::Tensors& in,
                        double tolerance) {
  const reference::Tensors a = reference::evaluate(expected, in),
                           b = reference::evaluate(given, in);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const RefTensor& other = b.at(name);
    ASSERT_EQ(tensor.type, other.type) << name;
    for (size_t i = 0; i < tensor.size(); ++i) {
      const double x = tensor.number(i), y = other.number(i);
      if (std::isnan(x) && std::isnan(y)) continue;
      if (x == y) continue;
      ASSERT_LE(std::abs(x - y), tolerance * std::max(1.0, std::abs(x)))
          << name << ", element " << i;
    }
  }
}

/// One node on inputs a0, a1, ...; its results are the outputs r0, r1, ...
Graph one_node(const OpDef& op, const Sample& sample) {
  Graph g;
  std::vector<ValueId> operands;
  for (size_t i = 0; i < sample.in.size(); ++i)
    operands.push_back(g.input(fmt::format("a{}", i), sample.in[i].type, Role::data).id);
  const NodeId id = g.add(op, operands, sample.attrs);
  for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
    g.output(fmt::format("r{}", port), g.value(id, port));
  return g;
}

reference::Tensors inputs_of(const Sample& sample) {
  reference::Tensors in;
  const std::vector<RefTensor> operands = operands_of(sample, 5);
  for (size_t i = 0; i < operands.size(); ++i) in[fmt::format("a{}", i)] = operands[i];
  return in;
}

bool is_of_inference(const OpDef& op) {
  return !op.updates_parameters && !op.is_gradient && !op.draws_random && op.id != Op::fused &&
         op.op_class != OpClass::optimizer && op.name != "store" && op.name != "winograd_weight" &&
         op.name != "input" && op.name != "dropout";
}

class EveryOpAsOnnx : public ::testing::TestWithParam<int64_t> {};

TEST_P(EveryOpAsOnnx, MeansTheSame) {
  // Where ONNX has no operator and no composition of them says it exactly.
  std::set<std::string> without = {"quantize_scale", "quantize", "cumprod", "bitcast",
                                   "update_rows"},
                        without_any;
  if (GetParam() < 19) without.insert("scaled_matmul");  // floats of 8 bits
  if (GetParam() < 18) without.insert({"bit_and", "bit_or", "bit_xor"});
  // Constants of compositions are rounded to the dtype of the graph.
  constexpr double kTolerance = 1e-6;
  std::map<std::string, std::string> refused;
  size_t written = 0;
  for (const OpDef* op : all_ops()) {
    if (!is_of_inference(*op)) continue;
    size_t written_of_op = 0;
    for (const Sample& sample : sampled(op->samples(), 4, op->name)) {
      bool is_skipped = sample.attrs.get_or<double>("p", 0) > 0;  // dropout is left out
      for (const Sample::Operand& o : sample.in) is_skipped |= !o.type.storage.is_plain();
      if (is_skipped) continue;
      const Graph graph = one_node(*op, sample);
      SCOPED_TRACE(print(graph));
      std::shared_ptr<const ExportedModel> model;
      try {
        model = onnx::export_model(source_of(graph), {.opset = GetParam()});
      } catch (const UserError& e) {
        refused[op->name] = e.what();
        continue;
      }
      expect_same_values(graph, read_again(*model, graph), inputs_of(sample), kTolerance);
      if (HasFatalFailure()) return;
      ++written_of_op;
    }
    written += written_of_op;
    if (written_of_op == 0) without_any.insert(op->name);
  }
  EXPECT_EQ(without_any, without);
  EXPECT_GT(written, 150u);
  for (const auto& [name, why] : refused) {
    EXPECT_NE(why.find("cannot be written with opset"), std::string::npos) << why;
    printf("%s: %s\n", name.c_str(), why.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Opsets, EveryOpAsOnnx, ::testing::Values(17, 18, 21, 23));

// -- open sizes
// ----------------------------------------------------------------------------------

// x: [batch, length, 6] is pooled, flattened, sliced, counted and compared with a past: sums,
// products and quotients of sizes.
Graph sized(int64_t batch, int64_t length, int64_t past) {
  Graph g;
  const Value x = g.input("x", {batch, length, 6}, DType::f32);
  const Value before = g.input("past", {batch, past, 6}, DType::f32);
  const Value weight = g.parameter("w", {6, 4});
  const std::vector<Value> parts{before, x};
  const Value all = concat(parts, 1);
  g.output("all", all);
  const Value rows = reshape(all, {batch * (past + length), 6});
  g.output("rows", matmul(rows, weight));
  g.output("new", slice(all, 1, past, length));
  const Value visible = less_equal(iota(g, {1, past + length}, 1),
                                   iota(g, {length, 1}, 0) + scalar(g, past, DType::i32));
  g.output("visible", visible);
  g.output("mean", sum(all, {1}) * (1.0 / static_cast<double>(past + length)));
  g.output("count", full(g, {}, past, DType::i32));
  const Value image = reshape(transpose(all, {0, 2, 1}), {batch, 6, past + length});
  const Value pooled = max_pool(image, {3}, {{2}, {1}, {1, 1}}).values;
  g.output("pooled", pooled);
  g.output("flat", reshape(pooled, {batch, 6 * pooled.shape().size(2)}));
  return g;
}

std::vector<float> weights_of_sized() {
  std::vector<float> w(24);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) * 0.25f - 2;
  return w;
}

ExportSource sized_source(const std::vector<float>& w) {
  ExportSource source;
  source.name = "sized";
  source.sizes = {"batch", "length", "past"};
  source.examples = {{2, 5, 7}, {3, 5, 8},  {4, 3, 9},  {5, 7, 4},
                     {7, 6, 5}, {2, 9, 30}, {3, 20, 11}};
  source.graph = [](const std::vector<int64_t>& s) { return sized(s[0], s[1], s[2]); };
  source.weight = [&w](std::string_view) { return std::as_bytes(std::span(w)); };
  return source;
}

TEST(OnnxExport, NumbersFollowTheSizes) {
  const std::vector<float> w = weights_of_sized();
  for (const int64_t opset : {17, 18, 21, 23}) {
    const auto model = onnx::export_model(sized_source(w), {.opset = opset});
    for (const auto& [batch, length, past] :
         {std::tuple(1, 1, 0), {1, 2, 3}, {6, 33, 2}, {2, 2, 2}, {9, 4, 40}}) {
      const Graph graph = sized(batch, length, past);
      SCOPED_TRACE(fmt::format("{} {} {}", batch, length, past));
      reference::Tensors in = random_inputs(graph, 3, -1, 1, 2);
      in["w"] = RefTensor(Type{DType::f32, {6, 4}}, {w.begin(), w.end()});
      const Graph again = read_again(*model, graph);
      expect_same_values(graph, again, in, 1e-6);
    }
  }
}

TEST(OnnxExport, NamesAndSizesAreDeclared) {
  const std::vector<float> w = weights_of_sized();
  const auto exported = onnx::export_model(sized_source(w));
  const onnx::ModelProto& model = exported->model();
  EXPECT_EQ(model.producer, "brrr");
  EXPECT_EQ(model.opsets.at(""), 18);
  const auto shape_of = [&](const std::vector<onnx::ValueInfo>& list, std::string_view name) {
    const auto at = std::ranges::find(list, name, &onnx::ValueInfo::name);
    std::vector<std::string> dims;
    if (at == list.end()) return dims;
    for (const onnx::Dimension& d : *at->type.shape)
      dims.push_back(d.size ? std::to_string(*d.size) : std::string(d.name));
    return dims;
  };
  using Dims = std::vector<std::string>;
  EXPECT_EQ(shape_of(model.graph.inputs, "x"), (Dims{"batch", "length", "6"}));
  EXPECT_EQ(shape_of(model.graph.inputs, "past"), (Dims{"batch", "past", "6"}));
  EXPECT_EQ(shape_of(model.graph.outputs, "all"), (Dims{"batch", "length + past", "6"}));
  EXPECT_EQ(shape_of(model.graph.outputs, "visible"), (Dims{"length", "length + past"}));
  ASSERT_FALSE(model.graph.initializers.empty());
  EXPECT_EQ(model.graph.initializers[0].name, "w");
}

TEST(OnnxExport, AnotherGraphForOtherSizesIsRefused) {
  ExportSource source = sized_source({});
  source.graph = [](const std::vector<int64_t>& s) {
    Graph g;
    Value x = g.input("x", {s[0]}, DType::f32);
    for (int64_t i = 0; i < s[0]; ++i) x = sin(x);
    g.output("y", x);
    return g;
  };
  EXPECT_THROW(onnx::export_model(source), onnx::SizesDiffer);
}

TEST(OnnxExport, FormulasAreFound) {
  const std::vector<onnx::SizeValues> sizes{{2, 3, 4, 5, 7, 2}, {5, 5, 3, 7, 16, 9}};
  const std::vector<std::string> names{"batch", "length"};
  const auto text = [&](const onnx::SizeValues& values) {
    const auto found = onnx::fit_formula(values, sizes);
    return found ? found->text(names) : "none";
  };
  EXPECT_EQ(text({4, 4, 4, 4, 4, 4}), "4");
  EXPECT_EQ(text({5, 5, 3, 7, 16, 9}), "length");
  EXPECT_EQ(text({9, 9, 5, 13, 31, 17}), "2 * length - 1");
  EXPECT_EQ(text({7, 8, 7, 12, 23, 11}), "batch + length");
  EXPECT_EQ(text({30, 45, 36, 105, 336, 54}), "3 * batch * length");
  EXPECT_EQ(text({3, 3, 2, 4, 8, 5}), "(length + 1) / 2");
  EXPECT_EQ(text({1, 9, 2, 8, 3, 7}), "none");
}

// -- files
// ---------------------------------------------------------------------------------------

TEST(OnnxExport, ExternalDataLiesBesideTheFile) {
  TempFolder folder;
  const std::vector<float> w(24 * 64, 0.5f);
  ExportSource source;
  source.name = "external";
  source.graph = [](const std::vector<int64_t>&) {
    Graph g;
    const Value x = g.input("x", {2, 6}, DType::f32);
    g.output("y", matmul(x, g.parameter("w", {6, 256})));
    return g;
  };
  source.weight = [&w](std::string_view) { return std::as_bytes(std::span(w)); };
  const fs::path path = folder.path() / "m.onnx";
  onnx::write_model(path, onnx::export_model(source)->model(), onnx::Placement::external);
  EXPECT_EQ(fs::file_size(folder.path() / "m.onnx.data"), w.size() * sizeof(float));
  EXPECT_LT(fs::file_size(path), 1000u);
  const auto file = onnx::File::load(path);
  ASSERT_EQ(file->graph.initializers.size(), 1u);
  EXPECT_EQ(file->graph.initializers[0].bytes.size(), w.size() * sizeof(float));
  EXPECT_EQ(
      std::memcmp(file->graph.initializers[0].bytes.data(), w.data(), w.size() * sizeof(float)), 0);
}

/// A branch in a branch and so on, as a region of the operands (c, x).
Graph nested_branches(int depth) {
  Graph g;
  const Value c = g.input("a0", {}, DType::boolean), x = g.input("a1", {4}, DType::f32);
  Value y = neg(x);
  if (depth > 0) {
    Graph other;
    other.input("a0", {}, DType::boolean);
    const Value in = other.input("a1", {4}, DType::f32);
    other.output("0", in + in);
    const std::vector<Value> captured{c, x};
    y = branch(c, Region(nested_branches(depth - 1)), Region(std::move(other)), captured)[0];
  }
  g.output("0", y);
  return g;
}

// Were the regions of each level entered twice, this would take a million times as long.
TEST(OnnxExport, NestedBranchesAreRewrittenOnce) {
  constexpr int kDepth = 20;
  const Graph graph = nested_branches(kDepth);
  const auto model = onnx::export_model(source_of(graph));
  int depth = 0;
  const onnx::GraphProto* at = &model->model().graph;
  while (at != nullptr) {
    const auto node = std::ranges::find(at->nodes, "If", &onnx::NodeProto::op_type);
    if (node == at->nodes.end()) break;
    ++depth;
    at = node->find("then_branch")->graph.get();
  }
  EXPECT_EQ(depth, kDepth);
}

TEST(OnnxExport, MatricesAreStoredInSixteenBits) {
  const std::vector<float> w(24, 0.3f);
  const auto exported = onnx::export_model(sized_source(w), {.storage = DType::bf16});
  const onnx::TensorProto& tensor = exported->model().graph.initializers[0];
  EXPECT_EQ(tensor.type, onnx::ElementType::bf16);
  EXPECT_EQ(tensor.bytes.size(), 48u);
  const Graph graph = sized(1, 2, 3);
  reference::Tensors in = random_inputs(graph, 3, -1, 1, 2);
  in["w"] = RefTensor(Type{DType::f32, {6, 4}}, {w.begin(), w.end()});
  constexpr double kOfBf16 = 1e-2;
  expect_same_values(graph, read_again(*exported, graph), in, kOfBf16);
}

}  // namespace
}  // namespace brrr::test
