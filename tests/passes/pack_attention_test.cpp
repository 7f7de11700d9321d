// Attention between a product that gives q, k and v in one and a product that reads all heads: in
// whatever way the moves between are written, nothing is left of them, and the graph means the
// same. Where q, k and v come from elsewhere, everything stays, with the reason.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

constexpr int64_t kB = 2, kT = 5, kH = 3, kD = 4, kC = kH * kD;

struct Heads {
  Value q, k, v;  // [B, H, T, D]
};

struct Model {
  Graph g;
  Value qkv = linear(g.input("x", {kB, kT, kC}, f32), g.parameter("w", {kC, 3 * kC}),
                     g.parameter("b", {3 * kC}));
  AttentionOptions options;

  Model() {
    options.scale = 0.5;
    options.causal = true;
  }
  Value joined(Value y) { return reshape(transpose(y, {0, 2, 1, 3}), {kB, kT, kC}); }
  void finish(Value y) {
    Value z = matmul(y, g.parameter("p", {kC, 7}));
    g.output("loss", sum(z * z, {0, 1, 2}));
  }
};

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

Value of_stack(Value stack, int64_t i) {  // [3, B, H, T, D]
  return reshape(slice(stack, 0, i, 1), {kB, kH, kT, kD});
}

struct Spelling {
  const char* name;
  std::function<Heads(Value qkv)> split;
};

const Spelling kSpellings[] = {
    {"one move for all",
     [](Value qkv) {
       Value stack = transpose(reshape(qkv, {kB, kT, 3, kH, kD}), {2, 0, 3, 1, 4});
       return Heads{of_stack(stack, 0), of_stack(stack, 1), of_stack(stack, 2)};
     }},
    {"a move for each",
     [](Value qkv) {
       auto part = [&](int64_t i) {
         return transpose(reshape(slice(qkv, 2, i * kC, kC), {kB, kT, kH, kD}), {0, 2, 1, 3});
       };
       return Heads{part(0), part(1), part(2)};
     }},
    {"rows of the whole batch",
     [](Value qkv) {
       Value rows = reshape(qkv, {kB * kT, 3 * kH, kD});
       auto part = [&](int64_t i) {
         Value x = reshape(slice(rows, 1, i * kH, kH), {kB, kT, kH, kD});
         return transpose(x, {0, 2, 1, 3});
       };
       return Heads{part(0), part(1), part(2)};
     }},
    {"moved twice",
     [](Value qkv) {
       Value apart = transpose(reshape(qkv, {kB, kT, 3, kH, kD}), {0, 2, 3, 1, 4});
       Value stack = transpose(apart, {1, 0, 2, 3, 4});
       return Heads{of_stack(stack, 0), of_stack(stack, 1), of_stack(stack, 2)};
     }},
};

TEST(PackAttention, ReadsAndWritesInPlaceHoweverItIsWritten) {
  for (const Spelling& spelling : kSpellings)
    for (const char* extra : {"", "dropout", "mask", "lengths"}) {
      SCOPED_TRACE(fmt::format("{} {}", spelling.name, extra));
      Model m;
      if (extra == std::string_view("dropout")) {
        m.options.p = 0.25;
        m.options.key = m.g.input("key", {2}, i32);
        m.options.stream = 3;
      }
      if (extra == std::string_view("mask"))
        m.options.mask = equal(iota(m.g, {kT, kT}, 0), iota(m.g, {kT, kT}, 1));
      if (extra == std::string_view("lengths")) m.options.lengths = m.g.input("n", {kB, 1}, i32);
      const Heads x = spelling.split(m.qkv);
      m.finish(m.joined(attention(x.q, x.k, x.v, m.options).y));
      Notes notes;
      const Graph packed = pack_attention(m.g, &notes);
      verify(packed);
      ASSERT_EQ(count_ops(packed, "packed_attention"), 1u)
          << fmt::format("{}", fmt::join(notes, "\n"));
      EXPECT_EQ(count_ops(packed, "attention"), 0u);
      EXPECT_EQ(notes, Notes{"attention reads q, k and v side by side and writes its heads so"});
      EXPECT_TRUE(pack_attention(packed) == packed) << "a second time changes something";
      const Graph a = differentiate(m.g), b = simplify(differentiate(packed));
      EXPECT_EQ(count_ops(b, "packed_attention_grad"), 1u);
      EXPECT_EQ(count_ops(b, "transpose") + count_ops(b, "slice") + count_ops(b, "pad") +
                    count_ops(b, "concat"),
                0u)
          << print(b);
      auto in = test::random_inputs(m.g, 7, -1, 1, 3);
      if (in.contains("n")) in["n"].data = {2, 5};
      EXPECT_LE(test::difference(reference::evaluate(a, in), reference::evaluate(b, in)), 1e-12);
    }
}

struct Refusal {
  const char* name;
  std::function<void(Model&)> build;
  const char* reason;
};

Heads usual(Value qkv) { return kSpellings[0].split(qkv); }

