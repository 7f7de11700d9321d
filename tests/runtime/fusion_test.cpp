// Fused programs against unfused ones on the CPU: the same bits, whatever was fused, for any number
// of threads, with operands overwritten in place or not.

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/gemm.h"
#include "backend/cpu/target.h"
#include "base/env.h"
#include "base/threads/thread_team.h"
#include "ir/text.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/each_isa.h"
#include "support/engine_run.h"
#include "support/gpt2.h"
#include "support/judge.h"
#include "support/random_clusters.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::Bytes;
using test::run_on_cpu;

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

size_t count_bias_gradients(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes())
    n += is(node, Op::fused) && bias_gradient_of(fused_body(node)).has_value();
  return n;
}

size_t count_epilogues(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes())
    n += is(node, Op::fused) && class_of(node) == OpClass::contraction;
  return n;
}

/// The target, but every product takes an epilogue, whether that gains anything here or not.
Target eager(const Backend& backend) {
  Target target = backend.target();
  target.gains_by_epilogue = [](const Graph&, NodeId, NodeId) { return true; };
  target.gains_by_bias_gradient = [](const Graph&, NodeId, NodeId) { return true; };
  return target;
}

Graph fuse_all(const Graph& plain, const Target& target) {
  return fuse_epilogues(fuse(fuse_bias_gradients(plain, target), target), target);
}

struct Found {
  size_t fused = 0, epilogues = 0, bias_gradients = 0;
};

/// Whether a last bit decides what comes out (a comparison), or 16 bits are all that is kept.
bool is_delicate(const Graph& g) {
  for (const Node& node : g.nodes())
    for (const Type& t : node.results)
      if (t.dtype == boolean || t.dtype == bf16 || t.dtype == f16) return true;
  return false;
}

/// Fuses, and compares.
Found check(const Graph& g, const reference::Tensors& in) {
  const Backend backend = cpu::cpu_backend();
  const Graph plain = simplify(decompose(g, backend.target()));
  const Graph fused = fuse_all(plain, eager(backend));
  verify(fused);
  EXPECT_TRUE(fuse_all(plain, eager(backend)) == fused) << "not the same every time";
  EXPECT_EQ(print(parse(print(fused), find_op)), print(fused));
  set_thread_count(2);
  const Bytes expected = run_on_cpu(plain, in, true);
  if (!is_delicate(plain)) test::judge(plain, in, expected);
  for (bool reuse : {true, false})
    for (int threads : {1, 3}) {
      set_thread_count(threads);
      const Bytes got = run_on_cpu(fused, in, reuse);
      for (const auto& [name, bytes] : expected)
        EXPECT_TRUE(got.at(name) == bytes)
            << name << ", threads " << threads << ", reuse " << reuse << "\n"
            << print(fused);
      if (testing::Test::HasFailure()) break;
    }
  set_thread_count(usable_processors());
  return {count_ops(fused, "fused"), count_epilogues(fused), count_bias_gradients(fused)};
}

class Fusion : public test::EachIsa {
 protected:
  /// How many graphs a test makes: fewer on lesser instruction sets, which run the same source.
  uint32_t graphs() const {
    if (const auto given = env::get("BRRR_FUZZ_GRAPHS"))
      return static_cast<uint32_t>(std::stoul(*given));
    if (test::is_sanitized()) return 25;
    return GetParam() == cpu::machine_isa() ? 250 : static_cast<uint32_t>(test::rounds(250, 80));
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Fusion, test::every_isa(), test::isa_of);

TEST_P(Fusion, ChangesNoBitOfRandomGraphs) {
  size_t clusters = 0;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomGraph(seed).graph();
    clusters += check(g, test::random_inputs(g, seed, -1, 1, 5)).fused;
    if (HasFailure()) return;
  }
  EXPECT_GT(clusters, graphs());
}

TEST_P(Fusion, ChangesNoBitOfRowsOfAllKinds) {
  size_t clusters = 0;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomRows(seed).graph();
    clusters += check(g, test::random_inputs(g, seed, -1.5, 1.5, 2)).fused;
    if (HasFailure()) return;
  }
  EXPECT_GT(clusters, graphs());
}

