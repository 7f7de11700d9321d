// The memory of attention grows with the length, not with its square: what kernels ask for, and a
// training step.

#include <gtest/gtest.h>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/target.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/program.h"
#include "support/attention_attrs.h"

namespace brrr::cpu {
namespace {

TEST(AttentionMemory, GrowsWithTheLength) {
  for (const char* name : {"attention", "attention_grad"})
    for (DType dtype : {DType::f32, DType::bf16}) {
      auto scratch = [&](int64_t length) {
        Graph g;
        std::vector<ValueId> in;
        const bool backward = std::string_view(name) == "attention_grad";
        const Shape x{1, 4, length, 64};
        for (int i = 0; i < (backward ? 6 : 3); ++i)
          in.push_back(i == 4 ? g.input("lse", {1, 4, length}, f32).id
                              : g.input("x" + std::to_string(i), x, dtype).id);
        Attrs attrs = test::attention_attrs(4, 4, 64, 64);
        attrs.set("causal", true);
        if (backward) attrs.set("dlse", false);
        const NodeId id = g.add(op(name), in, attrs);
        for (const KernelEntry& entry : attention_kernels())
          if (name_of(entry.op) == name && entry.accepts(NodeView(g, id)).empty())
            return entry.prepare(NodeView(g, id))->scratch_bytes();
        return int64_t{0};
      };
      const int64_t one = scratch(4096), two = scratch(8192), four = scratch(16384);
      EXPECT_LE(two, 2 * one) << name;
      EXPECT_LE(four, 2 * two) << name;
      EXPECT_LT(four, int64_t{16384} * 16384 * 4 / 8) << "the scores of one head in f32";
    }
}

// A training graph of naively written attention: what lies in the temporary region, scratch
// included, with the pass and without it.
int64_t temporary_bytes(int64_t length, bool matched) {
  Graph g;
  const Shape shape{1, 4, length, 64};
  Value q = g.parameter("q", shape), k = g.parameter("k", shape), v = g.parameter("v", shape);
  Value visible = less_equal(iota(g, {1, length}, 1), iota(g, {length, 1}, 0));
  Value scores = where(visible, matmul(q, k, false, true) * 0.125, scalar(g, -INFINITY));
  Value y = matmul(softmax(scores), v);
  g.output("loss", sum(y * y, {0, 1, 2, 3}));
  PipelineOptions options;
  options.loss = "loss";
  if (!matched) options.disabled = {"match_attention"};
  const Backend backend = cpu_backend();
  const Program program(run_pipeline(g, backend.target(), options), backend);
  return program.plan().temporary_bytes + program.plan().constant_bytes;
}

TEST(AttentionMemory, OfATrainingStepGrowsWithTheLength) {
  const int64_t one = temporary_bytes(1024, true), four = temporary_bytes(4096, true);
  EXPECT_LE(four, 4 * one);
  EXPECT_GT(temporary_bytes(4096, false), 14 * temporary_bytes(1024, false));
  EXPECT_GT(temporary_bytes(4096, false), 10 * four);
}

}  // namespace
}  // namespace brrr::cpu
