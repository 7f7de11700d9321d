// Attention between the products that give q, k and v and the one that reads all heads: in whatever
// way the moves between are written, nothing is left of them, forward and backward, and the graph
// means the same. What attention cannot read in its place is copied, and the notes say so.

#include <gtest/gtest.h>

#include <numeric>

#include "ir/text.h"
#include "ops/attention.h"
#include "ops/op.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

constexpr int64_t kB = 2, kT = 5, kH = 4, kK = 2, kD = 3, kC = kH * kD;

struct Heads {
  Value q, k, v;  // [B, H, T, D]
};

struct Model {
  Graph g;
  Value x = g.input("x", {kB, kT, kC}, f32);
  std::optional<Value> key, mask, lengths;

  /// Without a bias: the gradient of that of keys is 0, and what rounding leaves of it differs.
  Value project(const std::string& name, int64_t columns) {
    return matmul(x, g.parameter(name, {kC, columns}));
  }
  Value qkv() { return linear(x, g.parameter("w", {kC, 3 * kC}), g.parameter("b", {3 * kC})); }

  Value visible(int64_t t, int64_t s) { return less_equal(iota(g, {1, s}, 1), iota(g, {t, 1}, 0)); }
  /// As a model writes it. q: [B, H, T, D], k and v: [B, H, S, D]
  Value attend(Heads h) {
    const int64_t t = h.q.shape().size(-2), s = h.k.shape().size(-2);
    Value hidden = scalar(g, -INFINITY);
    Value scores = where(visible(t, s), matmul(h.q, h.k, false, true) * 0.5, hidden);
    if (mask) scores = where(*mask, scores, hidden);
    if (lengths)
      scores = where(less(iota(g, {1, s}, 1), reshape(*lengths, {kB, 1, 1, 1})), scores, hidden);
    Value p = softmax(scores);
    if (key) p = dropout(p, *key, 0.25, 3);
    return matmul(p, h.v);
  }
  Value joined(Value y) {
    return reshape(transpose(y, {0, 2, 1, 3}),
                   {kB, y.shape()[2], y.shape().size(1) * y.shape()[3].size()});
  }
  void finish(Value y) {
    Value z = matmul(y, g.parameter("p", {y.shape()[2], 7}));
    g.output("loss", sum(z * z, {0, 1, 2}));
  }
};

/// [B, T, heads * D] -> [B, heads, T, D]
Value split(Value x, int64_t heads) {
  const Dim rows = x.shape()[1];
  return transpose(reshape(x, {kB, rows, heads, Dim(x.shape().size(2) / heads)}), {0, 2, 1, 3});
}
/// Each head several times, as Hugging Face's repeat_kv does it.
Value repeated(Value x, int64_t times) {
  const Shape s = x.shape();
  const Dim heads = s[1], rows = s[2], width = s[3];
  Value wide =
      broadcast_to(reshape(x, {kB, heads, 1, rows, width}), {kB, heads, times, rows, width});
  return reshape(wide, {kB, heads.size() * times, rows, width});
}

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

const Node* attention_of(const Graph& g) {
  for (const Node& node : g.nodes())
    if (is(node, Op::attention)) return &node;
  return nullptr;
}
size_t count_moves(const Graph& g) {
  return count_ops(g, "transpose") + count_ops(g, "slice") + count_ops(g, "pad") +
         count_ops(g, "concat");
}

