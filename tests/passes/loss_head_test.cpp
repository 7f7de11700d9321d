// The loss head becomes one node, forward and then forward with backward, and the graph still
// means the same; where it cannot, the notes say why.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

constexpr int64_t kB = 2, kT = 3, kC = 4, kV = 7;

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

struct Parts {
  Graph g;
  Value x = g.parameter("x", {kB, kT, kC});
  Value w = g.parameter("w", {kV, kC});
  Value w2 = g.parameter("w2", {kC, kV});
  Value targets = g.input("targets", {kB, kT}, i32);

  Value logits() { return matmul(x, w, false, true); }
  Value total(Value v) {
    std::vector<int64_t> axes;
    for (int axis = 0; axis < v.shape().rank(); ++axis) axes.push_back(axis);
    return sum(v, axes);
  }
  Value flat_targets() { return reshape(targets, {kB * kT}); }
};

reference::Tensors inputs(const Graph& g, uint32_t seed) {
  reference::Tensors in = test::random_inputs(g, seed, -1, 1, kV);
  in["targets"].data[1] = -1;
  return in;
}

struct Spelling {
  const char* name;
  std::function<void(Parts&)> build;  // adds the output "loss"
};

const Spelling kSpellings[] = {
    {"tied head",
     [](Parts& p) { p.g.output("loss", p.total(cross_entropy(p.logits(), p.targets).losses)); }},
    {"weights of [C, V]",
     [](Parts& p) {
       p.g.output("loss", p.total(cross_entropy(matmul(p.x, p.w2), p.targets).losses));
     }},
    {"flat rows",
     [](Parts& p) {
       Value logits = reshape(p.logits(), {kB * kT, kV});
       p.g.output("loss", p.total(cross_entropy(logits, p.flat_targets(), 3).losses) / 6.0);
     }},
    {"one row",
     [](Parts& p) {
       Value row = reshape(slice(slice(p.x, 0, 0, 1), 1, 0, 1), {1, kC});
       Value target = reshape(slice(p.flat_targets(), 0, 0, 1), {});
       Value logits = reshape(matmul(row, p.w2), {kV});
       p.g.output("loss", cross_entropy(logits, target).losses);
     }},
    {"a product of three axes read as four",
     [](Parts& p) {
       Value logits = reshape(p.logits(), {1, kB, kT, kV});
       Value targets = reshape(p.targets, {1, kB, kT});
       p.g.output("loss", p.total(cross_entropy(logits, targets).losses));
     }},
};

TEST(MatchLossHead, IsFoundJoinedAndMeansTheSame) {
  for (const Spelling& s : kSpellings) {
    SCOPED_TRACE(s.name);
    Parts parts;
    s.build(parts);
    const Graph before = simplify(parts.g);
    Notes notes;
    const Graph found = match_loss_head(before, &notes);
    verify(found);
    EXPECT_EQ(count_ops(found, "linear_cross_entropy"), 1u) << print(found);
    EXPECT_EQ(count_ops(found, "matmul") + count_ops(found, "cross_entropy"), 0u) << print(found);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_TRUE(notes[0].starts_with("linear_cross_entropy of f32[")) << notes[0];
    EXPECT_TRUE(match_loss_head(found) == found) << "a second time changes something";

    const Graph plain = differentiate(before), apart = differentiate(found);
    EXPECT_EQ(count_ops(apart, "linear_cross_entropy_grad"), 1u);
    Notes joined_notes;
    const Graph joined = join_loss_head(apart, &joined_notes);
    verify(joined);
    EXPECT_EQ(count_ops(joined, "linear_cross_entropy_step"), 1u) << print(joined);
    EXPECT_EQ(count_ops(joined, "linear_cross_entropy_grad"), 0u) << print(joined);
    EXPECT_EQ(count_ops(joined, "linear_cross_entropy"), 0u) << print(joined);
    ASSERT_EQ(joined_notes.size(), 1u);
    EXPECT_TRUE(join_loss_head(joined) == joined);
    for (uint32_t seed : {1u, 2u}) {
      const auto in = inputs(before, seed);
      const auto exact = reference::evaluate(plain, in);
      EXPECT_LE(test::difference(exact, reference::evaluate(apart, in)), 1e-12);
      EXPECT_LE(test::difference(exact, reference::evaluate(joined, in)), 1e-12);
    }
  }
}

// -- what is left as it is
// ---------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(Parts&)> build;
  const char* reason;
};

