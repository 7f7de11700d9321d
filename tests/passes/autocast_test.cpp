// Mixed precision: which op runs in what, and how far the results move.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

Graph gpt2_graph(double dropout = 0) { return test::tiny_gpt2(true, dropout).model()->loss(2, 5); }

Graph trained(const Graph& loss, DType precision, std::set<std::string> disabled = {}) {
  PipelineOptions p;
  p.loss = "loss";
  p.precision = precision;
  p.verify = true;
  p.disabled = std::move(disabled);
  return run_pipeline(loss, Target{}, p);
}

DType dtype_of_first(const Graph& g, std::string_view op) {
  for (NodeId id = 0; id < g.size(); ++id)
    if (g.node(id).op->name == op) return g.node(id).results[0].dtype;
  ADD_FAILURE() << "no " << op;
  return DType::f64;
}

TEST(Autocast, RunsEachOpByItsPolicy) {
  for (DType low : {DType::bf16, DType::f16}) {
    Notes notes;
    const Graph g = autocast(gpt2_graph(), low, &notes);
    verify(g);
    for (NodeId id = 0; id < g.size(); ++id) {
      const Node& node = g.node(id);
      SCOPED_TRACE(fmt::format("%{} {}", id, node.op->name));
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const DType t = g.type(node.operands[i]).dtype;
        if (!is_float(t)) continue;
        if (node.op->autocast == Autocast::fp32) {
          EXPECT_EQ(t, DType::f32);
        } else if (node.op->autocast == Autocast::low && node.op->casts_operand(node.attrs, i)) {
          EXPECT_EQ(t, low);
        }
      }
    }
    EXPECT_EQ(dtype_of_first(g, "gelu"), low);              // follows the product before it
    EXPECT_EQ(dtype_of_first(g, "embedding"), DType::f32);  // follows the parameter
    EXPECT_EQ(g.type(g.find_output("loss")->value), (Type{DType::f32, {}}));
    for (NodeId id : g.inputs(InputKind::parameter)) EXPECT_EQ(g.type({id, 0}).dtype, DType::f32);
    ASSERT_EQ(notes.size(), 3u);
    EXPECT_NE(notes[0].find("linear"), std::string::npos) << notes[0];
  }
}

TEST(Autocast, TheResidualStreamStaysInF32) {
  const Graph g = autocast(gpt2_graph(0.1), DType::bf16);
  int sums = 0;
  for (const Node& node : g.nodes()) {
    if (!is(node, Op::layer_norm)) continue;
    const Node& before = g.node(node.operands[0].node);
    EXPECT_EQ(before.results[0].dtype, DType::f32);
    sums += is(before, Op::add);
  }
  EXPECT_GT(sums, 2);
}

TEST(Autocast, ConvertsAValueOnce) {
  Graph g;
  Value x = g.input("x", {3, 4}, DType::f32);
  Value w = g.parameter("w", {4, 4});
  g.output("y", matmul(matmul(x, w), w) + matmul(x, w));
  const Graph out = autocast(g, DType::bf16);
  int casts = 0;
  for (const Node& node : out.nodes()) casts += is(node, Op::cast);
  EXPECT_EQ(casts, 3);  // x, w, and the result back to its type
  EXPECT_EQ(out.type(out.find_output("y")->value).dtype, DType::f32);
}

TEST(Autocast, ANumberWidensNothing) {
  Graph g;
  Value x = g.input("x", {3, 4}, DType::f32), w = g.parameter("w", {4, 4});
  g.output("y", matmul(x, w) * 2.0);
  const Graph out = autocast(g, DType::bf16);
  EXPECT_EQ(dtype_of_first(out, "mul"), DType::bf16);
}

// The judge rounds nothing, so to it both graphs are the same mathematics. What rounding does to
// the numbers is measured beside PyTorch's in gpt2_golden_test.
TEST(Autocast, ChangesNoMeaning) {
  for (double dropout : {0.0, 0.2}) {
    const auto config = test::tiny_gpt2(true, dropout);
    const Graph loss = gpt2_graph(dropout);
    const auto in = test::gpt2_inputs(loss, config, 11);
    const auto exact = reference::evaluate(trained(loss, DType::f32), in);
    for (DType low : {DType::bf16, DType::f16})
      EXPECT_LE(test::difference(exact, reference::evaluate(trained(loss, low), in)), 1e-12);
  }
}

