// The graph: building, text, verification, rewriting.

#include "ir/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

#include "ir/rewriter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "support/damaged_text.h"

namespace brrr {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Attrs, AreSortedComparedAndPrinted) {
  Attrs a{{"z", int64_t{3}}, {"a", true}, {"m", 1e-5}};
  a.set("z", int64_t{4});
  EXPECT_EQ(a.str(), "{a=true, m=1e-05, z=4}");
  EXPECT_EQ(a, (Attrs{{"m", 1e-5}, {"z", int64_t{4}}, {"a", true}}));
  EXPECT_EQ(a.get<int64_t>("z"), 4);
  EXPECT_EQ(a.get_or<int64_t>("absent", 9), 9);
  EXPECT_EQ(a.get_or<double>("z", 0.5), 0.5) << "of another type";
  EXPECT_THROW(a.get<double>("z"), InternalError);
  EXPECT_THROW(a.get<double>("absent"), InternalError);
  EXPECT_EQ(Attrs{}.str(), "");
}

TEST(Attrs, DoublesParseBackToTheSameBits) {
  for (double x : {0.0, -0.0, 1.0, 0.1, 1e-5, 1e300, -2.5e-310, 5e-324, 3.0, 1e17, 123456789.0,
                   std::numeric_limits<double>::max(), double(INFINITY), -double(INFINITY)}) {
    const std::string text = double_text(x);
    const double back = std::strtod(text.c_str(), nullptr);
    EXPECT_EQ(std::memcmp(&back, &x, sizeof x), 0) << text;
    EXPECT_NE(text.find_first_of(".einf"), std::string::npos) << text << " would be an integer";
  }
  EXPECT_EQ(double_text(NAN), "nan");
}

Graph sample_graph() {
  Graph g;
  Value x = g.input("x", {Dim::symbol("batch"), 4}, f32);
  Value w = g.parameter("w \"quoted\" \\ name\nline", {4});
  Value s = g.input("s", {4}, f32, InputKind::state);
  Value key = g.input("key", {2}, i32);
  LayerNorm n = [&] {
    Scope outer(g, "h.0");
    Scope inner(g, "ln_1");
    return layer_norm(x, w, s, 1e-5);
  }();
  g.output("rstd", n.rstd);
  g.output("an \"output\"\n\\", n.y);
  g.output("full", full(g, {2}, -INFINITY));
  g.output("nan", full(g, {}, NAN));
  g.output("bits", random_bits(key, {}, 3));
  g.update(s, s + w);
  return g;
}

TEST(Text, PrintParsePrintIsTheIdentity) {
  const Graph g = sample_graph();
  const std::string text = print(g);
  const Graph back = parse(text, find_op);
  EXPECT_EQ(print(back), text);
  verify(back);
  EXPECT_EQ(back.outputs(), g.outputs());
  EXPECT_EQ(back.size(), g.size());
}

TEST(Text, LooksAsTheHeaderSays) {
  EXPECT_NE(print(sample_graph())
                .find("%4 : (f32[batch,4], f32[batch], f32[batch]) = layer_norm(%0, %p1, %2) "
                      "{eps=1e-05} @h.0.ln_1\n"),
            std::string::npos)
      << print(sample_graph());
  EXPECT_NE(print(sample_graph()).find("output \"rstd\" %4.2\n"), std::string::npos);
}

