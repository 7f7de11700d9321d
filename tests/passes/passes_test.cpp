// Every pass against the reference interpreter, before and after.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/memory/memory_plan.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::RandomGraph;

constexpr uint32_t kGraphs = 400;
constexpr double kIdentical = 0;

// body(graph, inputs) for every random graph; failures name the seed.
template <typename Body>
void for_random_graphs(bool with_loss, Body&& body) {
  for (uint32_t seed = 0; seed < kGraphs; ++seed) {
    const RandomGraph random(seed, 30, with_loss);
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    body(random.graph(), test::random_inputs(random.graph(), seed, -1, 1, 5));
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << print(random.graph());
      return;
    }
  }
}

struct Variant {
  const char* name;
  bool bias;
  double dropout;
};
constexpr Variant kVariants[] = {{"bias", true, 0},
                                 {"no bias", false, 0},
                                 {"bias, dropout", true, 0.2},
                                 {"no bias, dropout", false, 0.2}};

template <typename Body>
void for_gpt2_graphs(Body&& body) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(v.name);
    const auto config = test::tiny_gpt2(v.bias, v.dropout);
    const Graph graph = config.model()->loss(2, 5);
    body(graph, test::gpt2_inputs(graph, config, 11));
  }
}

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

void check_same(const Graph& before, const Graph& after, const reference::Tensors& in,
                double tolerance) {
  verify(after);
  EXPECT_LE(test::difference(reference::evaluate(before, in), reference::evaluate(after, in)),
            tolerance);
}

TEST(Simplify, ChangesNoBitOfRandomGraphs) {
  size_t before = 0, after = 0;
  for_random_graphs(true, [&](const Graph& g, const auto& in) {
    const Graph out = simplify(g);
    check_same(g, out, in, kIdentical);
    EXPECT_TRUE(simplify(out) == out) << "a second time changes something";
    before += g.size();
    after += out.size();
  });
  EXPECT_LT(after, before * 9 / 10);
}

TEST(Simplify, ChangesNoBitOfGpt2AndItsGradients) {
  for_gpt2_graphs([&](const Graph& g, const auto& in) {
    check_same(g, simplify(g), in, kIdentical);
    const Graph full = differentiate(g), out = simplify(full);
    check_same(full, out, in, kIdentical);
    EXPECT_LT(out.size(), full.size());
    EXPECT_TRUE(simplify(out) == out);
  });
}

// One rule each: what stands for y afterwards.
Graph simplified(const std::function<Value(Value x, Value w)>& build) {
  Graph g;
  Value x = g.input("x", {3, 4}, f32), w = g.input("w", {3, 4}, f32);
  g.output("y", build(x, w));
  return simplify(g);
}
const Node& output_node(const Graph& g) { return g.node(g.outputs()[0].value.node); }

TEST(Simplify, RemovesWhatDoesNothing) {
  const std::function<Value(Value, Value)> nothing[] = {
      [](Value x, Value) { return x + 0.0; },
      [](Value x, Value) { return 0.0 + x; },
      [](Value x, Value) { return x - 0.0; },
      [](Value x, Value) { return x * 1.0; },
      [](Value x, Value) { return 1.0 * x; },
      [](Value x, Value) { return x / 1.0; },
      [](Value x, Value) { return -(-x); },
      [](Value x, Value) {
        return reshape(reshape(x, {12}), {3, 4});
      },
      [](Value x, Value) {
        return transpose(transpose(x, {1, 0}), {1, 0});
      },
      [](Value x, Value) { return slice(x, 1, 0, 4); },
      [](Value x, Value) { return sum(x, {}); },
      [](Value x, Value) {
        return broadcast_to(x, {3, 4});
      },
      [](Value x, Value w) {
        return where(full(*x.graph, {3, 1}, 1, DType::boolean), x, w);
      },
      [](Value x, Value w) {
        return where(reshape(full(*x.graph, {4}, 0, DType::boolean), {1, 4}), w, x);
      },
  };
  for (size_t i = 0; i < std::size(nothing); ++i) {
    const Graph g = simplified(nothing[i]);
    EXPECT_EQ(g.outputs()[0].value, (ValueId{0, 0})) << "rule " << i << "\n" << print(g);
    EXPECT_EQ(g.size(), 2u) << "rule " << i << "\n" << print(g);
  }
}

