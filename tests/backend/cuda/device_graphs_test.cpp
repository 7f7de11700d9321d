// Whole graphs on device kernels under the emulation: random clusters, views, and a training step
// of a small GPT-2, against the meaning of the graph; fused and not, the same bits.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "ir/text.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/cuda_emulator.h"
#include "support/derived_weights.h"
#include "support/gpt2.h"
#include "support/graph_run.h"
#include "support/random_clusters.h"
#include "support/random_graph.h"

namespace brrr::cuda {
namespace {

using test::GraphRun;

const Backend& backend() {
  static const Backend b = test::emulated_backend();
  return b;
}

struct Pair {
  uint32_t seed = 0;
  Graph plain, fused;
  reference::Tensors in;
  std::unique_ptr<GraphRun> plain_run, fused_run;
};

Pair pair_of(uint32_t seed, const Graph& g, reference::Tensors in) {
  Pair p{seed, simplify(decompose(g, backend().target())), {}, std::move(in), nullptr, nullptr};
  const Target target = backend().target();
  p.fused = fuse_epilogues(fuse(fuse_bias_gradients(p.plain, target), target), target);
  verify(p.fused);
  for (auto& [name, t] : p.in)
    for (double& x : t.data) x = rounded_to(t.type.dtype, x);
  p.plain_run = std::make_unique<GraphRun>(p.plain, backend());
  p.fused_run = std::make_unique<GraphRun>(p.fused, backend());
  return p;
}

bool is_delicate(const Graph& g) {
  for (const Node& node : g.nodes())
    for (const Type& t : node.results)
      if (t.dtype == boolean || t.dtype == bf16 || t.dtype == f16) return true;
  return false;
}

void check(std::vector<Pair>& pairs) {
  test::compile_emulated();
  for (Pair& p : pairs) {
    SCOPED_TRACE(fmt::format("seed {}", p.seed));
    const reference::Tensors plain = p.plain_run->run(p.in), fused = p.fused_run->run(p.in);
    EXPECT_EQ(test::difference(plain, fused), 0) << print(p.fused);
    if (!is_delicate(p.plain)) {
      EXPECT_LT(test::difference(reference::evaluate(p.plain, p.in), plain), 1e-3);
    }
    if (testing::Test::HasFailure()) return;
  }
}

size_t fused_nodes(const std::vector<Pair>& pairs) {
  size_t n = 0;
  for (const Pair& p : pairs)
    for (const Node& node : p.fused.nodes()) n += is(node, Op::fused);
  return n;
}

uint32_t graphs() {
  const auto given = env::get("BRRR_FUZZ_GRAPHS");
  return given ? static_cast<uint32_t>(std::stoul(*given)) : 24;
}

TEST(DeviceGraphs, FusionChangesNoBitOfRandomGraphs) {
  std::vector<Pair> pairs;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    const Graph g = test::RandomGraph(seed).graph();
    pairs.push_back(pair_of(seed, g, test::random_inputs(g, seed, -1, 1, 5)));
  }
  EXPECT_GT(fused_nodes(pairs), graphs());
  check(pairs);
}

TEST(DeviceGraphs, FusionChangesNoBitOfRowsOfAllKinds) {
  std::vector<Pair> pairs;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    const Graph g = test::RandomRows(seed).graph();
    pairs.push_back(pair_of(seed, g, test::random_inputs(g, seed, -1.5, 1.5, 2)));
  }
  EXPECT_GT(fused_nodes(pairs), graphs());
  check(pairs);
}

TEST(DeviceGraphs, FusionChangesNoBitOfProducts) {
  std::vector<Pair> pairs;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    const Graph g = test::RandomProducts(seed).graph();
    pairs.push_back(pair_of(seed, g, test::random_inputs(g, seed, -1.5, 1.5, 2)));
  }
  EXPECT_GT(fused_nodes(pairs), graphs() / 2);
  check(pairs);
}

