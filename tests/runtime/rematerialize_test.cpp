// Rematerialisation changes no bit of any result: on the CPU's kernels and for the judge, fused or
// not, with random bits and in 16 bits.

#include "passes/memory/rematerialize.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/engine_run.h"
#include "support/gpt2.h"
#include "support/long_proof.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::Bytes;

constexpr RematPolicy kPolicies[] = {RematPolicy::all, RematPolicy::blocks, RematPolicy::automatic};

size_t copies_in(const Graph& g) {
  size_t n = 0;
  for (NodeId id = 0; id < g.size(); ++id)
    n += g.scope_of(id).starts_with("recompute:") && !is(g.node(id), Op::after);
  return n;
}

PipelineOptions options_for(RematPolicy policy) {
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  options.rematerialize.policy = policy;
  // Any arithmetic is cheap here: `auto` without a budget would keep everything that is so small.
  options.rematerialize.rates = {1e30, 1e30, 1, 1e30, 16e9, 0};
  return options;
}

void expect_equal(const Bytes& got, const Bytes& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, bytes] : wanted) EXPECT_TRUE(got.at(name) == bytes) << what << name;
}

/// Compares every policy with none; returns how many nodes ran again.
size_t check(const Graph& loss, PipelineOptions options, const reference::Tensors& in) {
  const Backend backend = cpu::cpu_backend();
  const Target judge;
  size_t copies = 0;
  auto compile = [&](const Target& target, RematPolicy policy) {
    options.rematerialize.policy = policy;
    return run_pipeline(loss, target, options);
  };
  const auto expected = reference::evaluate(compile(judge, RematPolicy::none), in);
  for (const RematPolicy policy : kPolicies) {
    const Graph g = compile(judge, policy);
    copies += copies_in(g);
    EXPECT_EQ(test::difference(reference::evaluate(g, in), expected), 0) << name_of(policy);
    EXPECT_EQ(print(parse(print(g), find_op)), print(g));
    EXPECT_TRUE(simplify(g).size() + 8 >= g.size()) << "simplify undid it:\n" << print(g);
  }
  for (const bool fused : {true, false}) {
    options.disabled.clear();
    if (!fused) options.disabled.insert("fuse");
    const Bytes wanted = test::run_on_cpu(compile(backend.target(), RematPolicy::none), in);
    for (const RematPolicy policy : kPolicies)
      expect_equal(test::run_on_cpu(compile(backend.target(), policy), in), wanted,
                   fmt::format("{}, {}: ", name_of(policy), fused ? "fused" : "not fused"));
  }
  return copies;
}

/// The graph with its nodes in numbered blocks, so that `blocks` finds some.
Graph in_blocks(const Graph& g, size_t nodes_per_block) {
  Rewriter r(g);
  for (NodeId id = 0; id < g.size(); ++id) r.copy(id);
  Graph out = r.finish();
  for (NodeId id = 0; id < out.size(); ++id) {
    const uint32_t before = out.set_scope(fmt::format("block.{}.part", id / nodes_per_block));
    out.node(id).scope = out.set_scope("");
    out.restore_scope(before);
  }
  return out;
}

TEST(Rematerialize, ChangesNoBitOfRandomGraphs) {
  const uint32_t graphs = test::is_sanitized() ? 20 : 60;
  size_t copies = 0;
  for (uint32_t seed = 0; seed < graphs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = in_blocks(test::RandomGraph(seed, 40, true).graph(), 5 + seed % 7);
    copies += check(g, options_for(RematPolicy::none), test::random_inputs(g, seed, -1, 1, 5));
    if (HasFailure()) return;
  }
  EXPECT_GT(copies, 5 * graphs);
}

TEST(Rematerialize, ChangesNoBitOfGpt2) {
  for (const double dropout : {0.0, 0.2})
    for (const DType precision : {DType::f32, DType::bf16})
      for (const int64_t layers : {2}) {
        SCOPED_TRACE(fmt::format("dropout {}, {}, {} layers", dropout, name_of(precision), layers));
        auto config = test::tiny_gpt2(true, dropout);
        config.n_layer = layers;
        const Graph g = config.model()->loss(2, 7);
        PipelineOptions options = options_for(RematPolicy::none);
        options.precision = precision;
        options.optimizer = [](Graph& graph) { optim::attach_optimizer(graph, {}); };
        auto in = test::gpt2_inputs(run_pipeline(g, Target{}, options), config, 3);
        in["optimizer_step"].data = {1};
        in["learning_rate"].data = {0.01};
        for (auto& [name, t] : in)
          if (name.starts_with("adam_v:"))
            for (double& x : t.data) x = std::fabs(x);
        EXPECT_GT(check(g, options, in), 20u * static_cast<size_t>(layers));
      }
}

}  // namespace
}  // namespace brrr