TEST(Simplify, KeepsWhatOnlyLooksLikeNothing) {
  // 0 - x, 1 / x, and constants that broadcast the result to a larger shape.
  EXPECT_EQ(output_node(simplified([](Value x, Value) { return 0.0 - x; })).op->name, "sub");
  EXPECT_EQ(output_node(simplified([](Value x, Value) { return 1.0 / x; })).op->name, "div");
  const Graph g = simplified([](Value x, Value) { return x + full(*x.graph, {2, 3, 4}, 0); });
  EXPECT_EQ(g.type(g.outputs()[0].value).shape, (Shape{2, 3, 4}));
  // A condition that widens what it chooses.
  const Graph wide = simplified([](Value x, Value w) {
    return where(full(*x.graph, {2, 1, 1}, 1, DType::boolean), x, w);
  });
  EXPECT_EQ(output_node(wide).op->name, "broadcast_to") << print(wide);
  const Graph both = simplified([](Value x, Value w) {
    const Value yes = scalar(*x.graph, 1, DType::boolean);
    return cast(logical_and(yes, logical_or(less(x, w), logical_not(yes))), f32);
  });
  EXPECT_EQ(count_ops(both, "logical_and"), 0u) << print(both);
  EXPECT_EQ(count_ops(both, "logical_or"), 1u) << print(both);
  // Pads of different shapes that broadcast in the sum are no concat.
  const Graph pads = simplified([](Value x, Value w) {
    return pad(slice(x, 1, 0, 2), 1, 0, 2) + pad(slice(slice(w, 1, 0, 2), 0, 0, 1), 1, 2, 0);
  });
  EXPECT_EQ(output_node(pads).op->name, "add");
}

TEST(Simplify, FoldsTransposesAndPadsAndMergesTwins) {
  const Graph m = simplified([](Value x, Value w) {
    return matmul(transpose(x, {1, 0}), w) + matmul(transpose(x, {1, 0}), w);
  });
  EXPECT_EQ(count_ops(m, "transpose"), 0u) << print(m);
  EXPECT_EQ(count_ops(m, "matmul"), 1u) << print(m);
  const Graph c = simplified([](Value x, Value w) {
    return pad(x, 1, 4, 8) + (pad(w, 1, 0, 12) + pad(x, 1, 8, 4)) + pad(w, 1, 12, 0);
  });
  EXPECT_EQ(output_node(c).op->name, "concat") << print(c);
  EXPECT_EQ(c.size(), 3u) << print(c);
  // Two draws of different streams are no twins.
  Graph g;
  Value key = g.input("key", {2}, i32);
  g.output("a", random_bits(key, {8}, 1));
  g.output("b", random_bits(key, {8}, 2));
  g.output("c", random_bits(key, {8}, 1));
  EXPECT_EQ(count_ops(simplify(g), "random_bits"), 2u);
}

// -- decompose
// ---------------------------------------------------------------------------------------

TEST(Decompose, KeepsTheMeaningAndLeavesPrimitives) {
  for_random_graphs(false, [&](const Graph& g, const auto& in) {
    const Graph out = decompose(g, Target{});
    for (const Node& node : out.nodes()) EXPECT_FALSE(node.op->is_composite()) << node.op->name;
    check_same(g, out, in, kIdentical);  // the interpreter evaluates composites in just this way
  });
  for_gpt2_graphs([&](const Graph& g, const auto& in) {
    const Graph full = differentiate(g);
    const Graph out = decompose(full, Target{});
    for (const Node& node : out.nodes()) EXPECT_FALSE(node.op->is_composite()) << node.op->name;
    check_same(full, out, in, 1e-12);
  });
}