const Refusal kRefusals[] = {
    {"logits shown",
     [](Parts& p) {
       Value logits = p.logits();
       p.g.output("logits", logits);
       p.g.output("loss", p.total(cross_entropy(logits, p.targets).losses));
     },
     "its logits are used elsewhere, too"},
    {"two losses of the same logits",
     [](Parts& p) {
       Value logits = p.logits();
       p.g.output("loss",
                  p.total(cross_entropy(reshape(logits, {kB * kT, kV}), p.flat_targets()).losses));
       p.g.output("top", max(logits, {-1}));
     },
     "its logits are used elsewhere, too"},
    {"a cap",
     [](Parts& p) {
       p.g.output("loss", p.total(cross_entropy(tanh(p.logits()), p.targets).losses));
     },
     "its logits come from tanh, not from a product"},
    {"a bias",
     [](Parts& p) {
       Value b = p.g.parameter("b", {kV});
       p.g.output("loss", p.total(cross_entropy(linear(p.x, p.w2, b), p.targets).losses));
     },
     "its logits come from linear, not from a product"},
    {"classes split among rows",
     [](Parts& p) {
       Value targets = p.g.input("other", {kB, kV, kT}, i32);
       Value logits = reshape(p.logits(), {kB, kV, kT, 1});
       p.g.output("loss", p.total(cross_entropy(logits, targets).losses));
     },
     "its logits come from reshape, not from a product"},
    {"rows transposed",
     [](Parts& p) {
       Value x = p.g.parameter("y", {kB, kC, kT});
       p.g.output("loss", p.total(cross_entropy(matmul(x, p.w2, true), p.targets).losses));
     },
     "the product reads its rows transposed"},
    {"weights for each batch",
     [](Parts& p) {
       Value w = p.g.parameter("many", {kB, kC, kV});
       p.g.output("loss", p.total(cross_entropy(matmul(p.x, w), p.targets).losses));
     },
     "its weights are not a matrix but [2,4,7]"},
    {"rounded logits",
     [](Parts& p) {
       Value logits = matmul(cast(p.x, DType::bf16), cast(p.w2, DType::bf16));
       p.g.output("loss", cast(p.total(cross_entropy(logits, p.targets).losses), f32));
     },
     "its logits are bf16"},
};

TEST(MatchLossHeadRefuses, WithTheReason) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.name);
    Parts parts;
    Scope scope(parts.g, "head");
    r.build(parts);
    const Graph before = simplify(parts.g);
    Notes notes;
    const Graph after = match_loss_head(before, &notes);
    EXPECT_TRUE(after == before) << print(after);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0], std::string("head: the logits are written out: ") + r.reason);
  }
}

Graph differentiated(const std::function<Value(Parts&)>& loss) {
  Parts parts;
  parts.g.output("loss", loss(parts));
  return differentiate(match_loss_head(simplify(parts.g)));
}

void expect_same(const Graph& a, const Graph& b) {
  const auto in = inputs(a, 5);
  EXPECT_LE(test::difference(reference::evaluate(a, in), reference::evaluate(b, in)), 1e-12);
}

TEST(JoinLossHeadRefuses, WithTheReason) {
  const std::pair<std::function<Value(Parts&)>, const char*> cases[] = {
      {[](Parts& p) {  // weighted by the loss itself, as a focal loss is
         Value losses = cross_entropy(p.logits(), p.targets).losses;
         return p.total(losses * losses);
       },
       "the gradient of its losses depends on them"},
      {[](Parts& p) {  // a z-loss
         const CrossEntropy y = cross_entropy(p.logits(), p.targets);
         return p.total(y.losses + square(y.lse) * 1e-2);
       },
       "the loss depends on lse"},
  };
  for (const auto& [loss, reason] : cases) {
    const Graph before = differentiated(loss);
    Notes notes;
    const Graph after = join_loss_head(before, &notes);
    EXPECT_TRUE(after == before);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0], std::string("logits are recomputed for the backward pass: ") + reason);
    // The refused graph is right as well.
    Parts parts;
    parts.g.output("loss", loss(parts));
    expect_same(differentiate(parts.g), after);
  }
}

// Each loss of a product is the gradient of the other: joining both would need each before the
// other. Of a sum both can be joined.
TEST(JoinLossHead, TwoHeads) {
  for (bool product : {true, false}) {
    const Graph before = differentiated([&](Parts& p) {
      Value a = p.total(cross_entropy(p.logits(), p.targets).losses);
      Value b = p.total(cross_entropy(matmul(p.x, p.w2), p.targets).losses);
      return product ? a * b : a + b;
    });
    EXPECT_EQ(count_ops(before, "linear_cross_entropy_grad"), 2u);
    Notes notes;
    const Graph after = join_loss_head(before, &notes);
    verify(after);
    EXPECT_EQ(count_ops(after, "linear_cross_entropy_step"), product ? 1u : 2u) << print(after);
    EXPECT_EQ(count_ops(after, "linear_cross_entropy_grad"), product ? 1u : 0u);
    EXPECT_EQ(notes.size(), 2u);
    expect_same(before, after);
  }
}

// -- GPT-2
// -------------------------------------------------------------------------------------------

Graph trained_head(const Graph& loss, DType precision, std::set<std::string> disabled) {
  PipelineOptions p;
  p.loss = "loss";
  p.precision = precision;
  p.verify = true;
  p.disabled = std::move(disabled);
  Target target;
  target.runs = [](const Graph& g, NodeId id) {
    return g.node(id).op->name.starts_with("linear_cross_entropy");
  };
  return run_pipeline(loss, target, p);
}

