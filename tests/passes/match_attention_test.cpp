// Every way to write attention is found, and the graph still means the same; what only looks like
// attention is left, with the reason.

#include <gtest/gtest.h>

#include <limits>

#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

constexpr int64_t kB = 2, kH = 2, kT = 5, kS = 7, kD = 4;

// What a spelling may use: q [B, H, T, D], k and v [B, H, S, D] and masks of all kinds.
struct Parts {
  Graph g;
  Value q = g.parameter("q", {kB, kH, kT, kD});
  Value k = g.parameter("k", {kB, kH, kS, kD});
  Value v = g.parameter("v", {kB, kH, kS, kD});
  Value position = g.input("position", {}, i32);
  Value lengths = g.input("lengths", {kB}, i32);
  Value bias = g.input("bias", {kH, kT, kS}, f32);
  Value keep = g.input("keep", {kB, 1, 1, kS}, DType::boolean);
  Value key = g.input("key", {2}, i32);

  Value rows() { return iota(g, {kT, 1}, 0); }
  Value columns() { return iota(g, {1, kS}, 1); }
  Value visible() { return less_equal(columns(), rows()); }
  Value scores() { return matmul(q, k, false, true) * 0.5; }
  Value number(double x) { return scalar(g, x); }
  Value hidden() { return number(-INFINITY); }
};

struct Spelling {
  const char* name;
  std::function<Value(Parts&)> argument;  // of softmax
  const char* attributes;                 // of the attention node, "name=value, ..."
};

