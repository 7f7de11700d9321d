// Attention that reads columns of a joined value: which slices it takes the place of, and that
// results stay.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kRows = 5, kHeadCount = 2, kHeadWidth = 3, kOne = kHeadCount * kHeadWidth;

Target that_runs_attention(bool runs) {
  Target target;
  target.runs = [runs](const Graph& g, NodeId id) { return runs && g.node(id).op->is_attention; };
  return target;
}

Value attend(Value q, Value k, Value v) {
  AttentionPlaces places{kHeadCount,   kHeadCount,   kHeadWidth,   kHeadWidth,
                         {0, 0, true}, {1, 0, true}, {2, 0, true}, true};
  AttentionOptions options;
  options.scale = 0.5;
  options.causal = true;
  return attention(std::vector<Value>{q, k, v}, places, options).y;
}

struct Counted {
  size_t slices = 0, casts = 0, sources = 0;
};

Counted counted_after(const Graph& g, bool runs = true) {
  Notes notes;
  const Graph out = read_columns(g, that_runs_attention(runs), &notes);
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
  EXPECT_EQ(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 0);
  EXPECT_EQ(notes.empty(), out == g);
  Counted c;
  for (const Node& node : out.nodes()) {
    c.slices += is(node, Op::slice);
    c.casts += is(node, Op::cast);
    if (node.op->is_attention) c.sources = node.operands.size();
  }
  return c;
}

TEST(ReadColumns, SlicesOfOneValueBecomeOneSource) {
  for (const Shape& shape : {Shape{kRows, 3 * kOne}, Shape{2, kRows, 3 * kOne}}) {
    Graph g;
    const Value x = g.input("x", shape, DType::f32);
    const int axis = shape.rank() - 1;
    const auto part = [&](int64_t i) { return slice(x, axis, i * kOne, kOne); };
    g.output("y", attend(part(2), part(0), part(1)));
    const Counted c = counted_after(g);
    EXPECT_EQ(c.slices, 0u);
    EXPECT_EQ(c.sources, 1u);
  }
}

TEST(ReadColumns, CastMovesInFrontOfSlicesOfAllColumns) {
  Graph g;
  const Value x = g.input("x", {kRows, 3 * kOne}, DType::f32);
  const auto part = [&](int64_t i) { return cast(slice(x, 1, i * kOne, kOne), DType::bf16); };
  g.output("y", cast(attend(part(0), part(1), part(2)), DType::f32));
  const Counted c = counted_after(g);
  EXPECT_EQ(c.slices, 0u);
  EXPECT_EQ(c.casts, 2u);
  EXPECT_EQ(c.sources, 1u);
}

TEST(ReadColumns, CastOfSomeColumnsStays) {
  Graph g;
  const Value x = g.input("x", {kRows, 4 * kOne}, DType::f32);
  const auto part = [&](int64_t i) { return cast(slice(x, 1, i * kOne, kOne), DType::bf16); };
  g.output("y", cast(attend(part(0), part(1), part(2)), DType::f32));
  EXPECT_EQ(counted_after(g).slices, 3u);
}

TEST(ReadColumns, SlicesStayWhereTheyAreNotColumnsOrTheTargetHasNoKernel) {
  Graph rows;
  const Value x = rows.input("x", {3 * kRows, kOne}, DType::f32);
  const auto part = [&](int64_t i) { return slice(x, 0, i * kRows, kRows); };
  rows.output("y", attend(part(0), part(1), part(2)));
  EXPECT_EQ(counted_after(rows).slices, 3u);

  Graph g;
  const Value joined = g.input("x", {kRows, 3 * kOne}, DType::f32);
  const auto columns = [&](int64_t i) { return slice(joined, 1, i * kOne, kOne); };
  g.output("y", attend(columns(0), columns(1), columns(2)));
  EXPECT_EQ(counted_after(g, false).slices, 3u);
}

TEST(ReadColumns, OneSliceBesideOtherOperands) {
  Graph g;
  const Value x = g.input("x", {kRows, 3 * kOne}, DType::f32);
  const Value q = g.input("q", {kRows, kOne}, DType::f32);
  g.output("y", attend(q, tanh(slice(x, 1, 0, kOne)), slice(x, 1, kOne, kOne)));
  const Counted c = counted_after(g);
  EXPECT_EQ(c.slices, 1u);
  EXPECT_EQ(c.sources, 3u);
}

}  // namespace
}  // namespace brrr