TEST(LossHeadOfGpt2, MeansTheSameWithAnyOfThePassesDisabled) {
  for (bool tied : {true, false})
    for (bool bias : {true, false})
      for (double dropout : {0.0, 0.2}) {
        auto config = test::tiny_gpt2(bias, dropout);
        config.tie_word_embeddings = tied;
        const Graph loss = config.model()->loss(2, 5);
        const auto in = test::gpt2_inputs(loss, config, 7);
        const auto exact = reference::evaluate(
            trained_head(loss, DType::f32, {"match_loss_head", "join_loss_head"}), in);
        for (DType precision : {DType::f32, DType::bf16, DType::f16})
          for (const std::set<std::string>& off : {std::set<std::string>{},
                                                   {"join_loss_head"},
                                                   {"match_loss_head"},
                                                   {"keep_accumulators"},
                                                   {"simplify"}}) {
            SCOPED_TRACE(fmt::format("tied {}, bias {}, dropout {}, {}, without {}", tied, bias,
                                     dropout, name_of(precision), fmt::join(off, ",")));
            const Graph g = trained_head(loss, precision, off);
            const bool matched = !off.contains("match_loss_head");
            const bool joined = matched && !off.contains("join_loss_head");
            EXPECT_EQ(count_ops(g, "linear_cross_entropy_step"), joined ? 1u : 0u);
            EXPECT_EQ(count_ops(g, "linear_cross_entropy_grad"), matched && !joined ? 1u : 0u);
            for (const Node& node : g.nodes())
              for (const Type& t : node.results)
                EXPECT_TRUE(!matched || t.shape != Shape({2, 5, config.vocab_size}))
                    << node.op->name << " holds the logits";
            EXPECT_LE(test::difference(exact, reference::evaluate(g, in)), 1e-12);
          }
      }
}

TEST(LossHeadOfGpt2, GivesTheGradientOfTheWeightsUnrounded) {
  for (bool tied : {true, false})
    for (const std::set<std::string>& off :
         {std::set<std::string>{}, {"join_loss_head"}, {"keep_accumulators"}}) {
      auto config = test::tiny_gpt2();
      config.tie_word_embeddings = tied;
      const Graph g = trained_head(config.model()->loss(2, 5), DType::bf16, off);
      int heads = 0;
      for (const Node& node : g.nodes()) {
        if (!is(node, Op::linear_cross_entropy_step, Op::linear_cross_entropy_grad)) continue;
        ++heads;
        EXPECT_EQ(g.type(node.operands[0]).dtype, DType::bf16);
        EXPECT_EQ(g.type(node.operands[1]).dtype, DType::bf16);
        const DType wanted = off.contains("keep_accumulators") ? DType::bf16 : DType::f32;
        EXPECT_EQ(node.results.back().dtype, wanted);
      }
      EXPECT_EQ(heads, 1);
    }
}

TEST(LossHeadOfGpt2, EvaluationHoldsNoLogits) {
  const auto config = test::tiny_gpt2(true, 0.2);
  const Graph loss = config.model()->loss(2, 5);
  Target target;
  target.runs = [](const Graph& g, NodeId id) { return is(g.node(id), Op::linear_cross_entropy); };
  const Graph g = run_pipeline(loss, target, {});
  EXPECT_EQ(count_ops(g, "linear_cross_entropy"), 1u);
  const auto in = test::gpt2_inputs(loss, config, 7);
  EXPECT_LE(test::difference(reference::evaluate(inference(loss), in), reference::evaluate(g, in)),
            1e-12);
}

TEST(LossHeadOfGpt2, MediumPrecisionReadsBf16) {
  const auto config = test::tiny_gpt2();
  const Graph loss = config.model()->loss(2, 5);
  const auto in = test::gpt2_inputs(loss, config, 7);
  const auto exact = reference::evaluate(trained_head(loss, DType::f32, {}), in);
  Target target;
  target.runs = [](const Graph& g, NodeId id) {
    return g.node(id).op->name.starts_with("linear_cross_entropy");
  };
  for (const std::set<std::string>& off : {std::set<std::string>{}, {"join_loss_head"}}) {
    PipelineOptions p;
    p.loss = "loss";
    p.verify = true;
    p.disabled = off;
    p.matmul_precision = MatmulPrecision::medium;
    const Graph g = run_pipeline(loss, target, p);
    int heads = 0;
    for (const Node& node : g.nodes()) {
      if (!node.op->name.starts_with("linear_cross_entropy")) continue;
      ++heads;
      EXPECT_EQ(g.type(node.operands[0]).dtype, DType::bf16);
      for (const Type& t : node.results) EXPECT_EQ(t.dtype, DType::f32);
    }
    EXPECT_EQ(heads, off.empty() ? 1 : 2);
    EXPECT_LE(test::difference(exact, reference::evaluate(g, in)), 1e-12);
  }
}

}  // namespace
}  // namespace brrr
