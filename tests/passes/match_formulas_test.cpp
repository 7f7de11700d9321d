// Norms and activations that are written out are found in every spelling, and the graph still means
// the same; what only looks like one is left.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kFormulaRows = 3, kFormulaColumns = 8;

struct FormulaParts {
  Graph g;
  Value x = g.parameter("x", {2, kFormulaRows, kFormulaColumns});
  Value w = g.parameter("w", {kFormulaColumns}), b = g.parameter("b", {kFormulaColumns});
  Value number(double value) { return scalar(g, value); }

  Value mean_of(Value v) { return sum(v, {2}, true) * (1.0 / kFormulaColumns); }
  Value centred() { return x - mean_of(x); }
  Value moment(Value v) { return mean_of(v * v) + 1e-5; }
  Value e(double scale) { return erf(x * scale); }
  Value cubic() { return 0.7978845608 * (x + 0.044715 * pow(x, number(3))); }
};

struct FormulaSpelling {
  const char* name;
  const char* op;  // the only node that is left of the formula; empty: it stays as it is
  std::function<Value(FormulaParts&)> build;
};

const double kHalfRoot = std::sqrt(0.5);

const FormulaSpelling kFormulas[] = {
    {"layer norm as PyTorch writes it", "layer_norm",
     [](FormulaParts& p) { return p.centred() / sqrt(p.moment(p.centred())) * p.w + p.b; }},
    {"layer norm with the square as a power", "layer_norm",
     [](FormulaParts& p) {
       Value variance = p.mean_of(pow(p.centred(), p.number(2)));
       return p.b + p.w * (p.centred() / pow(variance + 1e-5, p.number(0.5)));
     }},
    {"layer norm with a factor for each row", "layer_norm",
     [](FormulaParts& p) { return p.centred() * (rsqrt(p.moment(p.centred())) * p.w) + p.b; }},
    {"layer norm by a reciprocal", "layer_norm",
     [](FormulaParts& p) { return reciprocal(sqrt(p.moment(p.centred()))) * p.centred(); }},
    {"layer norm with axes that went and came", "layer_norm",
     [](FormulaParts& p) {
       Value mean = reshape(sum(p.x, {2}) / double{kFormulaColumns}, {2, kFormulaRows, 1});
       Value d = p.x - mean;
       return d /
              sqrt(reshape(sum(d * d, {2}), {2, kFormulaRows, 1}) / double{kFormulaColumns} +
                   1e-5) *
              reshape(p.w, {1, 1, kFormulaColumns});
     }},
    {"RMS norm", "rms_norm", [](FormulaParts& p) { return p.w * (p.x * rsqrt(p.moment(p.x))); }},
    {"RMS norm with a power", "rms_norm",
     [](FormulaParts& p) { return p.x * pow(p.moment(p.x), p.number(-0.5)) * p.w; }},
    {"RMS norm with one over the root", "rms_norm",
     [](FormulaParts& p) { return p.x * (1.0 / sqrt(p.moment(p.x))); }},
    {"RMS norm times a number", "rms_norm",
     [](FormulaParts& p) { return p.x / sqrt(p.moment(p.x)) * 3.0 * p.w; }},
    {"GELU as PyTorch writes it", "gelu",
     [](FormulaParts& p) { return p.x * (1.0 + erf(p.x / std::sqrt(2.0))) * 0.5; }},
    {"GELU with the half first", "gelu",
     [](FormulaParts& p) { return 0.5 * p.x * (p.e(kHalfRoot) + 1.0); }},
    {"GELU with the half on both terms", "gelu",
     [](FormulaParts& p) { return p.x * (0.5 + p.e(kHalfRoot) * 0.5); }},
    {"GELU halved", "gelu", [](FormulaParts& p) { return p.x / 2.0 * (1.0 + p.e(kHalfRoot)); }},
    {"GELU by tanh", "gelu", [](FormulaParts& p) { return 0.5 * p.x * (1.0 + tanh(p.cubic())); }},
    {"GELU by tanh with a product of three", "gelu",
     [](FormulaParts& p) {
       Value inner = p.x + p.x * p.x * p.x * 0.044715;
       return p.x * (tanh(inner * 0.7978845608028654) + 1.0) * 0.5;
     }},
    {"GELU by tanh with x taken out", "gelu",
     [](FormulaParts& p) {
       Value inner = 0.7978845608028654 * p.x * (1.0 + 0.044715 * p.x * p.x);
       return p.x * 0.5 * (1.0 + tanh(inner));
     }},
    {"SiLU", "silu", [](FormulaParts& p) { return p.x * sigmoid(p.x); }},
    {"SiLU by a division", "silu", [](FormulaParts& p) { return p.x / (1.0 + exp(-p.x)); }},
    {"SiLU by a negative factor", "silu",
     [](FormulaParts& p) { return reciprocal(exp(p.x * -1.0) + 1.0) * p.x; }},
    {"sigmoid", "sigmoid", [](FormulaParts& p) { return 1.0 / (1.0 + exp(-p.x)); }},

    {"a deviation of something else", "",
     [](FormulaParts& p) { return p.x / sqrt(p.moment(p.centred())); }},
    {"a mean of another size", "",
     [](FormulaParts& p) { return p.x * rsqrt(sum(p.x * p.x, {2}, true) * 0.25 + 1e-5); }},
    {"a mean over another axis", "",
     [](FormulaParts& p) {
       return p.x * rsqrt(sum(p.x * p.x, {1}, true) * (1.0 / kFormulaColumns) + 1e-5);
     }},
    {"a negative summand", "",
     [](FormulaParts& p) { return p.x * rsqrt(p.mean_of(p.x * p.x) + -1e-5); }},
    {"two moments", "", [](FormulaParts& p) { return p.x * p.x * rsqrt(p.moment(p.x)); }},
    {"GELU of another width", "", [](FormulaParts& p) { return 0.5 * p.x * (1.0 + p.e(0.7)); }},
    {"GELU of two values", "", [](FormulaParts& p) { return 0.5 * p.w * (1.0 + p.e(kHalfRoot)); }},
    {"GELU without the half", "", [](FormulaParts& p) { return p.x * (1.0 + p.e(kHalfRoot)); }},
    {"tanh of another cube", "",
     [](FormulaParts& p) {
       return 0.5 * p.x * (1.0 + tanh(0.7978845608 * (p.x + 0.05 * p.x * p.x * p.x)));
     }},
    {"a quick GELU", "", [](FormulaParts& p) { return p.x * sigmoid(1.702 * p.x); }},
    {"a rising exponential", "", [](FormulaParts& p) { return p.x / (1.0 + exp(p.x)); }},
};