TEST(Text, RolesAndGradientsComeBack) {
  Graph g;
  const Role roles[] = {Role::data,         Role::parameter,  Role::state, Role::moment,
                        Role::gradient_sum, Role::loss_scale, Role::cache, Role::derived};
  for (const Role role : roles) {
    EXPECT_EQ(role_from_name(name_of(role)), role);
    g.input(fmt::format("{} of w", name_of(role)), Type{f32, {4}}, role,
            {{"of", std::string("w")}});
  }
  EXPECT_FALSE(role_from_name("datum"));
  const Value w = g.value(g.find_input("parameter of w"));
  g.gradient(w, w * 2.0);
  EXPECT_THROW(g.gradient(g.value(NodeId{0}), w), InternalError) << "data has no gradient";
  const std::string text = print(g);
  EXPECT_NE(text.find("kind=\"gradient_sum\""), std::string::npos);
  EXPECT_NE(text.find(fmt::format("gradient %p{} <- %", w.id.node)), std::string::npos);
  const Graph back = parse(text, find_op);
  EXPECT_EQ(back, g);
  verify(back);
  for (NodeId id = 0; id < std::size(roles); ++id) EXPECT_EQ(back.role(id), roles[id]);
  EXPECT_EQ(back.find_output("grad:parameter of w")->gradient_of, w.id.node);
  // Passes keep the link, and with it the parameter.
  const Graph less = drop_dead(back, true);
  ASSERT_EQ(less.inputs().size(), 1u);
  EXPECT_EQ(less.outputs()[0].gradient_of, less.inputs()[0]);
}

TEST(Roles, SayHowLongAnInputLives) {
  EXPECT_EQ(kind_of(Role::data), InputKind::data);
  EXPECT_EQ(kind_of(Role::parameter), InputKind::parameter);
  EXPECT_EQ(kind_of(Role::cache), InputKind::state);
  for (const Role role : {Role::moment, Role::loss_scale, Role::state})
    EXPECT_TRUE(is_kept_between_steps(role)) << name_of(role);
  for (const Role role :
       {Role::data, Role::parameter, Role::gradient_sum, Role::cache, Role::derived})
    EXPECT_FALSE(is_kept_between_steps(role)) << name_of(role);
}

TEST(Text, SkipsCommentsAndEmptyLines) {
  const Graph g = parse(
      "# a graph\n\n  \t\n%0 : f32[2]=full( ){dtype=f32,shape=[2],value=1.0}\r\noutput \"y\" %0",
      find_op);
  EXPECT_EQ(g.size(), 1u);
  EXPECT_NE(g.find_output("y"), nullptr);
}

TEST(Text, ErrorsNameTheLine) {
  const std::string x = "%0 : f32[2] = input() {dtype=f32, kind=\"data\", name=\"x\", shape=[2]}\n";
  const std::string s =
      "%0 : f32[2] = input() {dtype=f32, kind=\"state\", name=\"s\", shape=[2]}\n";
  struct Bad {
    std::string text, part;
    int line;
  };
  const Bad bad[] = {
      {"nonsense", "expected '%'", 1},
      {x + "%2 : f32[2] = neg(%0)", "nodes are numbered in order", 2},
      {x + "%1 : f32[2] = negate(%0)", "there is no op 'negate'", 2},
      {x + "%1 : f32[2] = neg(%1)", "%1 is not defined above", 2},
      {x + "%1 : f32[2] = neg(%-1)", "not defined", 2},
      {x + "%1 : f32[2] = neg(%0.1)", "%0 has 1 results", 2},
      {x + "%1 : f32[2] = neg(%0.99999999999)", "out of range", 2},
      {x + "%1 : f32[3] = neg(%0)", "the types do not agree with what neg infers: f32[2]", 2},
      {x + "%1 : f33[2] = neg(%0)", "'f33' is not a dtype", 2},
      {x + "%1 : f32[2] = neg(%0, %0)", "[neg] takes 1 operand; got 2", 2},
      {x + "%1 : f32[2] = neg(%0) extra", "expected the end of the line", 2},
      {x + "%1 : f32[2] = neg(%0", "expected ')'", 2},
      {x + "%1 : f32[TOO] = neg(%0)", "symbolic dimension", 2},
      {x + "%1 : f32[99999999999999999999] = neg(%0)", "expected an integer", 2},
      {x + "%1 : f32[] = sum(%0) {axes=(0), keep=maybe}", "'maybe' is not an attribute value", 2},
      {x + "%1 : f32[] = sum(%0) {axes=(0), keep=}", "is not an attribute value", 2},
      {x + "%1 : f32[] = sum(%0) {axes=(0}", "expected ')'", 2},
      {x + "%1 : f32[] = sum(%0) {axes=(0)}", "[sum] needs the attribute 'keep'", 2},
      {x + "\n# comment\n%1 : f32[2] = input() {dtype=f32, kind=\"data\", name=\"x\", shape=[2]}",
       "the input name 'x' is taken", 4},
      {x + "%1 : f32[2] = input() {dtype=f32, kind=\"datum\", name=\"z\", shape=[2]}", "kind is",
       2},
      {x + "%1 : f32[2] = input() {dtype=f32, kind=\"data\", name=\"z", "a string is not closed",
       2},
      {x + "output \"y\" %0\noutput \"y\" %0", "the output name 'y' is taken", 3},
      {x + "output y %0", "expected '\"'", 2},
      {x + "update %0 <- %0", "only parameters and state are updated", 2},
      {x + "gradient %0 <- %0", "only parameters have gradients", 2},
      {s + "%1 : f32[2,1] = reshape(%0) {shape=[2,1]}\nupdate %0 <- %1",
       "the update has another type", 3},
      {s + "update %0 <- %0\nupdate %0 <- %0", "'s' is updated twice", 3},
      {x + "%1 : f32[4611686018427387904,4] = broadcast_to(%0) {shape=[4611686018427387904,4]}",
       "broadcast", 2},
      {x + "%1 : f32[4] = reshape(%0) {shape=[4611686018427387904,4]}", "too many elements", 2},
  };
  for (const Bad& b : bad) {
    const std::string got = message_of([&] { parse(b.text, find_op); });
    EXPECT_EQ(got.rfind(fmt::format("graph text, line {}, column ", b.line), 0), 0u)
        << b.text << "\n"
        << got;
    EXPECT_NE(got.find(b.part), std::string::npos) << b.text << "\n" << got;
    EXPECT_EQ(got.find("graph text", 1), std::string::npos) << "twice: " << got;
    EXPECT_THROW(parse(b.text, find_op), UserError);
  }
}