TEST(DeviceGraphs, FusionChangesNoBitOfBiasGradients) {
  std::vector<Pair> pairs;
  size_t gradients = 0;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    const Graph g = test::RandomBiasGradients(seed, 50).graph();
    pairs.push_back(pair_of(seed, g, test::random_inputs(g, seed, -1.5, 1.5, 2)));
    for (const Node& node : pairs.back().fused.nodes())
      gradients += is(node, Op::fused) && bias_gradient_of(fused_body(node)).has_value();
  }
  EXPECT_GT(gradients, graphs() / 3);
  check(pairs);
}

/// An operand that begins where no vector of 16 bytes does.
TEST(DeviceGraphs, OperandsThatAreViews) {
  Graph g;
  std::vector<Pair> pairs;
  Value x = g.input("x", {9, 37}, f32), h = g.input("h", {9, 12}, bf16),
        w = g.input("w", {37}, f32);
  Value a = slice(x, 0, 1, 8), b = slice(h, 0, 3, 4);
  g.output("0", a + w);
  g.output("1", tanh(b) * b);
  g.output("2", layer_norm(a, w, w).y);
  g.output("3", softmax(cast(b, f32)));
  g.output("4", transpose(b, {1, 0}));
  g.output("5", sum(a, {0}));
  g.output("6", concat(std::vector<Value>{b, slice(h, 0, 1, 2)}, 0));
  g.output("7", pad(b, 1, 4, 8));
  pairs.push_back(pair_of(0, g, test::random_inputs(g, 1, -1, 1, 5)));
  check(pairs);
}

/// What is quantised leaves its producer in 8 bits, as it is and transposed; its scale leaves the
/// producer, too. GELU is computed twice instead of being written.
TEST(DeviceGraphs, QuantisedCopiesComeFromTheirProducers) {
  std::vector<Pair> pairs;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{128, 64},
                                      {16, 16},
                                      {1, 1},
                                      {129, 65},
                                      {200, 136},
                                      {48, 70},
                                      {256, 320}}) {
    Graph g;
    const Value z = g.input("z", {rows, columns}, bf16), w = g.input("w", {columns}, f32);
    const Value b = g.input("b", {columns}, f32), x = g.input("x", {rows, columns}, f32);
    const auto add = [&](const std::string& name, Value q) {
      g.output(name, q);
      g.output(name + "T", transpose(q, {1, 0}));
    };
    const Value scale = quantize_scale(gelu(z), f8e4m3);
    add("gelu", quantize(gelu(after(z, scale)), scale, f8e4m3));
    const Value y = cast(layer_norm(x + cast(z, f32), w, b).y, bf16);
    const Value scale_y = quantize_scale(y, f8e4m3);
    add("norm", quantize(y, scale_y, f8e4m3));
    const Value d = cast(x * cast(z, f32), bf16), scale_d = quantize_scale(d, f8e5m2);
    add("grad", quantize(d, scale_d, f8e5m2));
    g.output("bias", sum(cast(d, f32), {0}));
    pairs.push_back(pair_of(static_cast<uint32_t>(rows), g, test::random_inputs(g, 1, -2, 2, 5)));
    const auto stays = [](const Node& node) {
      const std::string& op = node.op->name;
      return op == "transpose" || op == "gelu" || op.starts_with("quantize");
    };
    const auto& nodes = pairs.back().fused.nodes();
    if (columns > 1) {
      EXPECT_TRUE(std::none_of(nodes.begin(), nodes.end(), stays)) << print(pairs.back().fused);
    }
  }
  check(pairs);
}

Graph training_graph(const models::Gpt2Config& config, const Target& target, DType precision,
                     const optim::Optimizer& optimizer, optim::Accumulation accumulation) {
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  options.precision = precision;
  options.optimizer = [&](Graph& graph) {
    optim::attach_optimizer(graph, optimizer, accumulation);
  };
  options.refresher = Refresher::update;
  return run_pipeline(config.model()->loss(3, 7), target, options);
}

