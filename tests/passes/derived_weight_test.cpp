// What a derived weight says of itself, in a graph and in its text.

#include "passes/weights/derived_weight.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr {
namespace {

DerivedWeight in_bf16(const std::string& parameter) {
  Graph form;
  form.output("0", cast(form.input("a0", {64, 96}, DType::f32), DType::bf16));
  return {{parameter}, Region(std::move(form))};
}

DerivedWeight in_panels(const std::string& parameter, Layout layout = Layout::panels) {
  Graph form;
  form.output("0", store(cast(form.input("a0", {64, 96}, DType::f32), DType::bf16), {layout}));
  return {{parameter}, Region(std::move(form))};
}

DerivedWeight joined(std::vector<std::string> parameters) {
  Graph form;
  std::vector<Value> parts;
  for (size_t i = 0; i < parameters.size(); ++i)
    parts.push_back(form.input(fmt::format("a{}", i), {4, 8}, DType::f32));
  form.output("0", concat(parts, 0));
  return {std::move(parameters), Region(std::move(form))};
}

TEST(DerivedWeight, AnInputSaysWhatItIs) {
  Graph g;
  const std::vector<DerivedWeight> all = {in_bf16("h.0.w"), in_panels("h.0.w"),
                                          in_panels("h.0.w", Layout::transposed_panels),
                                          joined({"q", "k", "v"})};
  for (const DerivedWeight& weight : all) {
    const Value input = derived_input(g, weight);
    EXPECT_EQ(input.type(), weight.type());
    EXPECT_EQ(derived_weight(g.node(input.id.node).attrs), weight);
    EXPECT_EQ(derived_input(g, weight).id, input.id) << "there is one";
    g.output(weight.name(), input);
  }
  EXPECT_EQ(g.inputs().size(), all.size());
  const Graph back = parse(print(g), find_op);
  EXPECT_EQ(back, g);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(derived_weight(back.node(back.inputs()[i]).attrs), all[i]);
  const Value plain = g.parameter("h.0.w", {64, 96});
  EXPECT_FALSE(derived_weight(g.node(plain.id.node).attrs));
}

TEST(DerivedWeight, NamesTellFormsApart) {
  EXPECT_EQ(in_bf16("h.0.w").name(), "h.0.w:bf16");
  EXPECT_EQ(in_panels("h.0.w").name(), in_panels("h.0.w").name());
  EXPECT_TRUE(in_panels("h.0.w").name().starts_with("h.0.w:store:"));
  EXPECT_TRUE(joined({"q", "k", "v"}).name().starts_with("q+2:concat:"));
  std::set<std::string> names;
  const std::vector<DerivedWeight> all = {
      in_bf16("v"),       in_bf16("w"),
      in_panels("w"),     in_panels("w", Layout::transposed_panels),
      joined({"q", "k"}), joined({"q", "v"}),
      joined({"k", "q"}), joined({"q", "k", "v"})};
  for (const DerivedWeight& weight : all) names.insert(weight.name());
  EXPECT_EQ(names.size(), all.size());
}

TEST(DerivedWeight, IsMadeOfItsSources) {
  const std::vector<DerivedWeight> all = {in_bf16("w"), in_panels("w"),
                                          in_panels("w", Layout::transposed_panels),
                                          joined({"q", "k", "v"})};
  const Graph refresh = refresh_graph(all);
  size_t casts = 0;
  for (const Node& node : refresh.nodes()) casts += is(node, Op::cast);
  EXPECT_EQ(casts, 1u) << "three read the same";
  EXPECT_EQ(refresh.inputs(InputKind::parameter).size(), 4u);
  const reference::Tensors in = test::random_inputs(refresh, 3, -1, 1, 3);
  const reference::Tensors out = reference::evaluate(refresh, in);
  const std::vector<double>& w = in.at("w").data;
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(out.at("update:" + all[i].name()).data, w);
  std::vector<double> side_by_side;
  for (const char* name : {"q", "k", "v"}) {
    const std::vector<double>& part = in.at(name).data;
    side_by_side.insert(side_by_side.end(), part.begin(), part.end());
  }
  EXPECT_EQ(out.at("update:" + all[3].name()).data, side_by_side);
}

// int8 with a scale for each column, int4 with one for 32 terms: forms like any other, which the
// reference evaluates, and a product reads them.
TEST(DerivedWeight, InIntegers) {
  for (const Quantized& q : {Quantized{8, 0, 0}, Quantized{4, 0, 32}}) {
    Graph form;
    form.output("0", store(form.input("a0", {64, 96}, DType::f32), {Layout::rows, q}));
    const DerivedWeight weight{{"w"}, Region(std::move(form))};
    EXPECT_LT(weight.type().bytes(), 64 * 96 * 4 * q.bits / 32 + 96 * 4 * 2 + 1);
    Graph g;
    const Value x = g.input("x", {3, 64}, DType::f32);
    g.output("y", matmul(x, derived_input(g, weight)));
    EXPECT_EQ(parse(print(g), find_op), g);
    Graph whole;
    const Value w = whole.parameter("w", {64, 96}), rows = whole.input("x", {3, 64}, DType::f32);
    whole.output("exact", matmul(rows, w));
    whole.output("y", matmul(rows, make_weight(whole, weight, {{w}})));
    const reference::Tensors in = test::random_inputs(whole, 3, -1, 1, 3);
    const reference::Tensors out = reference::evaluate(whole, in);
    const double error = test::difference({{"y", out.at("exact")}}, {{"y", out.at("y")}});
    EXPECT_GT(error, 0);
    EXPECT_LT(error, q.bits == 8 ? 0.02 : 0.3);
    // What the engine holds is what the refresh program gives.
    reference::Tensors held{{"x", in.at("x")}};
    reference::Tensors sources{{"w", in.at("w")}};
    const Graph refresh = refresh_graph(std::span(&weight, 1));
    sources[weight.name()] = RefTensor(weight.type());
    held[weight.name()] = reference::evaluate(refresh, sources).at("update:" + weight.name());
    EXPECT_EQ(test::difference(reference::evaluate(g, held), {{"y", out.at("y")}}), 0);
  }
}

TEST(DerivedWeight, BadAttributes) {
  const auto complaint = [](Attrs more) {
    Graph g;
    const Value input = g.input("w:bf16", Type{DType::bf16, {64, 96}}, Role::derived, more);
    try {
      derived_weight(g.node(input.id.node).attrs);
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint({}), "the derived weight 'w:bf16' has no form: the graph that makes it");
  EXPECT_EQ(complaint({{"form", in_bf16("w").form}}),
            "the derived weight 'w:bf16' does not name its source a0");
  Graph no_source;
  no_source.output("0", full(no_source, {64, 96}, 1, DType::bf16));
  EXPECT_EQ(complaint({{"form", Region(no_source)}}),
            "the derived weight 'w:bf16' is made of no parameter");
  Graph no_region;
  no_region.output("0", no_region.parameter("w", {64, 96}, DType::bf16));
  EXPECT_NE(complaint({{"form", Region(no_region)}}).find("a region reads the outside"),
            std::string::npos);
  EXPECT_EQ(complaint({{"form", in_bf16("v").form}, {"a0", std::string("v")}}),
            "the derived weight 'w:bf16' must be named 'v:bf16', after its sources and its form");
  Graph other;
  other.output("0", cast(other.input("a0", {64, 64}, DType::f32), DType::bf16));
  EXPECT_EQ(complaint({{"form", Region(other)}, {"a0", std::string("w")}}),
            "the derived weight 'w:bf16' is bf16[64,96], and its form gives bf16[64,64]");
  other.output("1", other.value(NodeId{0}));
  EXPECT_EQ(complaint({{"form", Region(other)}, {"a0", std::string("w")}}),
            "the form of the derived weight 'w:bf16' has 2 outputs");
}

// What parameters and constants give is computed when a model is loaded, unless it is larger than
// they are; an update makes what a trait names alone.
TEST(DerivedWeight, ALoaderDequantisesWhatRegionsMultiplyBy) {
  // As a file has it whose weights are read in the branches of an If.
  const auto branch_of = [](bool multiplies) {
    Graph g;
    const Value x = g.input("a0", {2, 5}, DType::f32), w = g.input("a1", {6, 5}, DType::f32);
    g.output("0", multiplies ? matmul(x, transpose(w, {1, 0})) : x * slice(w, 0, 0, 1));
    if (multiplies) return Region(std::move(g));
    Graph other;
    const Value y = other.input("a0", {2, 5}, DType::f32);
    const Value table = other.input("a1", {6, 5}, DType::f32);
    other.output("0", concat(std::vector<Value>{y * slice(table, 0, 0, 1), y * 0.5}, 1));
    return Region(std::move(other));
  };
  for (const bool multiplies : {true, false}) {
    Graph g;
    const Value x = g.input("x", {2, 5}, DType::f32), c = g.input("c", {}, DType::boolean);
    const Value q = g.input("q", Type{DType::i8, {6, 5}}, Role::parameter);
    const Value captured[] = {x, cast(q, DType::f32) * g.parameter("s", {6, 1})};
    const Region region = branch_of(multiplies);
    g.output("y", branch(c, region, region, captured)[0]);
    const Graph out = derive_weights(g, Target{}, Refresher::loader);
    size_t dequantising = 0;
    for (NodeId id = 0; id < out.size(); ++id) dequantising += is(out.node(id), Op::mul) ? 1 : 0;
    EXPECT_EQ(dequantising, multiplies ? 0u : 1u) << print(out);
  }
}

TEST(DerivedWeight, ALoaderKeepsWhatParametersGive) {
  Graph g;
  const Value x = g.input("x", {1, 2, 5}, DType::f32), w = g.parameter("w", {6, 2, 3});
  const Value s = g.parameter("s", {6, 1, 1}), b = g.parameter("b", {6});
  const Value half = broadcast_to(scalar(g, 0.5), {6, 1, 1});
  g.output("y", conv(x, w * (sqrt(s + 1e-5) * half), b * 2.0, {{1}, {1}, {1, 1}}, 1));
  g.output("grows", x + broadcast_to(exp(s), {6, 2, 5}));
  g.output("constant", scalar(g, 1) + scalar(g, 2));
  const auto left = [&](Refresher refresher) {
    std::multiset<std::string> ops;
    const Graph out = derive_weights(g, Target{}, refresher);
    for (NodeId id = 0; id < out.size(); ++id)
      if (!out.is_input(id) && !out.node(id).operands.empty()) ops.insert(out.node(id).op->name);
    return ops;
  };
  EXPECT_EQ(left(Refresher::loader),
            (std::multiset<std::string>{"add", "add", "broadcast_to", "conv"}));
  EXPECT_GT(left(Refresher::update).count("mul"), 2u);

  const Graph out = derive_weights(g, Target{}, Refresher::loader);
  const reference::Tensors given = test::random_inputs(g, 3, 0.5, 1.5, 3);
  reference::Tensors in = given;
  for (NodeId id : out.inputs()) {
    const auto weight = derived_weight(out.node(id).attrs);
    if (!weight) continue;
    reference::Tensors sources;
    for (size_t i = 0; i < weight->sources.size(); ++i)
      sources[fmt::format("a{}", i)] = given.at(weight->sources[i]);
    in[out.input_name(id)] = reference::evaluate(weight->form.graph(), sources).at("0");
  }
  EXPECT_LT(test::difference(reference::evaluate(g, given), reference::evaluate(out, in)), 1e-12);
}

}  // namespace
}  // namespace brrr
