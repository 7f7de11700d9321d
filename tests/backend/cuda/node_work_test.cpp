// What the commands of a node compute and move, against figures by hand.
#include "backend/cuda/node_work.h"

#include <gtest/gtest.h>

#include "backend/cuda/target.h"
#include "ops/ops.h"
#include "support/attention_attrs.h"

namespace brrr::cuda {
namespace {

struct Planned {
  NodePlan way;
  std::vector<CommandWork> work;
};
Planned planned(const Graph& g, NodeId id) {
  static const Backend backend = described_backend(*gpu_description("cuda:sm_90"));
  const NodeView view(g, id);
  const auto kernel = backend.choose(view).entry->prepare(view);
  const NodePlan way = dynamic_cast<CudaKernel&>(*kernel).ways().front();
  return {way, work_of(view, way)};
}

TEST(NodeWork, OfAProductAndTheCastOfItsBias) {
  Graph g;
  const Value y =
      call1(Op::linear, {g.input("x", {4096, 768}, DType::bf16),
                         g.input("w", {768, 2304}, DType::bf16), g.input("b", {2304}, DType::f32)});
  const auto work = planned(g, y.id.node).work;
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[0].kind, CommandWork::Kind::other);
  EXPECT_EQ(work[0].bytes, 2304 * (4 + 2));
  EXPECT_EQ(work[1].kind, CommandWork::Kind::product);
  EXPECT_EQ(work[1].name, "cublaslt bf16 4096x2304x768 nn +bias");
  EXPECT_EQ(work[1].dtype, DType::bf16);
  EXPECT_EQ(work[1].flops, 2.0 * 4096 * 2304 * 768);
  EXPECT_EQ(work[1].bytes, 2.0 * (4096 * 768 + 768 * 2304 + 4096 * 2304 + 2304));
  EXPECT_EQ(work[1].bytes_again, 0);
}

// One matrix of weights for all of a batch is read once.
TEST(NodeWork, OfABatchOfProducts) {
  Graph g;
  const Value y = call1(
      Op::matmul, {g.input("a", {6, 64, 32}, DType::f32), g.input("b", {6, 32, 128}, DType::f32)},
      {{"transpose_a", false}, {"transpose_b", false}});
  const auto work = planned(g, y.id.node).work;
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].flops, 2.0 * 6 * 64 * 32 * 128);
  EXPECT_EQ(work[0].bytes, 4.0 * 6 * (64 * 32 + 32 * 128 + 64 * 128));
}

// Blocks of rows leave partial sums, which a second launch reads.
TEST(NodeWork, OfSumsOverRowsInTwoLaunches) {
  Graph g;
  const Value y = sum(g.input("x", {4096, 768}, DType::f32), {0});
  const Planned p = planned(g, y.id.node);
  ASSERT_EQ(p.work.size(), 1u);
  EXPECT_EQ(p.work[0].launches, 2);
  EXPECT_EQ(p.work[0].bytes, 4.0 * (4096 * 768 + 768));
  ASSERT_GT(p.way.scratch_bytes, 0);
  EXPECT_EQ(p.work[0].bytes_again, 2.0 * static_cast<double>(p.way.scratch_bytes));
}

Planned attention_grad(int64_t batch) {
  Graph g;
  Attrs attrs = test::attention_in_one(12, 64);
  attrs.set("causal", true);
  attrs.set("dlse", false);
  const Value qkv = g.input("qkv", {batch, 1024, 3 * 768}, DType::bf16);
  const Value y = g.input("y", {batch, 1024, 768}, DType::bf16);
  const Value lse = g.input("lse", {batch, 12, 1024}, DType::f32);
  const Value dy = g.input("dy", {batch, 1024, 768}, DType::bf16);
  return planned(g, call1(Op::attention_grad, {qkv, y, lse, dy}, attrs).id.node);
}

// cuDNN would keep too many gradients of scores: our own kernels go through queries, keys and
// values once for the gradient of the queries and once for the other two.
TEST(NodeWork, OfAttentionThatReadsTwice) {
  const Planned p = attention_grad(64);
  EXPECT_EQ(p.way.name, "tma");
  ASSERT_EQ(p.work.size(), 1u);
  EXPECT_EQ(p.work[0].kind, CommandWork::Kind::attention_grad);
  EXPECT_EQ(p.work[0].launches, 3);
  const double rows = 64.0 * 1024, width = 768 * 2, statistics = 64.0 * 12 * 1024 * 8;
  EXPECT_EQ(p.work[0].bytes, rows * (3 + 1 + 1 + 3) * width + 64.0 * 12 * 1024 * 4);
  EXPECT_EQ(p.work[0].bytes_again, rows * (3 + 2) * width + 3 * statistics);
}

TEST(NodeWork, OfAttentionThatKeepsGradientsOfScores) {
  const Planned p = attention_grad(8);
  EXPECT_EQ(p.way.name, "cudnn");
  ASSERT_EQ(p.work.size(), 1u);
  EXPECT_EQ(p.work[0].launches, 1);
  const double scores = 8.0 * 12 * 1024 * 1024;
  EXPECT_EQ(p.work[0].flops,
            5.0 * scores * (1 + 1.0 / 1024) * 64);  // five products of visible pairs
  EXPECT_GE(p.work[0].bytes_again, 2 * 2 * scores / 2);
  EXPECT_LT(p.work[0].bytes_again, 1.02 * 2 * 2 * scores / 2);
}

}  // namespace
}  // namespace brrr::cuda