TEST(Decompose, LeavesWhatTheTargetRuns) {
  Target target;
  target.runs = [](const Graph& g, NodeId id) { return is(g.node(id), Op::softmax); };
  const Graph g = test::tiny_gpt2().model()->loss(2, 5);
  const Graph out = decompose(g, target);
  EXPECT_EQ(count_ops(out, "softmax"), count_ops(g, "softmax"));
  EXPECT_EQ(count_ops(out, "layer_norm"), 0u);
}

// -- differentiate
// -----------------------------------------------------------------------------------

TEST(Differentiate, AgreesWithDifferencesOnGpt2) {
  for_gpt2_graphs([&](const Graph& g, const reference::Tensors& in) {
    const auto grads = reference::evaluate(differentiate(g), in);
    test::Random random(5);
    for (NodeId id : g.inputs(InputKind::parameter)) {
      const std::string& name = g.input_name(id);
      const RefTensor& grad = grads.at("grad:" + name);
      double top = 1e-3;
      for (double x : grad.data) top = std::max(top, std::fabs(x));
      for (int k = 0; k < 4; ++k) {
        const auto i = static_cast<size_t>(random.below(static_cast<int64_t>(grad.data.size())));
        double side[2];
        const double h = 1e-5;
        for (int s : {0, 1}) {
          auto moved = in;
          moved[name].data[i] += s == 0 ? -h : h;
          side[s] = reference::evaluate(g, moved).at("loss").data[0];
        }
        EXPECT_NEAR(grad.data[i], (side[1] - side[0]) / (2 * h), 1e-6 * top)
            << name << "[" << i << "]";
      }
    }
  });
}

TEST(Differentiate, AgreesWithDifferencesOnRandomGraphs) {
  for_random_graphs(true, [&](const Graph& g, const reference::Tensors& in) {
    const Graph full = differentiate(g);
    verify(full);
    const auto grads = reference::evaluate(full, in);
    // Along one random direction of all parameters: grad . d = dloss/dt.
    test::Random random(17);
    double slope = 0, scale = 1;
    const double h = 1e-6;
    reference::Tensors plus = in, minus = in;
    for (const char* name : {"w", "b"})
      for (size_t i = 0; i < in.at(name).data.size(); ++i) {
        const double d = random.uniform(-1, 1),
                     grad = grads.at(std::string("grad:") + name).data[i];
        slope += grad * d;
        scale += std::fabs(grad * d);
        plus[name].data[i] += h * d;
        minus[name].data[i] -= h * d;
      }
    const double up = reference::evaluate(g, plus).at("loss").data[0];
    const double down = reference::evaluate(g, minus).at("loss").data[0];
    scale += 1e-4 * std::fabs(up);  // cancellation of large losses
    EXPECT_NEAR(slope, (up - down) / (2 * h), 1e-5 * scale);
  });
}

TEST(Differentiate, KeepsOutputsUpdatesAndScopes) {
  const Graph g = test::tiny_gpt2().model()->loss(2, 5);
  Notes notes;
  const Graph out = differentiate(g, "loss", &notes);
  verify(out);
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_NE(out.find_output("loss"), nullptr);
  for (NodeId id : out.inputs(InputKind::parameter)) {
    const Output* grad = out.find_output("grad:" + out.input_name(id));
    ASSERT_NE(grad, nullptr) << out.input_name(id);
    EXPECT_EQ(out.type(grad->value), out.type({id, 0}));
  }
  bool found = false;
  for (NodeId id = 0; id < out.size(); ++id) found |= out.scope_of(id) == "backward:h.1.mlp";
  EXPECT_TRUE(found);
}

TEST(Differentiate, RefusesALossThatIsNone) {
  Graph g;
  Value w = g.parameter("w", {3});
  g.output("vector", w * 2.0);
  g.output("count", sum(cast(w, i32), {0}));
  g.output("loss", sum(w, {0}));
  EXPECT_THROW(differentiate(g, "absent"), UserError);
  EXPECT_THROW(differentiate(g, "vector"), UserError);
  EXPECT_THROW(differentiate(g, "count"), UserError);
  EXPECT_NO_THROW(differentiate(g, "loss"));
}