const Refusal kRefusals[] = {
    {"parameters side by side by head",
     [](Model& m) {
       Value stack = transpose(reshape(m.qkv, {kB, kT, kH, 3, kD}), {3, 0, 2, 1, 4});
       Value y = attention(of_stack(stack, 0), of_stack(stack, 1), of_stack(stack, 2), m.options).y;
       m.finish(m.joined(y));
     },
     "q, k and v do not lie side by side in one value"},
    {"another order",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       m.finish(m.joined(attention(x.k, x.q, x.v, m.options).y));
     },
     "q, k and v do not lie side by side in one value"},
    {"keys from elsewhere",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       Value k = m.g.input("k", {kB, kH, kT, kD}, f32);
       m.finish(m.joined(attention(x.q, k, x.v, m.options).y));
     },
     "q, k and v do not lie side by side in one value"},
    {"queries that are scaled",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       m.finish(m.joined(attention(x.q * 2.0, x.k, x.v, m.options).y));
     },
     "q, k and v do not lie side by side in one value"},
    {"fewer queries than keys",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       Value y = attention(slice(x.q, 2, 0, 1), x.k, x.v, m.options).y;
       m.finish(broadcast_to(reshape(y, {kB, 1, kC}), {kB, kT, kC}));
     },
     "q, k and v differ in shape"},
    {"a position",
     [](Model& m) {
       m.options.position = m.g.input("position", {}, i32);
       const Heads x = usual(m.qkv);
       m.finish(m.joined(attention(x.q, x.k, x.v, m.options).y));
     },
     "its keys are not those of its queries"},
    {"a bias of the scores",
     [](Model& m) {
       m.options.mask = m.g.parameter("bias", {kH, kT, kT});
       const Heads x = usual(m.qkv);
       m.finish(m.joined(attention(x.q, x.k, x.v, m.options).y));
     },
     "its mask may be trained"},
    {"heads that are shown",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       Value y = attention(x.q, x.k, x.v, m.options).y;
       m.g.output("heads", y);
       m.finish(m.joined(y));
     },
     "its heads are not put side by side"},
    {"heads in another order",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       Value y = attention(x.q, x.k, x.v, m.options).y;
       m.finish(reshape(transpose(y, {0, 2, 3, 1}), {kB, kT, kC}));
     },
     "its heads are not put side by side"},
    {"heads that stay apart",
     [](Model& m) {
       const Heads x = usual(m.qkv);
       m.finish(reshape(attention(x.q, x.k, x.v, m.options).y, {kB, kT, kC}));
     },
     "its heads are not put side by side"},
    {"no heads",
     [](Model& m) {
       Value x = reshape(m.qkv, {kB * kT, 3, kC});
       auto part = [&](int64_t i) { return reshape(slice(x, 1, i, 1), {kB * kT, kC}); };
       m.finish(reshape(attention(part(0), part(1), part(2), m.options).y, {kB, kT, kC}));
     },
     "there are no heads"},
};

TEST(PackAttention, LeavesTheRestWithTheReason) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.name);
    Model m;
    {
      Scope scope(m.g, "h.3.attn");
      r.build(m);
    }
    const Graph before = drop_dead(m.g);
    Notes notes;
    EXPECT_TRUE(pack_attention(before, &notes) == before);
    EXPECT_EQ(notes,
              Notes{std::string("h.3.attn: attention reads and writes copies: ") + r.reason});
  }
}

// Only where the target asks for it; what has no kernel is decomposed to what was there before.
TEST(PackAttention, OfGpt2) {
  const auto config = test::tiny_gpt2(true, 0.2);
  const Graph loss = models::gpt2_loss_graph(config, 2, 5);
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  Target apart;
  apart.runs = [](const Graph&, NodeId) { return true; };
  Target packs = apart;
  packs.packs_attention = true;
  Target opened;
  opened.packs_attention = true;
  const Graph plain = run_pipeline(loss, apart, options),
              packed = run_pipeline(loss, packs, options);
  EXPECT_EQ(count_ops(plain, "packed_attention"), 0u);
  EXPECT_EQ(count_ops(packed, "packed_attention"), 2u);
  EXPECT_EQ(count_ops(packed, "packed_attention_grad"), 2u);
  EXPECT_GT(count_ops(plain, "transpose"), 0u);
  EXPECT_EQ(count_ops(packed, "transpose") + count_ops(packed, "concat"), 0u) << print(packed);
  const auto in = test::gpt2_inputs(loss, config, 4);
  const auto wanted = reference::evaluate(plain, in);
  EXPECT_LE(test::difference(wanted, reference::evaluate(packed, in)), 1e-12);
  EXPECT_LE(test::difference(wanted, reference::evaluate(run_pipeline(loss, opened, options), in)),
            1e-12);
  options.disabled = {"pack_attention"};
  EXPECT_EQ(count_ops(run_pipeline(loss, packs, options), "packed_attention"), 0u);
  // Inference drops the dropout of packed attention, too.
  options.disabled.clear();
  options.loss.clear();
  const Graph eval = run_pipeline(loss, packs, options);
  EXPECT_EQ(count_ops(eval, "packed_attention"), 2u);
  EXPECT_LE(test::difference(reference::evaluate(run_pipeline(loss, apart, options), in),
                             reference::evaluate(eval, in)),
            1e-12);
}

}  // namespace
}  // namespace brrr
