// What fuse makes of the blocks of a Llama on the CPU: SwiGLU is one cluster forward and one
// backward, RMSNorm joins residuals and gradients as LayerNorm does, and both have the bits of
// their parts.

#include <gtest/gtest.h>

#include <set>

#include "backend/cpu/target.h"
#include "ir/text.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/engine_run.h"

namespace brrr {
namespace {

/// The ops of a node: those of its body, or its own.
std::set<std::string> ops_of(const Node& node) {
  if (!is(node, Op::fused)) return {node.op->name};
  const Graph& body = fused_body(node);
  std::set<std::string> names;
  for (const Node& inner : body.nodes())
    if (inner.op != &input_op()) names.insert(inner.op->name);
  return names;
}

/// Each set stands for one node of the graph.
std::multiset<std::set<std::string>> nodes_with(const Graph& g, const std::string& op) {
  std::multiset<std::set<std::string>> found;
  for (const Node& node : g.nodes())
    if (const auto names = ops_of(node); names.contains(op)) found.insert(names);
  return found;
}

const Target& cpu_target() {
  static const Backend backend = cpu::cpu_backend();
  static const Target target = backend.target();
  return target;
}

using Nodes = std::multiset<std::set<std::string>>;

void expect_same_bits(const Graph& plain, const Graph& fused) {
  const auto in = test::random_inputs(plain, 3, -1, 1, 2);
  EXPECT_EQ(test::run_on_cpu(plain, in), test::run_on_cpu(fused, in));
}

/// loss = sum of (silu(x gate) * (x up)) down, weights in one matrix or in two.
Graph swiglu(bool together, DType dtype) {
  Graph g;
  const int64_t c = 96, f = 160;
  Value x = cast(g.parameter("x", {50, c}), dtype), gate, up;
  if (together) {
    Value both = matmul(x, cast(g.parameter("gate and up", {c, 2 * f}), dtype));
    gate = slice(both, -1, 0, f);
    up = slice(both, -1, f, f);
  } else {
    gate = matmul(x, cast(g.parameter("gate", {c, f}), dtype));
    up = matmul(x, cast(g.parameter("up", {c, f}), dtype));
  }
  Value y = matmul(silu(gate) * up, cast(g.parameter("down", {f, c}), dtype));
  g.output("loss", sum(square(cast(y, f32)) * g.input("weights", {50, c}, f32), {0, 1}));
  return simplify(differentiate(g));
}

TEST(FuseLlama, SwiGluIsOneClusterEachWay) {
  for (const DType dtype : {f32, bf16})
    for (const bool together : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), together ? "one product" : "two products"));
      const Graph plain = swiglu(together, dtype);
      const Graph out = fuse(plain, cpu_target());
      const auto forward = nodes_with(out, "silu"), backward = nodes_with(out, "silu_grad");
      EXPECT_EQ(forward, Nodes({{"silu", "mul"}})) << print(out);
      EXPECT_EQ(backward, Nodes({{"silu_grad", "mul"}})) << print(out);
      expect_same_bits(plain, out);
    }
}

TEST(FuseLlama, SwiGluJoinsAProduct) {
  Target target = cpu_target();
  target.gains_by_epilogue = [](const Graph&, NodeId, NodeId) { return true; };
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together ? "one product" : "two products");
    const Graph plain = swiglu(together, bf16);
    const Graph out = fuse_epilogues(fuse(plain, target), target);
    // The later of two products joins; the columns of one product are parted by slices first.
    EXPECT_EQ(nodes_with(out, "silu"),
              together ? Nodes({{"silu", "mul"}}) : Nodes({{"silu", "mul", "matmul"}}))
        << print(out);
    expect_same_bits(plain, out);
  }
}

TEST(FuseLlama, RmsNormJoinsResiduals) {
  Graph g;
  const int64_t c = 128;
  Value x = g.parameter("x", {70, c}), branch = g.parameter("branch", {70, c});
  Value key = g.input("key", {2}, i32), w = g.parameter("w", {c});
  Value residual = x + dropout(branch, key, 0.1, 3);
  Value y = matmul(rms_norm(residual, w).y, g.parameter("m", {c, c}));
  g.output("loss", sum(square(residual + y) * g.input("weights", {70, c}, f32), {0, 1}));
  const Graph plain = simplify(differentiate(g));
  const Graph out = fuse(plain, cpu_target());
  EXPECT_EQ(nodes_with(out, "rms_norm"), Nodes({{"add", "dropout", "rms_norm"}})) << print(out);
  const auto backward = nodes_with(out, "rms_norm_grad");
  ASSERT_EQ(backward.size(), 1u) << print(out);
  EXPECT_TRUE(backward.begin()->contains("add")) << print(out);
  expect_same_bits(plain, out);
}

}  // namespace
}  // namespace brrr