TEST(Differentiate, GivesZerosToWhatDoesNotReachTheLoss) {
  Graph g;
  Value w = g.parameter("w", {3}), lonely = g.parameter("lonely", {2, 2});
  g.output("loss", sum(w * w, {0}));
  g.output("other", sum(lonely, {0, 1}));
  Notes notes;
  const Graph out = differentiate(g, "loss", &notes);
  const auto values = reference::evaluate(out, test::random_inputs(out, 1, 1, 2, 1));
  EXPECT_EQ(values.at("grad:lonely").data, std::vector<double>(4, 0.0));
  EXPECT_NE(notes[0].find("lonely"), std::string::npos);
}

// -- inference
// ---------------------------------------------------------------------------------------

TEST(Inference, IsTheModelWithoutDropout) {
  const auto wet = test::tiny_gpt2(true, 0.2), dry = test::tiny_gpt2(true, 0);
  const Graph with = wet.model()->loss(2, 5), without = dry.model()->loss(2, 5);
  EXPECT_EQ(count_ops(with, "dropout"),
            7u);  // the embedding, then attention, two residuals per layer
  const Graph out = inference(with);
  EXPECT_EQ(count_ops(out, "dropout"), 0u);
  auto in = test::gpt2_inputs(with, wet, 3);
  EXPECT_EQ(test::difference(reference::evaluate(out, in), reference::evaluate(without, in)), 0);
  EXPECT_GT(test::difference(reference::evaluate(with, in), reference::evaluate(without, in)),
            1e-3);
}

// -- fuse
// --------------------------------------------------------------------------------------------

// Runs every cluster, and every composite as it is.
Target fusing_target() {
  Target target;
  target.name = "fusing";
  target.runs = [](const Graph&, NodeId) { return true; };
  return target;
}

TEST(Fuse, ChangesNoBitOfRandomGraphs) {
  size_t before = 0, after = 0;
  for_random_graphs(true, [&](const Graph& g, const auto& in) {
    const Graph full = simplify(differentiate(g)), out = fuse(full, fusing_target());
    check_same(full, out, in, kIdentical);
    EXPECT_TRUE(fuse(full, fusing_target()) == out) << "another result the second time";
    before += full.size();
    after += out.size();
  });
  EXPECT_LT(after, before * 3 / 4);
}

TEST(Fuse, ChangesNoBitOfGpt2AndItsGradients) {
  for_gpt2_graphs([&](const Graph& g, const auto& in) {
    const Graph full = simplify(differentiate(g));
    Notes notes;
    const Graph out = fuse(full, fusing_target(), &notes);
    check_same(full, out, in, kIdentical);
    ASSERT_FALSE(notes.empty());
    EXPECT_NE(notes.back().find("row clusters: "), std::string::npos) << notes.back();
    // Decomposing gives back what was fused.
    const Graph opened = decompose(out, Target{});
    check_same(full, opened, in, 1e-12);
    EXPECT_EQ(count_ops(opened, "fused"), 0u);
  });
}

TEST(Fuse, MakesOneNodeOfAChain) {
  Graph g;
  Value x = g.input("x", {64, 32}, f32), a = g.input("a", {}, f32), y = x;
  for (int i = 0; i < 100; ++i) y = y * a;
  g.output("y", y);
  const Graph out = fuse(g, fusing_target());
  EXPECT_EQ(out.size(), 3u) << print(out);
  EXPECT_EQ(fuse(g, Target{}), g) << "a target that runs no cluster";
}