TEST_P(Fusion, ChangesNoBitOfProducts) {
  size_t epilogues = 0;
  for (uint32_t seed = 0; seed < graphs(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomProducts(seed).graph();
    epilogues += check(g, test::random_inputs(g, seed, -1.5, 1.5, 2)).epilogues;
    if (HasFailure()) return;
  }
  EXPECT_GT(epilogues, graphs() / 2);
}

/// Whether products of bf16 are made of packed tiles here.
bool packs_bf16() { return cpu::gemm_packs_tiles(bf16); }

TEST_P(Fusion, ChangesNoBitOfBiasGradients) {
  // Where nothing is packed there is only to see that nothing is fused.
  const size_t count = packs_bf16() ? graphs() / 2 : graphs() / 20;
  size_t found = 0;
  for (uint32_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomBiasGradients(seed).graph();
    found += check(g, test::random_inputs(g, seed, -1.5, 1.5, 2)).bias_gradients;
    if (HasFailure()) return;
  }
  if (packs_bf16()) {
    EXPECT_GT(found, count / 4);
  } else {
    EXPECT_EQ(found, 0u);
  }
}

/// Sizes at the borders of tiles, panels, tasks and chunks, of rows and of terms; either operand.
TEST_P(Fusion, ChangesNoBitOfBiasGradientsOfAnySize) {
  if (!packs_bf16()) GTEST_SKIP() << "no tiles of bf16 here";
  struct Sizes {
    int64_t rows, in, out;
  };
  size_t found = 0, cases = 0;
  for (const Sizes& s : {Sizes{1, 1, 1},
                         {1, 40, 33},
                         {5, 1, 70},
                         {33, 7, 1},
                         {64, 64, 16},
                         {100, 65, 31},
                         {2050, 30, 600},
                         {2600, 130, 513},
                         {300, 700, 1100},
                         {9001, 70, 45},
                         {8192, 96, 560},
                         {20000, 1030, 40},
                         {700, 40, 6100}})
    for (const bool left : {false, true}) {
      SCOPED_TRACE(fmt::format("{} rows of {} and {}, {}", s.rows, s.in, s.out, left));
      Graph g;
      const Value x = g.input("x", {s.rows, s.in}, bf16), dy = g.input("dy", {s.rows, s.out}, bf16);
      g.output("dw", left ? matmul(dy, x, true, false, f32) : matmul(x, dy, true, false, f32));
      g.output("db", sum(cast(dy, f32), {0}));
      // The meaning of a large product takes long: the unfused kernels are what it is held against.
      const Backend backend = cpu::cpu_backend();
      const Graph fused = fuse_all(g, eager(backend));
      found += count_bias_gradients(fused);
      ++cases;
      const auto in = test::random_inputs(g, 3, -1, 1, 2);
      set_thread_count(2);
      const Bytes expected = run_on_cpu(g, in);
      for (const int threads : {1, 2, 3, 3}) {
        set_thread_count(threads);
        EXPECT_TRUE(run_on_cpu(fused, in) == expected) << threads << " threads";
      }
      set_thread_count(usable_processors());
    }
  EXPECT_EQ(found, packs_bf16() ? cases : 0);
}

/// One program that collects a gradient: the sum is made in the state's own memory.
TEST(FusionOfProducts, AddsGradientsInPlace) {
  Graph g;
  Value x = g.input("x", {40, 24}, f32), dy = g.input("dy", {40, 70}, f32);
  Value sum = g.input("grad_sum:w", {24, 70}, f32, InputKind::state);
  g.update(sum, sum + matmul(x, dy, true));
  const Backend backend = cpu::cpu_backend();
  const Graph fused = fuse_all(g, eager(backend));
  EXPECT_EQ(count_epilogues(fused), 1u) << print(fused);
  const Program program(fused, backend);
  EXPECT_TRUE(program.plan().copies.empty());
  EXPECT_EQ(program.plan().temporary_bytes, x.type().bytes() + dy.type().bytes());
  check(g, test::random_inputs(g, 3, -1, 1, 2));
}

/// A reader that needs the product by way of a third node cannot join it; two pairs that need each
/// other cannot both be made.
TEST(FusionOfProducts, NeverMakesACycle) {
  Graph g;
  Value a = g.input("a", {8, 8}, f32), b = g.input("b", {8, 8}, f32);
  Value p = matmul(a, b), q = matmul(b, a);
  g.output("0", p + softmax(p));
  g.output("1", tanh(sum(q, {1}, true)) + p);
  g.output("2", tanh(sum(p, {1}, true)) * q);
  check(g, test::random_inputs(g, 1, -1, 1, 2));
}

TEST(FusionOfGpt2, ChangesNoLossAndNoGradient) {
  for (const bool bias : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      auto config = test::tiny_gpt2(bias, dropout);
      config.n_embd = 36;
      const Graph g = config.model()->loss(3, 7);
      const Graph full = simplify(differentiate(g));
      const Found found = check(full, test::gpt2_inputs(full, config, 5));
      EXPECT_GT(found.fused, 8u);
      EXPECT_GE(found.epilogues, 2u);
    }
}

TEST(FusionOfGpt2, IsAPassThatCanBeSwitchedOff) {
  const auto config = test::tiny_gpt2(true, 0.1);
  const Graph g = config.model()->loss(2, 5);
  const Backend backend = cpu::cpu_backend();
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  options.optimizer = [](Graph& graph) { optim::attach_optimizer(graph, {}); };
  const Graph with = run_pipeline(g, eager(backend), options);
  options.disabled = {"fuse_epilogues"};
  const Graph clusters = run_pipeline(g, eager(backend), options);
  options.disabled = {"fuse", "fuse_epilogues"};
  const Graph without = run_pipeline(g, eager(backend), options);
  EXPECT_GT(count_epilogues(with), 0u);
  EXPECT_EQ(count_epilogues(clusters), 0u);
  EXPECT_GT(count_ops(clusters, "fused"), 8u);
  EXPECT_EQ(count_ops(without, "fused"), 0u);
  auto in = test::gpt2_inputs(with, config, 3);
  in["optimizer_step"].data = {1};
  const Bytes a = run_on_cpu(with, in), b = run_on_cpu(clusters, in), c = run_on_cpu(without, in);
  for (const auto& [name, bytes] : c) {
    EXPECT_TRUE(a.at(name) == bytes) << name;
    EXPECT_TRUE(b.at(name) == bytes) << name;
  }
}

}  // namespace
}  // namespace brrr
