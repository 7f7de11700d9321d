// Weights that are integers times scales: products read the integers, and tables are gathered
// before they are dequantised, without changing results.

#include "passes/weights/read_integers.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "passes/weights/gather_first.h"
#include "support/tensors.h"

namespace brrr {
namespace {

Target that_runs_integers() {
  Target target;
  target.runs = [](const Graph&, NodeId) { return true; };
  return target;
}

/// The storage of the weight that the only product reads.
Storage storage_of_product(const Graph& g) {
  for (NodeId id = 0; id < g.size(); ++id)
    if (product_form(g.node(id))) return g.type(g.node(id).operands[1]).storage;
  return {};
}

constexpr int64_t kGivenRows = 3, kGivenTerms = 128, kGivenColumns = 160;

/// How a weight is dequantised.
struct GivenForm {
  bool transposed = false;
  DType integers = DType::i8;
  int64_t group = 0;       // 0: a scale for each column
  double zero = 0;         // a constant
  bool has_zeros = false;  // a parameter of bytes
  bool is_masked = false;  // 4 bits: the low half of each byte
  bool is_scalar = false;  // one scale for all
  int64_t cut = 0;         // terms that are cut off
};

Value product_of(Graph& g, Value x, const GivenForm& f) {
  const int axis = f.transposed ? 1 : 0;
  const auto shape = [&](std::initializer_list<int64_t> terms) {
    Shape s;
    if (f.transposed) s.push_back(Dim(kGivenColumns));
    for (const int64_t t : terms) s.push_back(Dim(t));
    if (!f.transposed) s.push_back(Dim(kGivenColumns));
    return s;
  };
  const int64_t k = kGivenTerms + f.cut;
  const Shape whole = f.group > 0 ? shape({k / f.group, f.group}) : shape({k});
  const Shape groups = f.is_scalar ? Shape{} : f.group > 0 ? shape({k / f.group, 1}) : shape({1});
  Value q = g.input("q", Type{f.integers, whole}, Role::parameter);
  if (f.is_masked) q = bit_and(q, scalar(g, 15, f.integers));
  Value w = cast(q, DType::f32);
  if (f.zero != 0) w = w - scalar(g, f.zero);
  if (f.has_zeros) {
    Value z = g.input("z", Type{f.integers, groups}, Role::parameter);
    if (f.is_masked) z = bit_and(z, scalar(g, 15, f.integers));
    w = w - cast(z, DType::f32);
  }
  w = w * g.parameter("s", groups);
  if (f.group > 0) w = reshape(w, shape({k}));
  if (f.cut > 0) w = slice(w, axis, 0, kGivenTerms);
  return matmul(x, w, false, f.transposed);
}

TEST(ReadIntegers, ResultsStay) {
  using enum DType;
  const std::pair<GivenForm, Quantized> forms[] = {
      {{}, {8, 0, 0}},
      {{.transposed = true}, {8, 1, 0}},
      {{.is_scalar = true}, {8, 0, 0}},
      {{.integers = u8, .zero = 128}, {8, 0, 0}},
      {{.integers = u8, .zero = 8, .is_masked = true}, {4, 0, 0}},
      {{.transposed = true, .integers = u8, .group = 32, .zero = 8, .is_masked = true}, {4, 1, 32}},
      {{.integers = u8, .group = 16, .has_zeros = true, .is_masked = true}, {8, 0, 16}},
      {{.transposed = true, .group = 64}, {8, 1, 64}},
      {{.transposed = true, .group = 48, .cut = 16}, {8, 1, 48}},
  };
  for (const auto& [form, wanted] : forms) {
    Graph g;
    g.output("y", product_of(g, g.input("x", {kGivenRows, kGivenTerms}, f32), form));
    const Graph out = read_integers(g, that_runs_integers(), {});
    EXPECT_EQ(storage_of_product(out).quantized, wanted) << print(out);
    const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 100);
    EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 1e-12);
  }
}

TEST(ReadIntegers, RowsIn8BitsStayNear) {
  Graph g;
  g.output("y", product_of(g, g.input("x", {kGivenRows, kGivenTerms}, DType::f32), {}));
  const Graph out = read_integers(g, that_runs_integers(), {.bits = 8, .of_rows = true});
  EXPECT_TRUE(storage_of_product(out).is_quantized());
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 100);
  const double difference =
      test::difference(reference::evaluate(g, in), reference::evaluate(out, in));
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.03);
}