TEST(Autocast, HoldsOnRandomGraphs) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const test::RandomGraph random(seed, 30, true);
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph out = autocast(random.graph(), DType::bf16);
    verify(out);
    const auto in = test::random_inputs(random.graph(), seed, -1, 1, 5);
    EXPECT_LE(
        test::difference(reference::evaluate(random.graph(), in), reference::evaluate(out, in)),
        1e-9);
    for (size_t i = 0; i < out.outputs().size(); ++i)
      EXPECT_EQ(out.type(out.outputs()[i].value),
                random.graph().type(random.graph().outputs()[i].value));
  }
}

TEST(KeepAccumulators, GivesWeightGradientsUnrounded) {
  const Graph loss = gpt2_graph();
  const Graph with = trained(loss, DType::bf16);
  const Graph without = trained(loss, DType::bf16, {"keep_accumulators"});
  int wide = 0;
  for (NodeId id : with.inputs(InputKind::parameter)) {
    const Output* grad = with.find_output("grad:" + with.input_name(id));
    const Node& node = with.node(grad->value.node);
    wide += is(node, Op::matmul) && node.attrs.find("dtype") != nullptr;
  }
  EXPECT_EQ(wide, 8);  // four linear layers in each of two blocks
  const auto in = test::gpt2_inputs(loss, test::tiny_gpt2(), 11);
  EXPECT_LE(test::difference(reference::evaluate(with, in), reference::evaluate(without, in)),
            1e-12);
}

// Where a target rounds activations, gradients of weights alone are wide, and logits are rounded.
TEST(KeepAccumulators, RoundsActivationsWhereTheTargetAsks) {
  const Graph loss = gpt2_graph();
  Target target;
  target.rounds_activations = true;
  // Keeps the composites, so that the loss head shows.
  target.runs = [](const Graph&, NodeId) { return true; };
  PipelineOptions p;
  p.loss = "loss";
  p.precision = DType::bf16;
  const Graph rounds = run_pipeline(loss, target, p);
  target.rounds_activations = false;
  const Graph keeps = run_pipeline(loss, target, p);
  const auto count = [](const Graph& g, bool wide, bool of_weights) {
    int n = 0;
    for (const Node& node : g.nodes()) {
      if (!is(node, Op::matmul, Op::linear)) continue;
      const bool transposed = node.attrs.get_or<bool>("transpose_a", false);
      n += (node.results[0].dtype == DType::f32) == wide && transposed == of_weights;
    }
    return n;
  };
  EXPECT_EQ(count(rounds, true, false), 0);
  EXPECT_GT(count(keeps, true, false), 0);
  EXPECT_EQ(count(rounds, true, true), count(keeps, true, true));
  EXPECT_EQ(count(rounds, false, true), count(keeps, false, true));
  const auto head = [](const Graph& g) {
    for (const Node& node : g.nodes())
      if (is(node, Op::linear_cross_entropy_step)) return node;
    return Node{};
  };
  ASSERT_FALSE(head(rounds).results.empty());
  EXPECT_TRUE(head(rounds).attrs.get_or<bool>("round_logits", false));
  EXPECT_FALSE(head(keeps).attrs.get_or<bool>("round_logits", false));
  EXPECT_EQ(head(rounds).results[2].dtype, DType::bf16);
  EXPECT_EQ(head(rounds).results[3].dtype, DType::f32);
  const auto in = test::gpt2_inputs(loss, test::tiny_gpt2(), 11);
  EXPECT_LE(test::difference(reference::evaluate(rounds, in), reference::evaluate(keeps, in)),
            1e-12);
}