std::map<std::string, int> computing_ops(const Graph& g) {
  std::map<std::string, int> counts;
  for (NodeId id = 0; id < g.size(); ++id)
    if (const std::string& name = g.node(id).op->name;
        !g.is_input(id) && name != "full" && name != "reshape")
      ++counts[name];
  return counts;
}

class MatchFormulas : public testing::TestWithParam<FormulaSpelling> {};
INSTANTIATE_TEST_SUITE_P(Spellings, MatchFormulas, testing::ValuesIn(kFormulas),
                         [](const auto& row) {
                           std::string name = row.param.name;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST_P(MatchFormulas, AreFoundAndMeanTheSame) {
  FormulaParts parts;
  const Value y = GetParam().build(parts);
  parts.g.output("y", y);
  parts.g.output("loss", sum(y * y * y, {0, 1, 2}));
  const Graph before = simplify(parts.g);
  Notes notes;
  const Graph after = match_formulas(before, &notes);
  verify(after);
  const std::string op = GetParam().op;
  EXPECT_EQ(notes.size(), op.empty() ? 0u : 1u) << fmt::format("{}", fmt::join(notes, "\n"));
  if (op.empty()) {
    EXPECT_TRUE(after == before) << print(after);
    return;
  }
  auto counts = computing_ops(after);
  EXPECT_EQ(counts[op], 1) << print(after);
  for (const char* left : {"div", "sqrt", "rsqrt", "pow", "erf", "tanh", "exp", "add", "sub"})
    EXPECT_EQ(counts[left], 0) << print(after);
  const auto in = test::random_inputs(before, 1, -2, 2, 3);
  const Graph a = differentiate(before), b = differentiate(after);
  // Constants of formulas have fewer digits than those of ops.
  EXPECT_LE(test::difference(reference::evaluate(a, in), reference::evaluate(b, in)), 1e-6);
  EXPECT_TRUE(match_formulas(after) == after) << "a second time changes something";
}

// A normalised row that something else reads, too, is not computed a second time.
TEST(MatchFormulasBeside, WhatIsReadElsewhereStays) {
  FormulaParts p;
  const Value h = p.centred() / sqrt(p.moment(p.centred()));
  p.g.output("h", h);
  p.g.output("y", h * p.w + p.b);
  const Graph after = match_formulas(simplify(p.g));
  auto counts = computing_ops(after);
  EXPECT_EQ(counts["layer_norm"], 1) << print(after);
  EXPECT_EQ(counts["mul"], 1);
  EXPECT_EQ(counts["add"], 1);
}

// Biases and weights of every rank: what a broadcast makes wider is no norm's result, and the type
// of every value stays.
TEST(MatchFormulasBeside, BiasesAndWeightsOfEveryRank) {
  const Shape rows{2, 4};
  int found = 0;
  for (const Shape& w : {Shape{4}, Shape{1, 4}, Shape{1, 1, 4}, Shape{2, 4}, Shape{2, 1}, Shape{}})
    for (const Shape& b :
         {Shape{4}, Shape{1, 4}, Shape{1, 1, 4}, Shape{3, 1, 4}, Shape{2, 1}, Shape{1}})
      for (const bool bias_first : {false, true}) {
        SCOPED_TRACE(fmt::format("weight {}, bias {}, {}", w.str(), b.str(), bias_first));
        Graph g;
        const Value x = g.parameter("x", rows), weight = g.parameter("w", w),
                    bias = g.parameter("b", b);
        const auto mean = [](Value v) { return sum(v, {1}, true) * 0.25; };
        const Value d = x - mean(x), scaled = d / sqrt(mean(d * d) + 1e-5) * weight;
        const Value y = bias_first ? bias + scaled : scaled + bias;
        g.output("y", y);
        const Graph before = simplify(g), after = match_formulas(before);
        verify(after);
        EXPECT_EQ(after.type(after.outputs()[0].value), y.type());
        found += computing_ops(after)["layer_norm"];
        const auto in = test::random_inputs(before, 1, -2, 2, 3);
        EXPECT_LE(test::difference(reference::evaluate(before, in), reference::evaluate(after, in)),
                  1e-6);
      }
  EXPECT_GT(found, 20);
}

TEST(MatchFormulasBeside, AGateOfAnActivation) {
  FormulaParts p;
  p.g.output("y", p.x * sigmoid(p.x) * (0.5 * p.x * (1.0 + p.e(kHalfRoot))));
  auto counts = computing_ops(match_formulas(simplify(p.g)));
  EXPECT_EQ(counts["silu"], 1);
  EXPECT_EQ(counts["gelu"], 1);
  EXPECT_EQ(counts["mul"], 1);
}

}  // namespace
}  // namespace brrr