TEST(ReadIntegers, WeightsThatStay) {
  const GivenForm forms[] = {
      {.integers = DType::u8},                 // beyond 127
      {.integers = DType::u8, .zero = 127},    // 255 - 127
      {.integers = DType::u8, .zero = 127.5},  // no integer
      {.has_zeros = true},                     // 8 bits and any zero point
      {.group = 4},                            // no multiple of 8
  };
  for (const GivenForm& form : forms) {
    Graph g;
    g.output("y", product_of(g, g.input("x", {kGivenRows, kGivenTerms}, DType::f32), form));
    EXPECT_EQ(read_integers(g, that_runs_integers(), {}), g);
  }
  Graph g;
  const Value x = g.input("x", {kGivenRows, kGivenTerms}, DType::f32);
  const Value q = g.input("q", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::parameter);
  const Value data = g.input("d", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::data);
  g.output("scales of terms", matmul(x, cast(q, DType::f32) * g.parameter("s", {kGivenTerms, 1})));
  g.output("no parameter", matmul(x, cast(data, DType::f32) * g.parameter("t", {kGivenColumns})));
  EXPECT_EQ(read_integers(g, that_runs_integers(), {}), g);
  EXPECT_EQ(read_integers(g, Target(), {}), g);
}

TEST(ReadIntegers, MatrixUnitsKeepWeightsOf16BitsForAnyNumberOfRows) {
  Target with_units = that_runs_integers();
  with_units.gains_by_panels = [](const Graph&, NodeId) { return true; };
  for (const int64_t rows : {1, 5}) {
    Graph g;
    const Value q = g.input("q", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::parameter);
    const Value w = cast(q, DType::f32) * g.parameter("s", {kGivenColumns});
    g.output("y", matmul(g.input("x", {rows, kGivenTerms}, DType::bf16), cast(w, DType::bf16)));
    EXPECT_TRUE(storage_of_product(read_integers(g, that_runs_integers(), {})).is_quantized());
    EXPECT_FALSE(storage_of_product(read_integers(g, with_units, {})).is_quantized());
    EXPECT_TRUE(storage_of_product(read_integers(g, with_units, {.bits = 8})).is_quantized());
  }
}

TEST(ReadIntegers, RowsOfIntegersAreMultipliedAsIntegers) {
  Target target = that_runs_integers();
  target.reads_panels = [](const Graph&, NodeId) { return true; };
  for (const DType dtype : {DType::u8, DType::i8})
    for (const double zero : {0.0, 3.0, 100.0})
      for (const bool transposed : {false, true}) {
        Graph g;
        const Value x = g.input("x", {2, kGivenRows, kGivenTerms}, dtype);
        const Value scale = g.input("scale", Type{DType::f32, {1}}, Role::parameter);
        Value rows = cast(x, DType::f32);
        if (zero > 0) rows = rows - cast(scalar(g, zero, dtype), DType::f32);
        GivenForm form;
        form.transposed = transposed;
        g.output("y", product_of(g, rows * scale, form));
        const Graph out = read_integers(g, target, {});
        size_t exact = 0;
        for (NodeId id = 0; id < out.size(); ++id)
          if (product_form(out.node(id)) && out.type({id, 0}).dtype == DType::i32) ++exact;
        const bool has_zero = dtype == DType::u8 || zero > 0;  // u8 is shifted by 128
        EXPECT_EQ(exact, has_zero ? 2u : 1u) << print(out);
        const reference::Tensors given = test::random_inputs(g, 3, 0, 20, 3);
        EXPECT_LT(test::difference(reference::evaluate(g, given), reference::evaluate(out, given)),
                  1e-5);
      }
  // Groups of terms have a sum each: rows become floats.
  Graph g;
  const Value x = g.input("x", {kGivenRows, kGivenTerms}, DType::u8);
  const Value scale = g.input("scale", Type{DType::f32, {1}}, Role::parameter);
  GivenForm grouped;
  grouped.group = 32;
  g.output("y", product_of(g, cast(x, DType::f32) * scale, grouped));
  const Graph out = read_integers(g, target, {});
  EXPECT_TRUE(storage_of_product(out).is_quantized());
  Graph plain;
  const Value x8 = plain.input("x", {kGivenRows, kGivenTerms}, DType::u8);
  plain.output("y", product_of(plain, cast(x8, DType::f32) * scalar(plain, 0.5), {}));
  EXPECT_TRUE(storage_of_product(read_integers(plain, that_runs_integers(), {})).is_quantized())
      << "without panels the weight would be packed in each run";
}

TEST(ReadIntegers, LoaderPacksThemOnce) {
  Graph g;
  g.output("y", product_of(g, g.input("x", {kGivenRows, kGivenTerms}, DType::f32), {}));
  const Graph out = run_pipeline(g, cpu::cpu_backend().target(), for_inference(DType::f32));
  EXPECT_TRUE(storage_of_product(out).is_quantized());
  EXPECT_EQ(out.find_input("q"), kNoNode) << "the integers are not kept in rows";
  for (const Node& node : out.nodes()) EXPECT_NE(node.op->name, "store");
}

TEST(DeriveWeights, IntegersOfFactorsBecomeFloatsOnce) {
  // Scales of terms fit no panels.
  Graph g;
  const Value q = g.input("q", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::parameter);
  g.output("y", matmul(g.input("x", {kGivenRows, kGivenTerms}, DType::f32),
                       cast(q, DType::f32) * g.parameter("s", {kGivenTerms, 1})));
  const Graph out = run_pipeline(g, cpu::cpu_backend().target(), for_inference(DType::f32));
  for (const Node& node : out.nodes()) EXPECT_NE(node.op->name, "cast");
  EXPECT_EQ(out.find_input("q"), kNoNode);
}