reference::Tensors inputs_of(const Graph& g, const models::Gpt2Config& config) {
  reference::Tensors in = test::gpt2_inputs(g, config, 5);
  for (auto& [name, t] : in)
    for (double& x : t.data) {
      if (name == "optimizer_step") x = 1;
      if (name == "learning_rate") x = 1e-3;
      if (name.starts_with("adam_v") || name.starts_with("adafactor")) x = std::fabs(x) + 0.1;
      x = rounded_to(t.type.dtype, x);
    }
  return in;
}

/// The inputs, and the derived weights of a graph as they are then.
reference::Tensors and_derived(reference::Tensors in, const Graph& graph) {
  const Graph refresh = test::refresh_of(graph);
  for (NodeId id : refresh.inputs(InputKind::state)) {
    in[refresh.input_name(id)] = RefTensor(refresh.type({id, 0}));
  }
  for (auto& [name, t] : reference::evaluate(refresh, in)) {
    RefTensor& state = in[name.substr(std::string("update:").size())];
    state = t;
    for (double& x : state.data) x = rounded_to(t.type.dtype, x);
  }
  return in;
}

/// Forward, backward, clipping and AdamW.
TEST(DeviceGraphs, TrainingStepOfGpt2) {
  std::vector<Pair> pairs;
  for (const bool bias : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      auto config = test::tiny_gpt2(bias, dropout);
      config.n_embd = 36;
      Pair p;
      p.plain = training_graph(config, Target{}, f32, {}, optim::Accumulation::none);
      p.fused = training_graph(config, backend().target(), f32, {}, optim::Accumulation::none);
      p.in = inputs_of(p.fused, config);
      p.fused_run = std::make_unique<GraphRun>(p.fused, backend());
      pairs.push_back(std::move(p));
    }
  test::compile_emulated();
  for (Pair& p : pairs)
    EXPECT_LT(test::difference(reference::evaluate(p.plain, p.in), p.fused_run->run(p.in)), 1e-3);
}

/// Every optimizer, with gradients collected over several runs or not.
TEST(DeviceGraphs, EveryOptimizerHasItsKernels) {
  std::vector<Pair> pairs;
  auto config = test::tiny_gpt2(true, 0.1);
  for (const auto& name : optim::optimizer_names())
    for (const auto accumulation :
         {optim::Accumulation::none, optim::Accumulation::middle, optim::Accumulation::last}) {
      if (accumulation == optim::Accumulation::middle && name.kind != optim::OptimizerKind::adamw)
        continue;
      optim::Optimizer optimizer;
      optimizer.kind = name.kind;
      Pair p;
      p.seed = static_cast<uint32_t>(name.kind);
      p.plain = training_graph(config, Target{}, f32, optimizer, accumulation);
      p.fused = training_graph(config, backend().target(), f32, optimizer, accumulation);
      p.in = inputs_of(p.fused, config);
      p.fused_run = std::make_unique<GraphRun>(p.fused, backend());
      pairs.push_back(std::move(p));
    }
  test::compile_emulated();
  for (Pair& p : pairs) {
    SCOPED_TRACE(fmt::format("optimizer {}", p.seed));
    reference::Tensors wanted = reference::evaluate(p.plain, p.in), got = p.fused_run->run(p.in);
    for (reference::Tensors* t : {&wanted, &got})  // a code may be the neighbour of the one wanted
      std::erase_if(*t, [](const auto& item) { return item.second.type.dtype == u8; });
    EXPECT_LT(test::difference(wanted, got), 2e-3);
  }
}