reference::Tensors inputs_of(const Graph& g) {
  auto in = test::random_inputs(g, 7, -1, 1, 3);
  if (in.contains("n")) in["n"].data = {2, 5};
  return in;
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

TEST(AttentionPlaces, NothingIsMovedHoweverTheSplitIsWritten) {
  for (const Spelling& spelling : kSpellings)
    for (const std::string_view extra : {"", "dropout", "mask", "lengths"}) {
      SCOPED_TRACE(fmt::format("{} {}", spelling.name, extra));
      Model m;
      if (extra == "dropout") m.key = m.g.input("key", {2}, i32);
      if (extra == "mask") m.mask = equal(iota(m.g, {kT, kT}, 0), iota(m.g, {kT, kT}, 1));
      if (extra == "lengths") m.lengths = m.g.input("n", {kB}, i32);
      m.finish(m.joined(m.attend(spelling.split(m.qkv()))));
      const Graph before = simplify(m.g);
      Notes notes;
      const Graph after = match_attention(before, &notes);
      verify(after);
      const Node* node = attention_of(after);
      ASSERT_NE(node, nullptr) << fmt::format("{}", fmt::join(notes, "\n"));
      const AttentionForm form(*node, operand_types(after, *node));
      EXPECT_EQ(form.sources, 1u);
      EXPECT_TRUE(form.places.y_in_rows);
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_TRUE(notes[0].ends_with("; q, k and v in one value, heads joined")) << notes[0];
      EXPECT_TRUE(match_attention(after) == after) << "a second time changes something";
      const Graph a = differentiate(before), b = simplify(differentiate(after));
      EXPECT_EQ(count_ops(b, "attention_grad"), 1u);
      EXPECT_EQ(count_moves(b), 0u) << print(b);
      const auto in = inputs_of(before);
      EXPECT_LE(test::difference(reference::evaluate(a, in), reference::evaluate(b, in)), 1e-12);
    }
}

struct Lying {
  const char* name;
  std::function<Heads(Model&)> heads;
  const char* note;
  size_t moves;  // that are left, forward
};

Value part_of(Value qkv, int64_t first, int64_t count) { return slice(qkv, 2, first, count); }

const Lying kLying[] = {
    {"a product for each",
     [](Model& m) {
       return Heads{split(m.project("q", kC), kH), split(m.project("k", kC), kH),
                    split(m.project("v", kC), kH)};
     },
     "q, k and v apart, heads joined", 0},
    {"fewer key heads, repeated",
     [](Model& m) {
       return Heads{split(m.project("q", kC), kH),
                    repeated(split(m.project("k", kK * kD), kK), kH / kK),
                    repeated(split(m.project("v", kK * kD), kK), kH / kK)};
     },
     "q, k and v apart, 4 heads share 2, heads joined", 0},
    {"one key head",
     [](Model& m) {
       return Heads{split(m.project("q", kC), kH), repeated(split(m.project("k", kD), 1), kH),
                    repeated(split(m.project("v", kD), 1), kH)};
     },
     "q, k and v apart, 4 heads share 1, heads joined", 0},
    {"one key head, broadcast by the products",
     [](Model& m) {
       return Heads{split(m.project("q", kC), kH), split(m.project("k", kD), 1),
                    split(m.project("v", kD), 1)};
     },
     "q, k and v apart, 4 heads share 1, heads joined", 0},
    {"fewer key heads, from one product",
     [](Model& m) {
       Value x = m.project("w", kC + 2 * kK * kD);
       const int64_t n = kK * kD;
       return Heads{split(part_of(x, 0, kC), kH), repeated(split(part_of(x, kC, n), kK), kH / kK),
                    repeated(split(part_of(x, kC + n, n), kK), kH / kK)};
     },
     "q, k and v in one value, 4 heads share 2, heads joined", 0},
    {"keys and values from another product, in another order",
     [](Model& m) {
       Value kv = m.project("kv", 2 * kC);
       return Heads{split(m.project("q", kC), kH), split(part_of(kv, kC, kC), kH),
                    split(part_of(kv, 0, kC), kH)};
     },
     "q, k and v in two values, heads joined", 0},
    {"another order",
     [](Model& m) {
       const Heads x = kSpellings[0].split(m.qkv());
       return Heads{x.k, x.q, x.v};
     },
     "q, k and v in one value, heads joined", 0},
    {"keys from a cache",
     [](Model& m) {
       const Heads x = kSpellings[1].split(m.qkv());
       return Heads{x.q, m.g.input("k", {kB, kH, kT, kD}, f32),
                    m.g.input("v", {kB, kH, kT, kD}, f32)};
     },
     "q, k and v apart, heads joined", 0},
    {"keys that something is done to",
     [](Model& m) {
       const Heads x = kSpellings[1].split(m.qkv());
       return Heads{x.q, tanh(x.k), x.v};
     },
     "q, k and v in two values, heads joined", 2},
    {"heads from the columns of all heads",
     [](Model& m) {  // the parts of a head side by side
       Value stack = transpose(reshape(m.qkv(), {kB, kT, kH, 3, kD}), {3, 0, 2, 1, 4});
       return Heads{of_stack(stack, 0), of_stack(stack, 1), of_stack(stack, 2)};
     },
     "q, k and v apart, heads joined", 4},
    {"keys transposed in memory",
     [](Model& m) {
       const Heads x = kSpellings[1].split(m.qkv());
       return Heads{x.q, transpose(m.g.input("k", {kB, kH, kD, kT}, f32), {0, 1, 3, 2}), x.v};
     },
     "q, k and v in two values, 1 copied, heads joined", 1},
};

TEST(AttentionPlaces, OperandsAreReadWhereTheyLie) {
  for (const Lying& lying : kLying) {
    SCOPED_TRACE(lying.name);
    Model m;
    {
      Scope scope(m.g, "h.3.attn");
      m.finish(m.joined(m.attend(lying.heads(m))));
    }
    const Graph before = simplify(m.g);
    Notes notes;
    const Graph after = match_attention(before, &notes);
    verify(after);
    ASSERT_EQ(count_ops(after, "attention"), 1u) << fmt::format("{}", fmt::join(notes, "\n"));
    EXPECT_EQ(notes, Notes{std::string("h.3.attn: attention: scale 0.5, causal; ") + lying.note});
    EXPECT_EQ(count_moves(after) + count_ops(after, "broadcast_to"), lying.moves) << print(after);
    EXPECT_TRUE(match_attention(after) == after) << "a second time changes something";
    const auto in = inputs_of(before);
    EXPECT_LE(test::difference(reference::evaluate(differentiate(before), in),
                               reference::evaluate(differentiate(after), in)),
              1e-12);
  }
}

struct Reading {
  const char* name;
  std::function<void(Model&, Value y)> read;  // y: [B, H, T, D]
};
const Reading kReadings[] = {
    {"heads that are shown",
     [](Model& m, Value y) {
       m.g.output("heads", y);
       m.finish(m.joined(y));
     }},
    {"heads in another order",
     [](Model& m, Value y) {
       m.finish(reshape(transpose(y, {0, 2, 3, 1}), {kB, kT, kC}));
     }},
    {"heads that stay apart",
     [](Model& m, Value y) {
       m.finish(reshape(y, {kB, kT, kC}));
     }},
};

TEST(AttentionPlaces, HeadsAreJoinedOnlyWhereNothingElseReadsThem) {
  for (const Reading& reading : kReadings) {
    SCOPED_TRACE(reading.name);
    Model m;
    reading.read(m, m.attend(kSpellings[0].split(m.qkv())));
    const Graph before = simplify(m.g);
    Notes notes;
    const Graph after = match_attention(before, &notes);
    EXPECT_EQ(notes, Notes{"attention: scale 0.5, causal; q, k and v in one value"});
    const auto in = inputs_of(before);
    EXPECT_LE(test::difference(reference::evaluate(differentiate(before), in),
                               reference::evaluate(differentiate(after), in)),
              1e-12);
  }
}

/// Attention without heads, [T, D], and products that broadcast over several batch axes.
TEST(AttentionPlaces, AnyNumberOfAxes) {
  for (const Shape& shape : {Shape{kT, kD}, {kH, kT, kD}, {2, kB, kH, kT, kD}}) {
    SCOPED_TRACE(shape.str());
    Graph g;
    Value q = g.parameter("q", shape), k = g.parameter("k", shape), v = g.parameter("v", shape);
    Value y = matmul(softmax(matmul(q, k, false, true) * 0.5), v);
    std::vector<int64_t> axes(static_cast<size_t>(shape.rank()));
    std::iota(axes.begin(), axes.end(), 0);
    g.output("loss", sum(y * y, axes));
    const Graph after = match_attention(g);
    ASSERT_EQ(count_ops(after, "attention"), 1u);
    const auto in = inputs_of(g);
    EXPECT_LE(test::difference(reference::evaluate(differentiate(g), in),
                               reference::evaluate(differentiate(after), in)),
              1e-12);
  }
}

/// What has no kernel is decomposed.
TEST(AttentionPlaces, OfGpt2) {
  const auto config = test::tiny_gpt2(true, 0.2);
  const Graph loss = config.model()->loss(2, 5);
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  Target runs;
  runs.runs = [](const Graph&, NodeId) { return true; };
  const Graph matched = run_pipeline(loss, runs, options);
  EXPECT_EQ(count_ops(matched, "attention"), 2u);
  EXPECT_EQ(count_ops(matched, "attention_grad"), 2u);
  EXPECT_EQ(count_ops(matched, "transpose") + count_ops(matched, "concat"), 0u) << print(matched);
  const auto in = test::gpt2_inputs(loss, config, 4);
  const auto wanted = reference::evaluate(differentiate(loss), in);
  const auto expect_same = [&](const Graph& g) {
    auto got = reference::evaluate(g, in);
    EXPECT_LE(test::difference(wanted, got), 1e-12);
  };
  expect_same(matched);
  expect_same(run_pipeline(loss, Target{}, options));
  // Inference drops the dropout of attention, too.
  options.loss.clear();
  const Graph eval = run_pipeline(loss, runs, options);
  EXPECT_EQ(count_ops(eval, "attention"), 2u);
  EXPECT_LE(
      test::difference(reference::evaluate(inference(loss), in), reference::evaluate(eval, in)),
      1e-12);
}

}  // namespace
}  // namespace brrr
