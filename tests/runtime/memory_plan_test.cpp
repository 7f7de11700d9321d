// The memory plan on its own: no two live buffers overlap, nobody overwrites what is still read.

#include "passes/memory/memory_plan.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

Graph training_graph(const models::Gpt2Config& config, int64_t batch, int64_t length) {
  PipelineOptions options;
  options.loss = "loss";
  options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
  return run_pipeline(config.model()->loss(batch, length), Target{}, options);
}

TEST(MemoryPlan, HoldsOnRandomGraphs) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = save_old_states(test::RandomGraph(seed).graph());
    for (int64_t scratch : {0, 100}) {
      PlanOptions options;
      options.scratch_bytes = [&](NodeId id) { return id % 3 == 0 ? scratch : 0; };
      const MemoryPlan plan = memory_plan(g, options);
      ASSERT_NO_THROW(verify(plan)) << print(g);
      EXPECT_LE(plan.peak_live_bytes, plan.temporary_bytes);
      options.reuse = false;
      const MemoryPlan apart = memory_plan(g, options);
      ASSERT_NO_THROW(verify(apart)) << print(g);
      EXPECT_LE(plan.temporary_bytes, apart.temporary_bytes);
    }
  }
}

TEST(MemoryPlan, OfATrainingStepIsCloseToItsLowerBound) {
  for (bool bias : {true, false}) {
    const Graph g = training_graph(test::tiny_gpt2(bias, 0.1), 2, 8);
    const MemoryPlan plan = memory_plan(save_old_states(g));
    verify(plan);
    EXPECT_LE(static_cast<double>(plan.temporary_bytes),
              1.1 * static_cast<double>(plan.peak_live_bytes));
    EXPECT_TRUE(plan.copies.empty()) << "AdamW updates every state in place";
    for (const Output& o : g.outputs())
      EXPECT_TRUE(o.updates == kNoNode || plan.buffer(o.value) == plan.buffer({o.updates, 0}))
          << o.name;
  }
}

TEST(MemoryPlan, RunsInPlaceOnlyWhenNobodyReadsOn) {
  Graph g;
  Value x = g.input("x", {64}, f32);
  Value a = exp(x);   // a new buffer: data inputs are not overwritten
  Value b = tanh(a);  // over a
  Value c = b + b;    // not over b: it is read twice by the same node
  Value d = c * b;    // b's and c's last reader
  Value e = sum(d, {0}) + d;
  g.output("e", e);
  const MemoryPlan plan = memory_plan(g);
  verify(plan);
  EXPECT_NE(plan.buffer(a.id), plan.buffer(x.id));
  EXPECT_EQ(plan.buffer(b.id), plan.buffer(a.id));
  EXPECT_NE(plan.buffer(c.id), plan.buffer(b.id));
  EXPECT_TRUE(plan.buffer(d.id) == plan.buffer(c.id) || plan.buffer(d.id) == plan.buffer(b.id));
  EXPECT_EQ(plan.buffer(e.id), plan.buffer(d.id));
}

TEST(MemoryPlan, PutsViewsInsideWhatTheyView) {
  Graph g;
  Value x = exp(g.input("x", {6, 4}, f32));
  Value rows = slice(x, 0, 2, 3);                    // 32 bytes in
  Value part = slice(reshape(rows, {12}), 0, 5, 4);  // 20 further
  g.output("part", part);
  g.output("column", slice(x, 1, 1, 2));  // no view
  const MemoryPlan plan = memory_plan(g);
  verify(plan);
  EXPECT_EQ(plan.buffer(part.id), plan.buffer(x.id));
  EXPECT_EQ(plan.offset_in[part.id.node][0], 52);
  EXPECT_NE(plan.buffer(g.outputs()[1].value), plan.buffer(x.id));
}

TEST(MemoryPlan, MakesTheNextValueOfAnUnreadStateInItsPlace) {
  Graph g;
  Value x = g.input("x", {8, 8}, f32);
  Value s = g.input("s", {8, 8}, f32, InputKind::state);
  Value t = g.input("t", {8, 8}, f32, InputKind::state);
  Value next = matmul(x, x);
  Value y = tanh(next);  // must not run over next
  g.update(s, next);
  g.update(t, y);
  g.output("y", y * next + t);
  const MemoryPlan plan = memory_plan(g);
  verify(plan);
  EXPECT_EQ(plan.buffer(next.id), plan.buffer(s.id));
  EXPECT_NE(plan.buffer(y.id), plan.buffer(s.id));
  EXPECT_NE(plan.buffer(y.id), plan.buffer(t.id));  // whose old value is read later
}

TEST(MemoryPlan, KeepsANextValueUntilItIsCopied) {
  Graph g;
  Value s = g.input("s", {64}, f32, InputKind::state);
  Value next = s + 1.0;
  Value y = tanh(next);  // must not run over next
  g.update(s, next);
  g.output("y", y * s);  // s is read late: the update is a copy
  const MemoryPlan plan = memory_plan(g);
  verify(plan);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_NE(plan.buffer(y.id), plan.buffer(next.id));
}

// Its old value has been read: the next one takes its place, wherever that comes from.
TEST(MemoryPlan, MakesANextValueInPlaceOfAnOldOneThatIsReadNoMore) {
  for (const bool is_read_later : {false, true}) {
    Graph g;
    Value s = g.input("s", {8, 8}, f32, InputKind::state), x = g.input("x", {8, 8}, f32);
    Value y = tanh(reshape(s, {64}));
    Value next = matmul(x, reshape(y, {8, 8}));
    g.update(s, next);
    g.output("y", is_read_later ? next * s : next * x);
    const MemoryPlan plan = memory_plan(g);
    verify(plan);
    EXPECT_EQ(plan.copies.size(), is_read_later ? 1u : 0u);
    EXPECT_EQ(plan.buffer(next.id) == plan.buffer(s.id), !is_read_later);
  }
}

TEST(MemoryPlan, KeepsScratchOfConstantsOffTheInputs) {
  Graph g;
  Value x = g.input("x", {64}, f32);
  Value early = exp(x);  // x is dead after this step
  Value constant = exp(full(g, {64}, 2));
  g.output("y", early + constant);
  PlanOptions options;
  options.scratch_bytes = [&](NodeId id) { return id == constant.id.node ? 256 : 0; };
  const MemoryPlan plan = memory_plan(g, options);
  verify(plan);
  const Buffer& scratch = plan.buffers[static_cast<size_t>(plan.scratch_of[constant.id.node])];
  const Buffer& input = plan.buffers[plan.buffer(x.id)];
  EXPECT_TRUE(scratch.offset >= input.offset + input.bytes ||
              input.offset >= scratch.offset + scratch.bytes);
}

TEST(MemoryPlan, VerifyFindsOverlapAndOverflow) {
  Graph g;
  Value x = g.input("x", {64}, f32);
  g.output("y", exp(x) + x);
  MemoryPlan plan = memory_plan(g);
  for (Buffer& b : plan.buffers) b.offset = 0;
  EXPECT_THROW(verify(plan), InternalError);
  plan = memory_plan(g);
  plan.temporary_bytes -= 1;
  EXPECT_THROW(verify(plan), InternalError);
}

}  // namespace
}  // namespace brrr