const Spelling kSpellings[] = {
    {"no mask", [](Parts& p) { return p.scores(); }, "causal=false"},
    {"no scale", [](Parts& p) { return matmul(p.q, p.k, false, true); }, "scale=1.0"},
    {"scale on q", [](Parts& p) { return matmul(p.q * 0.5, p.k, false, true); }, "scale=0.5"},
    {"scale on k", [](Parts& p) { return matmul(p.q, 0.5 * p.k, false, true); }, "scale=0.5"},
    {"divided", [](Parts& p) { return matmul(p.q, p.k, false, true) / 2.0; }, "scale=0.5"},
    {"divided by a computed root",
     [](Parts& p) { return matmul(p.q, p.k, false, true) / sqrt(p.number(4)); }, "scale=0.5"},
    {"scaled three times", [](Parts& p) { return -matmul(p.q / -4.0, p.k * 2.0, false, true); },
     "scale=0.5"},
    {"k transposed before",
     [](Parts& p) {
       return matmul(p.q, transpose(p.k, {0, 1, 3, 2})) * 0.5;
     },
     "scale=0.5"},
    {"k scaled and transposed",
     [](Parts& p) {
       return matmul(p.q, transpose(p.k, {0, 1, 3, 2}) * 0.5);
     },
     "scale=0.5"},
    {"causal, where", [](Parts& p) { return where(p.visible(), p.scores(), p.hidden()); },
     "causal=true, lengths=false, mask=false"},
    {"causal, scaled after the mask",
     [](Parts& p) { return where(p.visible(), matmul(p.q, p.k, false, true), p.hidden()) * 0.5; },
     "causal=true, lengths=false, mask=false"},
    {"causal, greater and exchanged",
     [](Parts& p) { return where(greater(p.columns(), p.rows()), p.hidden(), p.scores()); },
     "causal=true, lengths=false, mask=false"},
    {"causal, negated",
     [](Parts& p) {
       return where(logical_not(less(p.rows(), p.columns())), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false"},
    {"causal, less than the next row",
     [](Parts& p) {
       Value next = p.rows() + 1.0;
       return where(greater(next, p.columns()), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false"},
    {"causal, by a difference",
     [](Parts& p) {
       Value zero = scalar(p.g, 0, i32);
       return where(greater_equal(p.rows() - p.columns(), zero), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false"},
    {"causal, positions reshaped and broadcast",
     [](Parts& p) {
       Value rows = broadcast_to(reshape(iota(p.g, {kT}, 0), {1, kT, 1}), {1, kT, kS});
       Value columns = reshape(iota(p.g, {kS}, 0), {1, 1, kS});
       return where(less_equal(columns, rows), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false"},
    {"causal, a large number",
     [](Parts& p) { return where(p.visible(), p.scores(), p.number(-1e9)); },
     "causal=true, lengths=false, mask=false"},
    {"causal, added -inf",
     [](Parts& p) { return p.scores() + where(p.visible(), p.number(0), p.hidden()); },
     "causal=true, lengths=false, mask=false"},
    {"causal, added first",
     [](Parts& p) {
       return where(greater(p.columns(), p.rows()), p.number(-1e30), p.number(0)) + p.scores();
     },
     "causal=true, lengths=false, mask=false"},
    {"causal, (1 - mask) -1e9",
     [](Parts& p) { return p.scores() + (1.0 - cast(p.visible(), f32)) * -1e9; },
     "causal=true, lengths=false, mask=false"},
    {"causal, a subtracted product",
     [](Parts& p) { return p.scores() - cast(greater(p.columns(), p.rows()), f32) * 1e9; },
     "causal=true, lengths=false, mask=false"},
    {"a constant offset",
     [](Parts& p) {
       return where(less_equal(p.columns(), p.rows() + 2.0), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false, masked=-inf, p=0.0, position=true"},
    {"a position",
     [](Parts& p) {
       Value rows = reshape(iota(p.g, {kT}, 0) + p.position, {kT, 1});
       return where(less_equal(p.columns(), rows), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false, masked=-inf, p=0.0, position=true"},
    {"a position taken from the keys",
     [](Parts& p) {
       Value columns = p.columns() - p.position;
       return where(less(columns, p.rows()), p.scores(), p.hidden() * 1.0);
     },
     "causal=true, lengths=false, mask=false, masked=-inf, p=0.0, position=true"},
    {"a position for each sequence",
     [](Parts& p) {
       Value rows = p.rows() + reshape(p.lengths, {kB, 1, 1, 1});
       return where(less_equal(p.columns(), rows), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false, position=true, window=0"},
    {"a window",
     [](Parts& p) {
       Value near = greater(p.columns(), p.rows() - 3.0);
       return where(logical_and(p.visible(), near), p.scores(), p.hidden());
     },
     "causal=true, lengths=false, mask=false, position=false, window=3"},
    {"a window, by a difference and a large number",
     [](Parts& p) {
       Value near = less(p.rows() - p.columns(), scalar(p.g, 2, i32));
       return p.scores() + where(logical_and(near, p.visible()), p.number(0), p.number(-1e9));
     },
     "causal=true, lengths=false, mask=false, position=false, window=2"},
    {"a window that goes with a position",
     [](Parts& p) {
       Value rows = reshape(iota(p.g, {kT}, 0) + p.position, {kT, 1});
       Value far = less_equal(p.columns(), rows - 2.0);
       return where(far, p.hidden(), where(less_equal(p.columns(), rows), p.scores(), p.hidden()));
     },
     "causal=true, lengths=false, mask=false, position=true, window=2"},
    {"a window alone",
     [](Parts& p) { return where(greater_equal(p.columns(), p.rows()), p.scores(), p.hidden()); },
     "causal=false, lengths=false, mask=false, position=false, window=1"},
    {"a window of another position",
     [](Parts& p) {
       Value near = greater_equal(p.columns(), p.rows() - p.position);
       return where(p.visible(), where(near, p.scores(), p.hidden()), p.hidden());
     },
     "causal=true, lengths=false, mask=true, position=false, window=0"},
    {"lengths",
     [](Parts& p) {
       Value n = reshape(p.lengths, {kB, 1, 1, 1});
       return where(less(p.columns(), n), p.scores(), p.hidden());
     },
     "causal=false, lengths=true, mask=false"},
    {"causal and lengths",
     [](Parts& p) {
       Value n = reshape(p.lengths, {kB, 1, 1, 1});
       return where(logical_and(p.visible(), less(p.columns(), n)), p.scores(), p.hidden());
     },
     "causal=true, lengths=true, mask=false"},
    {"causal and lengths, hidden by either",
     [](Parts& p) {
       Value n = reshape(p.lengths, {kB, 1, 1, 1});
       Value hide = logical_or(greater(p.columns(), p.rows()), greater_equal(p.columns(), n));
       return where(hide, p.hidden(), p.scores());
     },
     "causal=true, lengths=true, mask=false"},
    {"a boolean mask", [](Parts& p) { return where(p.keep, p.scores(), p.hidden()); },
     "causal=false, lengths=false, mask=true, masked=-inf"},
    {"a boolean mask and a number",
     [](Parts& p) { return where(p.keep, p.scores(), p.number(-1e9)); },
     "causal=false, lengths=false, mask=true, masked=-1000000000.0"},
    {"causal and a boolean mask",
     [](Parts& p) { return where(p.visible(), where(p.keep, p.scores(), p.hidden()), p.hidden()); },
     "causal=true, lengths=false, mask=true, masked=-inf"},
    {"causal -inf around a mask of a number",
     [](Parts& p) {
       return where(p.visible(), where(p.keep, p.scores(), p.number(-1e5)), p.hidden());
     },
     "causal=true, lengths=false, mask=true, masked=-100000.0"},
    {"two masks of the same number",
     [](Parts& p) {
       return where(p.visible(), where(p.keep, p.scores(), p.number(-1e9)), p.number(-1e9));
     },
     "causal=false, lengths=false, mask=true, masked=-1000000000.0"},
    {"an added bias", [](Parts& p) { return p.scores() + p.bias; },
     "causal=false, lengths=false, mask=true"},
    {"a bias added before the scale",
     [](Parts& p) { return (matmul(p.q, p.k, false, true) + p.bias) * 0.5; },
     "causal=false, lengths=false, mask=true"},
    {"a subtracted bias and causal",
     [](Parts& p) { return where(p.visible(), p.scores() - p.bias, p.hidden()); },
     "causal=true, lengths=false, mask=true"},
    {"two added biases", [](Parts& p) { return p.bias + (p.scores() + p.bias * 2.0); },
     "causal=false, lengths=false, mask=true"},
    {"a bias, a boolean mask and causal",
     [](Parts& p) {
       return where(p.keep, where(p.visible(), p.scores(), p.hidden()), p.hidden()) + p.bias;
     },
     "causal=true, lengths=false, mask=true"},
    {"a mask that hides nothing",
     [](Parts& p) {
       Value all = logical_and(greater_equal(p.rows(), scalar(p.g, 0, i32)),
                               less(scalar(p.g, -1, i32), p.columns()));
       return p.scores() + where(logical_and(all, p.visible()), p.number(0), p.hidden());
     },
     "causal=true, lengths=false, mask=false"},
    {"a bias and an added padding mask",
     [](Parts& p) { return p.scores() + p.bias + (1.0 - cast(p.keep, f32)) * -1e9; },
     "causal=false, lengths=false, mask=true"},
};

reference::Tensors inputs(const Graph& g, uint32_t seed) {
  reference::Tensors in = test::random_inputs(g, seed, -1, 1, 3);
  in["position"].data = {static_cast<double>(seed)};
  in["lengths"].data = {3, 7};
  // Some key is left to every query, under the causal mask too.
  in["keep"].data = {1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1};
  return in;
}

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

void add_loss(Graph& g, Value y) {
  g.output("y", y);
  g.output("loss", sum(y * y, {0, 1, 2, 3}));
}

/// Each "name=value" is an attribute of the attention node, of which there is one.
void expect_attributes(const Graph& g, std::string_view wanted) {
  for (const Node& node : g.nodes()) {
    if (!is(node, Op::attention)) continue;
    std::string text = node.attrs.str();
    text = ", " + text.substr(1, text.size() - 2) + ",";
    while (!wanted.empty()) {
      const size_t end = std::min(wanted.size(), wanted.find(", "));
      EXPECT_NE(text.find(fmt::format(", {},", wanted.substr(0, end))), std::string::npos)
          << wanted.substr(0, end) << " is not in " << text;
      wanted.remove_prefix(std::min(wanted.size(), end + 2));
    }
  }
}

class MatchAttention : public testing::TestWithParam<Spelling> {};
INSTANTIATE_TEST_SUITE_P(Spellings, MatchAttention, testing::ValuesIn(kSpellings),
                         [](const auto& row) {
                           std::string name = row.param.name;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST_P(MatchAttention, IsFoundAndMeansTheSame) {
  for (bool dropped : {false, true})
    for (bool by_hand : {false, true}) {
      SCOPED_TRACE(
          fmt::format("{}, dropout {}, softmax written out {}", GetParam().name, dropped, by_hand));
      Parts parts;
      Value x = GetParam().argument(parts);
      Value e = exp(x - max(x, {-1}, true));
      Value p = by_hand ? e / sum(e, {-1}, true) : softmax(x);
      if (dropped) p = dropout(p, parts.key, 0.25, 9);
      add_loss(parts.g, matmul(p, parts.v));
      const Graph before = simplify(parts.g);
      Notes notes;
      const Graph after = match_attention(before, &notes);
      verify(after);
      ASSERT_EQ(count_ops(after, "attention"), 1u) << fmt::format("{}", fmt::join(notes, "\n"));
      EXPECT_EQ(count_ops(after, "softmax") + count_ops(after, "exp"), 0u) << print(after);
      EXPECT_EQ(count_ops(after, "dropout"), 0u);
      std::string text = GetParam().attributes;
      if (dropped) {
        if (const auto at = text.find("p=0.0"); at != std::string::npos)
          text.replace(at, 5, "p=0.25");
      }
      expect_attributes(after, text);
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_TRUE(notes[0].starts_with("attention: scale ")) << notes[0];
      EXPECT_EQ(notes[0].find("copied"), std::string::npos) << notes[0];
      const Graph a = differentiate(before), b = differentiate(after);
      EXPECT_EQ(count_ops(b, "attention_grad"), 1u);
      for (uint32_t seed : {1u, 2u}) {
        const auto in = inputs(before, seed);
        EXPECT_LE(test::difference(reference::evaluate(a, in), reference::evaluate(b, in)), 1e-12);
      }
      EXPECT_TRUE(match_attention(after) == after) << "a second time changes something";
    }
}

// -- queries that see no key
// --------------------------------------------------------------------------

struct RowGuardCase {
  const char* name;
  std::function<Value(Parts&, Value p)> guarded;  // of probabilities
  int wheres;                                     // that are left
};

TEST(MatchAttentionGuards, RowsThatBecomeZeros) {
  const RowGuardCase cases[] = {
      {"no numbers", [](Parts& p, Value w) { return where(not_equal(w, w), p.number(0), w); }, 1},
      {"numbers", [](Parts& p, Value w) { return where(equal(w, w), w, p.number(0)); }, 1},
      {"a condition",
       [](Parts& p, Value w) {
         Value any = max(cast(logical_and(p.keep, p.visible()), f32), {3}, true);
         return where(equal(any, p.number(0)), p.number(0), w);
       },
       1},
      {"a condition for each query, of two axes",
       [](Parts& p, Value w) {
         Value first = less(p.rows(), scalar(p.g, 2, i32));
         return where(first, p.number(0), where(not_equal(w, w), p.number(0), w));
       },
       2},
  };
  for (const RowGuardCase& c : cases)
    for (const int way : {0, 1, 2, 3}) {
      const bool joined = way % 2 != 0, causal = way >= 2;
      SCOPED_TRACE(fmt::format("{}, joined {}, causal {}", c.name, joined, causal));
      Parts p;
      Value seen = causal ? logical_and(p.keep, p.visible()) : p.keep;
      Value w = softmax(where(seen, p.scores(), p.hidden()));
      Value y = matmul(c.guarded(p, w), p.v);
      if (joined) y = reshape(transpose(y, {0, 2, 1, 3}), {kB, kT, kH * kD});
      p.g.output("y", y);
      const Graph before = simplify(p.g), after = match_attention(before);
      verify(after);
      EXPECT_EQ(count_ops(after, "attention"), 1u) << print(after);
      EXPECT_EQ(count_ops(after, "where"), static_cast<size_t>(c.wheres)) << print(after);
      auto in = inputs(before, 1);
      in["keep"].data = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1};
      EXPECT_LE(test::difference(reference::evaluate(before, in), reference::evaluate(after, in)),
                1e-12);
    }
}

TEST(MatchAttentionGuards, AreNotNeededWhereEveryQuerySeesAKey) {
  Parts p;
  Value w = softmax(where(p.visible(), p.scores(), p.hidden()));
  p.g.output("y", matmul(where(not_equal(w, w), p.number(0), w), p.v));
  const Graph after = match_attention(simplify(p.g));
  EXPECT_EQ(count_ops(after, "attention"), 1u) << print(after);
  EXPECT_EQ(count_ops(after, "where"), 0u) << print(after);
}

// A finite mask hides no key: where it is all that a query sees, the probabilities are alike, and
// no guard makes zeros of them. Twice the lowest number is -inf, which does.
TEST(MatchAttentionGuards, RowsOfAFiniteMaskAreTheMeanOfTheValues) {
  const double lowest = std::numeric_limits<float>::lowest();
  for (const double low : {-1e4, -65504.0, -1e9, lowest, double{-INFINITY}})
    for (const int way : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, way {}", low, way));
      Parts p;
      Value s = matmul(p.q, p.k, false, true);
      if (way == 0) s = where(p.keep, s, p.number(low));
      if (way == 1) s = s + where(p.keep, p.number(0), p.number(low));
      if (way == 2) s = where(p.visible(), where(p.keep, s, p.number(low)), p.hidden());
      if (way == 3) s = where(p.keep, where(p.visible(), s, p.number(low)), p.number(low));
      const Value w = softmax(s);
      p.g.output("y", matmul(where(not_equal(w, w), p.number(0), w), p.v));
      const Graph before = simplify(p.g), after = match_attention(before);
      verify(after);
      EXPECT_EQ(count_ops(after, "attention"), 1u) << print(after);
      auto in = inputs(before, 1);
      in["keep"].data = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1};
      const RefTensor y = reference::evaluate(before, in).at("y");
      EXPECT_EQ(y.data[0] == 0, std::isinf(low));
      EXPECT_LE(test::difference(reference::evaluate(before, in), reference::evaluate(after, in)),
                1e-12);
    }
}

TEST(MatchAttentionGuards, AMaskThatF32CannotHoldIsInfinite) {
  Parts p;
  const Value low = p.number(std::numeric_limits<float>::lowest());
  const Value w = softmax(where(p.keep, p.scores(), low) * 2.0);
  p.g.output("y", matmul(where(not_equal(w, w), p.number(0), w), p.v));
  const Graph after = match_attention(simplify(p.g));
  expect_attributes(after, "mask=true, masked=-inf");
  EXPECT_EQ(count_ops(after, "where"), 1u) << print(after);
}

// -- what is left as it is
// ---------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(Parts&)> build;  // adds an output
  const char* reason;
};

const Refusal kRefusals[] = {
    {"probabilities shown",
     [](Parts& p) {
       Value w = softmax(p.scores());
       p.g.output("w", w);
       p.g.output("y", matmul(w, p.v));
     },
     "its probabilities are used elsewhere, too"},
    {"scores shown",
     [](Parts& p) {
       Value s = p.scores();
       p.g.output("s", s);
       p.g.output("y", matmul(softmax(s), p.v));
     },
     "its scores are used elsewhere, too"},
    {"guarded probabilities shown",
     [](Parts& p) {
       Value w = softmax(p.scores());
       w = where(not_equal(w, w), p.number(0), w);
       p.g.output("w", w);
       p.g.output("y", matmul(w, p.v));
     },
     "its probabilities are used elsewhere, too"},
    {"no scores",
     [](Parts& p) {
       Value v = reshape(slice(p.v, 0, 0, 1), {kH, kS, kD});
       p.g.output("y", matmul(softmax(tanh(p.bias)), v));
     },
     "its argument comes from tanh, not from a product of q and k"},
    {"a gate", [](Parts& p) { p.g.output("y", matmul(softmax(tanh(p.scores())), p.v)); },
     "its argument comes from tanh, not from a product of q and k"},
    {"a weak mask",
     [](Parts& p) {
       p.g.output("y", matmul(softmax(where(p.visible(), p.scores(), p.number(-5))), p.v));
     },
     "its argument comes from where, not from a product of q and k"},
    {"a slice of the probabilities",
     [](Parts& p) { p.g.output("y", matmul(slice(softmax(p.scores()), 2, 0, 1), p.v)); },
     "a slice is between the two"},
    {"probabilities transposed",
     [](Parts& p) {
       Value w = softmax(matmul(p.k, p.q, false, true));
       p.g.output("y", matmul(w, p.v, true, false));
     },
     "its probabilities are used transposed"},
    {"shared keys",
     [](Parts& p) {
       Value k = reshape(slice(slice(p.k, 0, 0, 1), 1, 0, 1), {kS, kD});
       p.g.output("y", matmul(softmax(matmul(p.q, k, false, true)), p.v));
     },
     "q, k and v differ in leading axes"},
    {"a mask that widens the scores",
     [](Parts& p) {
       Value s = slice(p.q, 0, 0, 1), k = slice(p.k, 0, 0, 1), v = slice(p.v, 0, 0, 1);
       Value x = where(p.keep, matmul(s, k, false, true), p.hidden());
       p.g.output("y", matmul(softmax(x), v));
     },
     "its scores are broadcast"},
    {"masks of two numbers",
     [](Parts& p) {
       Value x = where(p.keep, where(p.visible(), p.scores(), p.number(-1e5)), p.number(-1e9));
       p.g.output("y", matmul(softmax(x), p.v));
     },
     "it is masked by different numbers"},
    {"a number around -inf",
     [](Parts& p) {
       Value x = where(p.keep, where(p.visible(), p.scores(), p.hidden()), p.number(-1e9));
       p.g.output("y", matmul(softmax(x), p.v));
     },
     "a mask of -1000000000 is mixed with others"},
};

TEST(MatchAttentionRefuses, WithTheReason) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.name);
    Parts parts;
    Scope scope(parts.g, "h.3.attn");
    r.build(parts);
    const Graph before = simplify(parts.g);
    Notes notes;
    const Graph after = match_attention(before, &notes);
    EXPECT_TRUE(after == before) << print(after);
    ASSERT_EQ(notes.size(), 1u) << r.reason;
    EXPECT_EQ(
        notes[0],
        std::string("h.3.attn: not matched as attention, although a product follows a softmax: ") +
            r.reason);
  }
}

TEST(MatchAttentionRefuses, PositionsThatAreNotCausal) {
  const std::function<Value(Parts&)> conditions[] = {
      [](Parts& p) { return greater_equal(p.columns(), p.rows()); },  // the future only
      [](Parts& p) { return less_equal(p.columns() * scalar(p.g, 2, i32), p.rows()); },
      [](Parts& p) { return less_equal(p.columns(), p.rows() + p.rows()); },
      [](Parts& p) { return equal(p.columns(), p.rows()); },
      [](Parts& p) { return less_equal(p.columns() + p.rows(), p.position + 1.0); },
      [](Parts& p) {  // another offset for each head
        return less_equal(p.columns(), p.rows() + reshape(p.lengths, {1, kH, 1, 1}));
      },
  };
  for (const auto& condition : conditions) {
    Parts parts;
    Value x = where(condition(parts), parts.scores(), parts.number(-1e9));
    add_loss(parts.g, matmul(softmax(x), parts.v));
    const Graph before = simplify(parts.g), after = match_attention(before);
    EXPECT_EQ(count_ops(after, "attention"), 1u);
    expect_attributes(after, "causal=false, lengths=false, mask=true");
    const auto in = inputs(before, 3);
    EXPECT_LE(test::difference(reference::evaluate(before, in), reference::evaluate(after, in)),
              1e-12);
  }
}

TEST(MatchAttentionOfGpt2, FindsEveryLayerOfGpt2) {
  const auto config = test::tiny_gpt2(true, 0.2);
  const Graph training = simplify(config.model()->loss(2, 5));
  Notes notes;
  const Graph found = match_attention(training, &notes);
  EXPECT_EQ(count_ops(found, "attention"), 2u) << fmt::format("{}", fmt::join(notes, "\n"));
  EXPECT_EQ(notes[1],
            "h.1.attn: attention: scale 0.5, causal, dropout 0.2; q, k and v in one value, heads "
            "joined");
  EXPECT_EQ(count_ops(found, "where") + count_ops(found, "iota"), 0u) << print(found);
  const auto in = test::gpt2_inputs(training, config, 4);
  EXPECT_LE(test::difference(reference::evaluate(differentiate(training), in),
                             reference::evaluate(differentiate(found), in)),
            1e-12);
  // Inference after the match is inference before it.
  auto in_eval = in;
  EXPECT_LE(test::difference(reference::evaluate(inference(training), in_eval),
                             reference::evaluate(inference(found), in_eval)),
            1e-12);
}

TEST(MatchAttentionOfGpt2, FindsDecodingWithACache) {
  for (int64_t length : {1, 3}) {
    const auto config = test::tiny_gpt2();
    const Graph g = simplify(config.model()->decode({2, length, config.n_positions}));
    Notes notes;
    const Graph found = match_attention(g, &notes);
    EXPECT_EQ(count_ops(found, "attention"), 2u) << fmt::format("{}", fmt::join(notes, "\n"));
    EXPECT_EQ(notes[0],
              "h.0.attn: attention: scale 0.5, causal from a position; q, k and v apart, heads "
              "joined");
    auto in = test::random_inputs(g, 5, -1, 1, config.vocab_size);
    in["position"].data = {4};
    EXPECT_LE(test::difference(reference::evaluate(g, in), reference::evaluate(found, in)), 1e-12);
  }
}

}  // namespace
}  // namespace brrr
