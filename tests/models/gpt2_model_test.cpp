// The model as a graph: its parameters, its shapes, its cache, its errors.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "models/gpt2/gpt2_config.h"
#include "passes/passes.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

int64_t parameters_of(const Graph& g) {
  int64_t n = 0;
  for (NodeId id : g.inputs(InputKind::parameter)) n += g.type({id, 0}).shape.elements();
  return n;
}

TEST(Gpt2, HasAsManyParametersAsPublished) {
  struct Size {
    int64_t layers, heads, width, parameters;
  };
  for (const Size& s : {Size{12, 12, 768, 124439808}, Size{24, 16, 1024, 354823168},
                        Size{36, 20, 1280, 774030080}, Size{48, 25, 1600, 1557611200}}) {
    models::Gpt2Config c;
    c.n_layer = s.layers;
    c.n_head = s.heads;
    c.n_embd = s.width;
    const Graph g = c.model()->loss(4, 1024);
    EXPECT_EQ(parameters_of(g), s.parameters);
    EXPECT_EQ(c.model()->parameter_count(), s.parameters);
    verify(g);
  }
}

TEST(Gpt2, CountsParametersOfEveryVariant) {
  for (bool bias : {true, false})
    for (bool tied : {true, false}) {
      auto c = test::tiny_gpt2(bias);
      c.tie_word_embeddings = tied;
      EXPECT_EQ(parameters_of(c.model()->forward(1, 4)), c.model()->parameter_count());
    }
}

TEST(Gpt2, TakesASymbolicBatch) {
  const auto c = test::tiny_gpt2();
  const Graph g = c.model()->forward(Dim::symbol("batch"), 5);
  EXPECT_EQ(g.type(g.find_output("logits")->value).shape.str(), "[batch,5,13]");
  const Graph bound = specialize(g, {{"batch", 3}});
  verify(bound);
  const Graph direct = c.model()->forward(3, 5);
  const auto in = test::gpt2_inputs(direct, c, 2);
  EXPECT_EQ(test::difference(reference::evaluate(bound, in), reference::evaluate(direct, in)), 0);
}

TEST(Gpt2, DoesNotSeeTheFuture) {
  const auto c = test::tiny_gpt2();
  const Graph g = c.model()->forward(1, 8);
  auto in = test::gpt2_inputs(g, c, 2);
  const auto before = reference::evaluate(g, in).at("logits").data;
  in["tokens"].data[5] = in["tokens"].data[5] == 0 ? 1 : 0;
  const auto after = reference::evaluate(g, in).at("logits").data;
  for (size_t i = 0; i < 5 * 13; ++i) EXPECT_EQ(before[i], after[i]) << i;
  EXPECT_NE(std::vector<double>(before.begin() + 5 * 13, before.end()),
            std::vector<double>(after.begin() + 5 * 13, after.end()));
}

// Prompt and single tokens through the cache against the whole sequence at once.
TEST(Gpt2, DecodesWithItsCacheAsWithout) {
  for (bool bias : {true, false}) {
    const auto c = test::tiny_gpt2(bias);
    const Graph whole = c.model()->forward(2, 8);
    const auto in = test::gpt2_inputs(whole, c, 6);
    const auto& tokens = in.at("tokens");
    const auto logits = reference::evaluate(whole, in).at("logits").data;
    auto state = in;
    for (int64_t position = 0; position < 8;) {
      const int64_t length = position == 0 ? 3 : 1;
      const Graph g = c.model()->decode({2, length, c.n_positions});
      if (position == 0)
        for (NodeId id : g.inputs(InputKind::state)) {
          RefTensor& cache = state[g.input_name(id)];
          cache.type = g.type({id, 0});
          cache.data.assign(static_cast<size_t>(cache.type.shape.elements()), 7.0);  // no effect
        }
      RefTensor part{{i32, {2, length}}, {}};
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t t = 0; t < length; ++t)
          part.data.push_back(tokens.data[static_cast<size_t>(b * 8 + position + t)]);
      state["tokens"] = part;
      state["position"] = {{i32, {}}, {static_cast<double>(position)}};
      const auto out = reference::evaluate(g, state);
      for (NodeId id : g.inputs(InputKind::state))
        state[g.input_name(id)] = out.at("update:" + g.input_name(id));
      position += length;
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t v = 0; v < 13; ++v)
          EXPECT_NEAR(out.at("logits").data[static_cast<size_t>(b * 13 + v)],
                      logits[static_cast<size_t>((b * 8 + position - 1) * 13 + v)], 1e-12);
    }
  }
}

TEST(Gpt2, RefusesALengthBeyondItsContext) {
  try {
    test::tiny_gpt2().model()->forward(1, 9);
    ADD_FAILURE() << "no error";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()), "[gpt2] the length must be at most 8 positions; got 9");
  }
}

}  // namespace
}  // namespace brrr
