// Ugly numbers: padded products are the same products.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

Target target_that_likes(int64_t multiple) {
  Target t;
  t.product_multiple = multiple;
  return t;
}

models::Gpt2Config ugly_gpt2(bool tied) {
  models::Gpt2Config c = test::tiny_gpt2();
  c.vocab_size = 61;
  c.n_embd = 30;  // 30 and 90 are no multiples of 8
  c.tie_word_embeddings = tied;
  return c;
}

TEST(PadDims, ChangesNeitherLossNorGradient) {
  for (bool tied : {true, false})
    for (int64_t multiple : {4, 8, 16}) {
      const auto config = ugly_gpt2(tied);
      const Graph loss = config.model()->loss(2, 5);
      const auto in = test::gpt2_inputs(loss, config, 5);
      PipelineOptions p;
      p.loss = "loss";
      p.verify = true;
      const auto expected = reference::evaluate(run_pipeline(loss, Target{}, p), in);
      const Graph padded = run_pipeline(loss, target_that_likes(multiple), p);
      EXPECT_LE(test::difference(expected, reference::evaluate(padded, in)), 1e-13);
    }
}

TEST(PadDims, MakesEveryProductWithAWeightAMultiple) {
  const auto config = ugly_gpt2(true);
  Notes notes;
  const Graph out = pad_dims(config.model()->loss(2, 5), target_that_likes(4), &notes);
  verify(out);
  int products = 0;
  for (const Node& node : out.nodes()) {
    if (!is(node, Op::linear, Op::matmul)) continue;
    const Node& w = out.node(node.operands[1].node);
    if (is(w, Op::transpose) || node.results[0].shape.rank() > 3) continue;  // attention
    for (int axis : {-1, -2}) EXPECT_EQ(out.type(node.operands[1]).shape.size(axis) % 4, 0);
    ++products;
  }
  EXPECT_EQ(products, 9);  // four in each of two layers, and the head
  EXPECT_EQ(notes.size(), 9u);
  EXPECT_NE(notes.back().find("30 x 61 computed as 32 x 64"), std::string::npos) << notes.back();
}

// What differentiation makes for the padding is multiplied by nothing but zeros.
TEST(PadDims, GradientsOfThePaddingAreExactlyZero) {
  const auto config = ugly_gpt2(true);
  const Graph loss = config.model()->loss(2, 5);
  Graph g = differentiate(pad_dims(loss, target_that_likes(8)));
  struct Padded {
    std::string name;
    int64_t rows, columns;  // that are real
  };
  std::vector<Padded> padded;
  for (NodeId id = 0; id < g.size(); ++id) {
    // The gradient of pad(w) is a product that a slice cuts to the size of w.
    const Node& node = g.node(id);
    if (!is(node, Op::slice) || !g.scope_of(id).starts_with("backward:")) continue;
    const ValueId whole = node.operands[0];
    if (!is(g.node(whole.node), Op::matmul) || g.type(whole).shape.rank() != 2) continue;
    padded.push_back({fmt::format("padded {}", padded.size()), node.results[0].shape.size(0),
                      node.results[0].shape.size(1)});
    g.output(padded.back().name, g.value(whole));
  }
  ASSERT_GE(padded.size(), 3u);
  const auto results = reference::evaluate(g, test::gpt2_inputs(loss, config, 5));
  int zeros = 0;
  for (const Padded& p : padded) {
    const RefTensor& t = results.at(p.name);
    const int64_t columns = t.type.shape.size(1);
    for (int64_t i = 0; i < t.type.shape.size(0); ++i)
      for (int64_t j = 0; j < columns; ++j)
        if (i >= p.rows || j >= p.columns) {
          EXPECT_EQ(t.data[static_cast<size_t>(i * columns + j)], 0) << p.name;
          ++zeros;
        }
  }
  EXPECT_GT(zeros, 100);
}

TEST(PadDims, LeavesWhatWouldGrowTooMuchAndWhatFits) {
  Graph g;
  Value x = g.input("x", {4, 9}, DType::f32), w = g.parameter("w", {9, 64});
  g.output("y", matmul(x, w));
  EXPECT_TRUE(pad_dims(g, target_that_likes(16)) == g);  // 9 -> 16 is more than a tenth
  EXPECT_TRUE(pad_dims(g, Target{}) == g);
}

}  // namespace
}  // namespace brrr