TEST(LowParameters, StoresMatricesInLowAndKeepsTheMeaning) {
  const auto config = test::tiny_gpt2();
  const Graph loss = gpt2_graph();
  const Graph out = low_parameters(loss, DType::bf16);
  verify(out);
  for (NodeId id : out.inputs(InputKind::parameter))
    EXPECT_EQ(out.type({id, 0}).dtype,
              out.type({id, 0}).shape.rank() >= 2 ? DType::bf16 : DType::f32);
  for (const Node& node : out.nodes())  // a table is not converted to read a few rows of it
    if (is(node, Op::embedding)) {
      EXPECT_EQ(node.results[0].dtype, DType::bf16);
    }
  auto in = test::gpt2_inputs(loss, config, 3);
  const auto expected = reference::evaluate(loss, in);
  for (auto& [name, tensor] : in)
    if (const NodeId id = out.find_input(name); id != kNoNode) tensor.type = out.type({id, 0});
  EXPECT_LE(test::difference(expected, reference::evaluate(out, in)), 1e-12);
}

// A parameter beside other floats, one that is joined with another, and one that is an output.
TEST(LowParameters, WidensWhereF32IsMeant) {
  Graph g;
  const Value w = g.parameter("w", {3, 4}), u = g.parameter("u", {3, 4});
  g.output("beside", concat(std::vector{w, g.input("x", {2, 4}, f32)}, 0));
  g.output("joined", concat(std::vector{w, u}, 0));
  g.output("itself", w);
  const Graph out = low_parameters(g, DType::bf16);
  verify(out);
  for (const Output& o : out.outputs()) EXPECT_EQ(out.type(o.value).dtype, f32) << o.name;
  size_t joined_in_low = 0;  // parameters side by side are moved as they lie
  for (const Node& node : out.nodes())
    joined_in_low += is(node, Op::concat) && node.results[0].dtype == DType::bf16;
  EXPECT_EQ(joined_in_low, 1u);
  auto in = test::random_inputs(g, 5, -1, 1, 1);
  for (auto& [name, tensor] : in)
    for (double& x : tensor.data) x = rounded_to(DType::bf16, x);
  const auto expected = reference::evaluate(g, in);
  for (auto& [name, tensor] : in) tensor.type = out.type({out.find_input(name), 0});
  EXPECT_EQ(test::difference(expected, reference::evaluate(out, in)), 0);
}

TEST(MatmulPrecision, SplitsWhatItSays) {
  const auto config = test::tiny_gpt2();
  PipelineOptions p;
  p.loss = "loss";
  const Graph loss = gpt2_graph();
  const auto in = test::gpt2_inputs(loss, config, 3);
  const auto exact = reference::evaluate(run_pipeline(loss, Target{}, p), in);
  for (MatmulPrecision precision : {MatmulPrecision::medium, MatmulPrecision::high}) {
    p.matmul_precision = precision;
    const Graph out = run_pipeline(loss, Target{}, p);
    verify(out);
    size_t products = 0;
    for (const Node& node : out.nodes()) {
      if (!is(node, Op::matmul)) continue;
      ++products;
      EXPECT_EQ(out.type(node.operands[0]).dtype, DType::bf16);
      EXPECT_EQ(node.results[0].dtype, DType::f32);
    }
    EXPECT_GT(products, precision == MatmulPrecision::high ? 100u : 30u);
    // To the judge, which rounds nothing, the low halves are zero and all three are the same.
    EXPECT_LE(test::difference(exact, reference::evaluate(out, in)), 1e-12);
  }
}

TEST(Simplify, UndoesConversionsThatLoseNothing) {
  Graph g;
  Value x = g.input("x", {4}, DType::bf16), y = g.input("y", {4}, DType::f32);
  g.output("same", cast(cast(x, DType::f32), DType::bf16));
  g.output("rounded", cast(cast(y, DType::bf16), DType::f32));
  g.output("constant", cast(scalar(g, 0.1, DType::bf16), DType::f32));
  const Graph out = simplify(g);
  EXPECT_TRUE(out.is_input(out.find_output("same")->value.node));
  EXPECT_EQ(out.node(out.find_output("rounded")->value.node).op->name, "cast");
  const Node& constant = out.node(out.find_output("constant")->value.node);
  EXPECT_EQ(constant.op->name, "full");
  EXPECT_EQ(constant.attrs.get<double>("value"), 0.10009765625);
}

}  // namespace
}  // namespace brrr