// Cut and damaged text: an error or a graph, never a crash.
TEST(Text, SurvivesDamage) { test::expect_survives_damage(print(sample_graph())); }

TEST(Graph, RefusesWhatItsCallersGotWrong) {
  Graph g, other;
  Value x = g.input("x", {2}, f32), foreign = other.input("x", {2}, f32);
  EXPECT_THROW(g.input("x", {3}, f32), UserError);
  EXPECT_THROW(g.output("y", foreign), InternalError);
  EXPECT_THROW(x + foreign, InternalError);
  EXPECT_THROW(g.update(x, x), InternalError);
  Value s = g.input("s", {2}, f32, InputKind::state);
  EXPECT_THROW(g.update(s, reshape(x, {2, 1})), InternalError);
  EXPECT_THROW(g.set_scope("two words"), InternalError);
  g.output("y", x);
  EXPECT_THROW(g.output("y", x), UserError);
  Scope outer(g, "h.3");
  Scope inner(g, "attn");
  EXPECT_EQ(message_of([&] { neg(cast(x, i32)); }),
            "[neg] x must be floating point; got i32[2] (at h.3.attn)");
}

TEST(Verify, FindsEveryBrokenPromise) {
  const auto broken = [](const std::function<void(Graph&)>& damage) {
    Graph g;
    Value x = g.input("x", {2}, f32), s = g.input("s", {2}, f32, InputKind::state);
    Value y = neg(x);
    Value z = exp(y);
    g.output("z", z);
    g.update(s, y);
    verify(g);
    damage(g);
    EXPECT_THROW(verify(g), InternalError);
    return message_of([&] { verify(g); });
  };
  EXPECT_NE(broken([](Graph& g) {
              g.node(2).operands[0] = {3, 0};
            }).find("comes later"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) {
              g.node(2).operands[0] = {0, 4};
            }).find("port"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.node(2).results[0].shape = {3}; }).find("not what infer says"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.node(2).op = nullptr; }).find("no op"), std::string::npos);
  EXPECT_NE(
      broken([](Graph& g) { g.node(1).attrs.set("name", std::string("x")); }).find("two inputs"),
      std::string::npos);
  EXPECT_NE(broken([](Graph& g) {
              g.outputs()[0].value = {9, 0};
            }).find("does not exist"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.outputs()[1].updates = 0; }).find("not a state"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.outputs()[0].gradient_of = 0; }).find("not a parameter"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.outputs().push_back(g.outputs()[1]); }).find("twice"),
            std::string::npos);
}

