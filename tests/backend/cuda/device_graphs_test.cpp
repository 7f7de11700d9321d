// Whole graphs on device kernels under the emulation: random clusters, views, and a training step
// of a small GPT-2, against the meaning of the graph; fused and not, the same bits.

#include <gtest/gtest.h>

#include "backend/cuda/cluster.h"
#include "base/env.h"
#include "ir/text.h"
#include "ops/fused.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/cuda_emulator.h"
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
  uint32_t seed;
  Graph plain, fused;
  reference::Tensors in;
  std::unique_ptr<GraphRun> plain_run, fused_run;
};

Pair pair_of(uint32_t seed, const Graph& g, reference::Tensors in) {
  Pair p{seed, simplify(decompose(g, backend().target())), {}, std::move(in), nullptr, nullptr};
  p.fused = fuse_epilogues(fuse(p.plain, backend().target()), backend().target());
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
    for (const Node& node : p.fused.nodes()) n += node.op->name == "fused";
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

/// Forward, backward, clipping and AdamW.
TEST(DeviceGraphs, TrainingStepOfGpt2) {
  std::vector<Pair> pairs;
  for (const bool bias : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      auto config = test::tiny_gpt2(bias, dropout);
      config.n_embd = 36;
      PipelineOptions options;
      options.loss = "loss";
      options.verify = true;
      options.optimizer = [](Graph& graph) { optim::attach_optimizer(graph, {}); };
      Pair p;
      p.seed = 5;
      p.plain = simplify(run_pipeline(nn::gpt2_loss_graph(config, 3, 7), Target{}, options));
      p.fused = run_pipeline(nn::gpt2_loss_graph(config, 3, 7), backend().target(), options);
      p.in = test::gpt2_inputs(p.fused, config, 5);
      for (auto& [name, t] : p.in)
        for (double& x : t.data) x = rounded_to(t.type.dtype, name == "optimizer_step" ? 1 : x);
      p.fused_run = std::make_unique<GraphRun>(p.fused, backend());
      pairs.push_back(std::move(p));
    }
  test::compile_emulated();
  for (Pair& p : pairs)
    EXPECT_LT(test::difference(reference::evaluate(p.plain, p.in), p.fused_run->run(p.in)), 1e-3);
}

}  // namespace
}  // namespace brrr::cuda