TEST(Fuse, LeavesOutWhatWouldMakeACycle) {
  Graph g;
  Value x = g.input("x", {8, 8}, f32), e = exp(x), s = softmax(tanh(e));
  g.output("y", matmul(s, s) + e * 2.0);
  g.output("mean of rows", e - broadcast_to(sum(e, {1}, true), {8, 8}));
  const Graph out = fuse(g, fusing_target());
  verify(out);
  // exp, tanh, softmax and e * 2 in one, the difference in another; the sum of the product waits.
  EXPECT_EQ(count_ops(out, "fused"), 2u) << print(out);
  EXPECT_EQ(count_ops(out, "add"), 1u) << print(out);
  EXPECT_EQ(test::difference(reference::evaluate(g, test::random_inputs(g, 1, -1, 1, 2)),
                             reference::evaluate(out, test::random_inputs(g, 1, -1, 1, 2))),
            0);
}

TEST(Fuse, KeepsConstantsOutAndBroadcastsIn) {
  Graph g;
  Value x = g.input("x", {8, 8}, f32), b = g.input("b", {8}, f32);
  Value mask = less_equal(iota(g, {8, 8}, 1), iota(g, {8, 8}, 0));
  g.output("y", where(mask, x + broadcast_to(b, {8, 8}), scalar(g, -1)));
  const Graph out = fuse(g, fusing_target());
  EXPECT_EQ(count_ops(out, "fused"), 1u) << print(out);
  EXPECT_EQ(count_ops(out, "less_equal"), 1u) << "computed once, before the first step";
  EXPECT_EQ(count_ops(out, "broadcast_to"), 0u) << print(out);
}

// -- schedule
// ----------------------------------------------------------------------------------------

int64_t peak(const Graph& g) { return memory_plan(save_old_states(g)).peak_live_bytes; }

TEST(Schedule, ChangesNoValue) {
  for_random_graphs(true, [&](const Graph& g, const auto& in) {
    const Graph full = differentiate(g), out = schedule(full);
    EXPECT_EQ(out.size(), full.size());
    check_same(full, out, in, kIdentical);
  });
}

TEST(Schedule, TakesNoMoreMemoryOnGpt2) {
  for (const Variant& v : kVariants)
    for (int64_t length : {5, 8}) {
      SCOPED_TRACE(fmt::format("{}, length {}", v.name, length));
      const auto config = test::tiny_gpt2(v.bias, v.dropout);
      Graph g = simplify(differentiate(config.model()->loss(4, length)));
      optim::attach_optimizer(g, {});
      EXPECT_LE(peak(schedule(g)), peak(g));
      const Graph opened = simplify(decompose(g, Target{}));
      EXPECT_LE(peak(schedule(opened)), peak(opened)) << "decomposed";
      const auto in = test::gpt2_inputs(g, config, 7);
      EXPECT_EQ(test::difference(reference::evaluate(g, in), reference::evaluate(schedule(g), in)),
                0);
    }
}

// -- pipeline
// ----------------------------------------------------------------------------------------

TEST(Pipeline, RecordsEveryPassAndSwitchesOff) {
  const auto config = test::tiny_gpt2();
  const Graph g = config.model()->loss(2, 5);
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  options.optimizer = [](Graph& graph) { optim::attach_optimizer(graph, {}); };
  PipelineReport report;
  const Graph full = run_pipeline(g, Target{}, options, &report);
  std::string names;
  for (const PassRecord& r : report) names += r.name + " ";
  EXPECT_EQ(
      names,
      "simplify match_formulas match_attention match_loss_head channels_last pad_dims "
      "differentiate optimizer join_loss_head decompose simplify fuse fuse_epilogues schedule ");
  EXPECT_EQ(report.back().nodes, full.size());
  auto in = test::gpt2_inputs(full, config, 1);
  in["optimizer_step"].data = {3};
  for (const std::string& name : optional_passes()) {
    PipelineOptions without = options;
    without.disabled = {name};
    const Graph other = run_pipeline(g, Target{}, without);
    EXPECT_LE(test::difference(reference::evaluate(full, in), reference::evaluate(other, in)),
              1e-12)
        << name;
  }
  options.disabled = {"differentiate"};
  EXPECT_THROW(run_pipeline(g, Target{}, options), UserError);
}

}  // namespace
}  // namespace brrr