TEST(Graph, IsAValue) {
  const Graph a = sample_graph();
  Graph b = a;
  EXPECT_EQ(print(a), print(b));
  b.node(6).attrs.set("value", 3.0);
  EXPECT_FALSE(a == b);
}

TEST(Graph, CountsUses) {
  Graph g;
  Value x = g.input("x", {2}, f32);
  Value y = x * x;
  g.output("y", y);
  g.output("again", y);
  EXPECT_EQ(count_uses(g), (std::vector<std::vector<uint32_t>>{{2}, {2}}));
}

TEST(Specialize, BindsSymbolsEverywhere) {
  Graph g;
  Value x = g.input("x", {Dim::symbol("batch"), Dim::symbol("length"), 4}, f32);
  Value flat = reshape(x, {Dim::symbol("length"), Dim::symbol("batch"), 2, 2});
  g.output("y", broadcast_to(sum(flat, {0}, true), {3, Dim::symbol("batch"), 2, 2}));
  const Graph part = specialize(g, {{"batch", 5}}, false);
  EXPECT_EQ(part.type(part.outputs()[0].value).shape, (Shape{3, 5, 2, 2}));
  EXPECT_EQ(part.type({0, 0}).shape.str(), "[5,length,4]");
  const Graph full = specialize(g, {{"batch", 5}, {"length", 7}});
  verify(full);
  EXPECT_EQ(full.type({1, 0}).shape, (Shape{7, 5, 2, 2}));
  EXPECT_THROW(specialize(g, {{"batch", 5}}), UserError);
}

TEST(DropDead, KeepsOutputsUpdatesAndInputs) {
  Graph g;
  Value x = g.input("x", {2}, f32), unused = g.input("unused", {2}, f32);
  Value s = g.input("s", {2}, f32, InputKind::state);
  exp(unused);
  g.update(s, neg(x));
  g.output("y", tanh(x));
  const Graph kept = drop_dead(g), bare = drop_dead(g, true);
  EXPECT_EQ(kept.size(), 5u);
  EXPECT_EQ(bare.size(), 4u);
  EXPECT_EQ(bare.find_input("unused"), kNoNode);
  EXPECT_NE(bare.find_input("s"), kNoNode);
  verify(bare);
}

TEST(Rewriter, ReplacesNodesAndKeepsScopes) {
  Graph g;
  Value x = g.input("x", {2}, f32);
  {
    Scope scope(g, "block");
    g.output("y", exp(neg(x)));
  }
  const Graph out = rewrite(g, [](Rewriter& r, NodeId id) {
    if (!is(r.in().node(id), Op::neg)) return false;
    r.bind({id, 0}, r.operands(id)[0] * -1.0);
    return true;
  });
  verify(out);
  EXPECT_EQ(print(out),
            "%0 : f32[2] = input() {dtype=f32, kind=\"data\", name=\"x\", shape=[2]}\n"
            "%1 : f32[] = full() {dtype=f32, shape=[], value=-1.0} @block\n"
            "%2 : f32[2] = mul(%0, %1) @block\n"
            "%3 : f32[2] = exp(%2) @block\n"
            "output \"y\" %3\n");
  Rewriter early(g);
  EXPECT_THROW(early.copy(1), InternalError) << "an operand was not rewritten yet";
}

TEST(Dot, EscapesAndDrawsEveryEdge) {
  const std::string dot = to_dot(sample_graph());
  EXPECT_EQ(dot.rfind("digraph brrr {", 0), 0u);
  EXPECT_NE(dot.find("subgraph cluster_0 { label=\"h.0.ln_1\""), std::string::npos);
  EXPECT_NE(dot.find("n0 -> n4;"), std::string::npos);
  EXPECT_NE(dot.find("w \\\"quoted\\\" \\\\ name\\nline"), std::string::npos) << dot;
  EXPECT_EQ(std::count(dot.begin(), dot.end(), '{'), std::count(dot.begin(), dot.end(), '}'));
}

}  // namespace
}  // namespace brrr