TEST(WeightPanels, ExactProductsReadPanelsOfI8) {
  Graph g;
  const Value x = g.input("x", Type{DType::i8, {kGivenRows, kGivenTerms}}, Role::data);
  const Value signed_w =
      g.input("w", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::parameter);
  const Value u = g.input("u", Type{DType::u8, {kGivenColumns, kGivenTerms}}, Role::parameter);
  const Value shifted = cast(cast(u, DType::i32) - scalar(g, 128, DType::i32), DType::i8);
  g.output("y", matmul(x, signed_w));
  g.output("z", matmul(x, shifted, false, true));
  g.output("sums", matmul(full(g, {1, kGivenTerms}, 1, DType::i8), signed_w));
  Target target = that_runs_integers();
  target.reads_panels = [](const Graph&, NodeId) { return true; };
  const Graph panels = weight_panels(g, target, Refresher::loader);
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 100);
  EXPECT_EQ(test::difference(reference::evaluate(g, in), reference::evaluate(panels, in)), 0);
  const Graph out = derive_weights(panels, target, Refresher::loader);
  for (NodeId id = 0; id < out.size(); ++id) {
    EXPECT_TRUE(out.is_input(id) || is(out.node(id), Op::matmul)) << print(out);
    if (is(out.node(id), Op::matmul)) {
      EXPECT_FALSE(out.type(out.node(id).operands[1]).storage.is_plain());
    }
  }
}

TEST(GatherFirst, RowsAreGatheredBeforeTheyBecomeFloats) {
  Graph g;
  const Value q = g.input("q", Type{DType::i8, {50, 24}}, Role::parameter);
  const Value z = g.input("z", Type{DType::i8, {24}}, Role::parameter);
  const Value table = (cast(q, DType::f32) - cast(z, DType::f32)) * g.parameter("s", {50, 1}) *
                      g.parameter("t", {1, 24});
  g.output("y", gather(table, g.input("ids", {3, 7}, DType::i64), 0));
  g.output("last", gather(table, g.input("id", {}, DType::i64), 0));
  const Graph out = gather_first(g);
  for (NodeId id = 0; id < out.size(); ++id)
    if (!out.is_input(id)) {
      EXPECT_NE(out.type({id, 0}).shape, (Shape{50, 24}));
    }
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 50);
  EXPECT_EQ(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 0);
}

TEST(LowParameters, ScalesOfIntegersStay) {
  Graph g;
  const Value q = g.input("q", Type{DType::i8, {kGivenTerms, kGivenColumns}}, Role::parameter);
  const Value w = cast(q, DType::f32) * g.parameter("s", {1, kGivenColumns});
  g.output("y", matmul(g.input("x", {2, kGivenTerms}, DType::f32), w) * g.parameter("f", {1, 1}));
  const Graph out = low_parameters(g, DType::bf16);
  EXPECT_EQ(out.type({out.find_input("s"), 0}).dtype, DType::f32);
  EXPECT_EQ(out.type({out.find_input("f"), 0}).dtype, DType::bf16);
}

TEST(GatherFirst, TablesThatStay) {
  Graph g;
  const Value ids = g.input("ids", {3, 7}, DType::i64);
  g.output("parameter", gather(g.parameter("w", {50, 24}), ids, 0));
  const Value q = g.input("q", Type{DType::i8, {50, 24}}, Role::parameter);
  g.output("columns", gather(cast(q, DType::f32), ids, 1));
  g.output("product", gather(matmul(g.parameter("a", {50, 4}), g.parameter("b", {4, 24})), ids, 0));
  const auto dequantized = [&](const char* name, int64_t rows) {
    return cast(g.input(name, Type{DType::i8, {rows, 24}}, Role::parameter), DType::f32) *
           g.parameter(std::string(name) + " scales", {rows, 1});
  };
  g.output("more ids than rows", gather(dequantized("few", 20), ids, 0));
  const Value tied = dequantized("tied", 50);
  g.output("tied", gather(tied, ids, 0));
  g.output("head", matmul(g.input("x", {2, 24}, DType::f32), tied, false, true));
  EXPECT_EQ(gather_first(g), g);
}

TEST(GatherFirst, SharedOperandsAreGatheredOnce) {
  Graph g;
  Value v = cast(g.input("q", Type{DType::i8, {50, 8}}, Role::parameter), DType::f32);
  constexpr int kDoublings = 60;
  for (int i = 0; i < kDoublings; ++i) v = v + tanh(v);
  g.output("y", gather(v, g.input("ids", {3}, DType::i64), 0));
  EXPECT_LE(gather_first(g).size(), 2 * kDoublings + 10);
}

}  // namespace
}  // namespace brrr