/// Mixed precision on the matrix unit: heads of 64. What is compared was computed without rounding.
TEST(DeviceGraphs, TrainingStepInBf16) {
  auto config = test::tiny_gpt2(true, 0.1);
  config.n_embd = 128;
  config.n_head = 2;
  const Graph plain = training_graph(config, Target{}, f32, {}, optim::Accumulation::none);
  const Graph fused =
      training_graph(config, backend().target(), bf16, {}, optim::Accumulation::none);
  size_t on_matrix_unit = 0;
  for (NodeId id = 0; id < fused.size(); ++id)
    if (fused.node(id).op->is_attention)
      on_matrix_unit += backend().choose(NodeView(fused, id)).entry->name == "tma";
  EXPECT_EQ(on_matrix_unit, 4u);
  const reference::Tensors in = inputs_of(plain, config);
  GraphRun run(fused, backend());
  test::compile_emulated();
  const reference::Tensors wanted = reference::evaluate(plain, in);
  const reference::Tensors got = run.run(and_derived(in, fused));
  const Backend host = cpu::cpu_backend();
  // Others: they may lie in panels.
  const Graph on_host = training_graph(config, host.target(), bf16, {}, optim::Accumulation::none);
  const reference::Tensors other = GraphRun(on_host, host).run(and_derived(in, on_host));
  // As far from what is exact as the host's kernels in bf16 are.
  for (const auto& [name, t] : wanted) {
    const double device_error = test::difference({{name, t}}, {{name, got.at(name)}});
    const double host_error = test::difference({{name, t}}, {{name, other.at(name)}});
    EXPECT_LT(device_error, 3 * host_error + 1e-6) << name;
  }
}

/// A step with products in 8 bits against the fp64 meaning of the same graph, and its loss beside
/// that of bf16.
TEST(DeviceGraphs, TrainingStepIn8Bits) {
  auto config = test::tiny_gpt2(true, 0.1);
  config.n_embd = 64;
  config.n_head = 2;
  const auto build = [&](const Target& target, bool fp8) {
    PipelineOptions options;
    options.loss = "loss";
    options.verify = true;
    options.precision = bf16;
    options.fp8 = fp8;
    return run_pipeline(config.model()->loss(2, 8), target, options);
  };
  const Graph meant = build(Target{}, true), device = build(backend().target(), true);
  const Graph in_bf16 = build(backend().target(), false);
  size_t products = 0;
  for (const Node& node : device.nodes()) products += is(node, Op::scaled_matmul);
  EXPECT_EQ(products, 24u);
  reference::Tensors in = inputs_of(meant, config);
  test::cool_weights(in);
  GraphRun run(device, backend()), run_bf16(in_bf16, backend());
  test::compile_emulated();
  const auto wanted = reference::evaluate(meant, in), got = run.run(in), beside = run_bf16.run(in);
  // A number that is rounded to bf16 first may fall to the other side of a middle.
  const double loss = wanted.at("loss").data[0];
  EXPECT_NEAR(got.at("loss").data[0], loss, 2e-3 * loss);
  EXPECT_NEAR(got.at("loss").data[0], beside.at("loss").data[0], 0.01 * loss);
  for (const auto& [name, t] : wanted) {
    double gap = 0, norm = 0;
    for (size_t i = 0; i < t.data.size(); ++i) {
      gap += std::pow(t.data[i] - got.at(name).data[i], 2);
      norm += std::pow(t.data[i], 2);
    }
    EXPECT_LT(std::sqrt(gap), 0.1 * std::sqrt(norm) + 1e-6) << name;
  }
}

TEST(DeviceGraphs, InferenceOfGpt2) {
  std::vector<Pair> pairs;
  const auto config = test::tiny_gpt2();
  const Graph graphs[] = {config.model()->forward(2, 5),
                          config.model()->decode({2, 1, config.n_positions}),
                          config.model()->decode({1, 3, config.n_positions})};
  for (const Graph& g : graphs) {
    Pair p;
    p.plain = run_pipeline(g, Target{}, {});
    p.fused = run_pipeline(g, backend().target(), {});
    p.in = inputs_of(p.fused, config);
    if (p.in.contains("position")) p.in["position"].data = {2};
    p.fused_run = std::make_unique<GraphRun>(p.fused, backend());
    pairs.push_back(std::move(p));
  }
  test::compile_emulated();
  for (Pair& p : pairs)
    EXPECT_LT(test::difference(reference::evaluate(p.plain, p.in), p.fused_run->run(p.in)), 1e-3);
}

}  // namespace
}  // namespace brrr::cuda
