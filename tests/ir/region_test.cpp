// Regions: graphs as attributes, their equality, their hash, their text, and what they may hold.

#include "ir/region.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "ir/text.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "support/damaged_text.h"

namespace brrr {
namespace {

Graph chain(double factor, int64_t width = 3) {
  Graph g;
  Value x = g.input("a0", {width}, f32), y = g.input("a1", {width}, f32);
  g.output("0", tanh(x * factor) + y);
  return g;
}

/// x and y through `fused` with this body.
Graph with_body(Region body) {
  Graph g;
  Value x = g.input("x", {3}, f32), y = g.input("y", {3}, f32);
  Scope scope(g, "h.0");
  g.output("z", call1(Op::fused, {x, y}, {{"body", std::move(body)}}));
  return g;
}

template <typename Error>
std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Region, IsComparedByContent) {
  const Region a(chain(2)), same(chain(2)), other(chain(3)), wider(chain(2, 4));
  EXPECT_EQ(a, same);
  EXPECT_EQ(a.hash(), same.hash());
  for (const Region& r : {other, wider}) {
    EXPECT_FALSE(a == r);
    EXPECT_NE(a.hash(), r.hash());
  }
  Graph moved = chain(2);
  moved.outputs()[0].value = {0, 0};
  EXPECT_NE(a.hash(), Region(moved).hash());
  EXPECT_TRUE(with_body(a) == with_body(same));
  EXPECT_FALSE(with_body(a) == with_body(other));
}

TEST(Region, NumbersAreEqualByTheirBits) {
  // As the text tells them apart: 0 and -0 divide to different infinities.
  const Attrs zero{{"value", 0.0}}, minus{{"value", -0.0}}, nan{{"value", std::nan("")}};
  EXPECT_FALSE(zero == minus);
  EXPECT_NE(hash_of(zero), hash_of(minus));
  EXPECT_TRUE(nan == (Attrs{{"value", std::nan("")}}));
  EXPECT_EQ(hash_of(nan), hash_of(Attrs{{"value", std::nan("")}}));
  EXPECT_FALSE(zero == (Attrs{{"value", int64_t{0}}})) << "another type";
  EXPECT_NE(hash_of(Attrs{{"a", int64_t{1}}}), hash_of(Attrs{{"b", int64_t{1}}}));
  EXPECT_FALSE((Attrs{{"v", std::vector<double>{1, 0.0}}}) ==
               (Attrs{{"v", std::vector<double>{1, -0.0}}}));
  EXPECT_FALSE((Attrs{{"v", std::vector<double>{1}}}) == (Attrs{{"v", std::vector<double>{1, 2}}}));
}

TEST(Region, PrintsAndParsesBack) {
  const Graph g = with_body(Region(chain(2)));
  const std::string text = print(g);
  EXPECT_NE(text.find("%2 : f32[3] = fused(%0, %1) {body={\n"
                      "  %0 : f32[3] = input() {dtype=f32, kind=\"data\", name=\"a0\", "
                      "shape=[3]}\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\n  output \"0\" %5\n}} @h.0\noutput \"z\" %2\n"), std::string::npos)
      << text;
  const Graph back = parse(text, find_op);
  EXPECT_EQ(back, g);
  EXPECT_EQ(print(back), text);
  verify(back);
  // Empty lines and comments are skipped inside, too.
  std::string spaced = text;
  spaced.insert(spaced.find("  output \"0\""), "\n  # the sum\n");
  EXPECT_EQ(parse(spaced, find_op), g);
}

TEST(Region, ErrorsInsideNameTheirLine) {
  const std::string text = print(with_body(Region(chain(2))));
  const auto refused = [&](const std::string& what, const std::string& by) {
    std::string changed = text;
    const size_t at = changed.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    changed.replace(at, what.size(), by);
    return refusal<UserError>([&] { parse(changed, find_op); });
  };
  // %1 of the body is the second operand; the third node of the outer graph is not seen from here.
  EXPECT_EQ(refused("tanh(%3)", "tanh(%7)"),
            "graph text, line 8, column 24: %7 is not defined above in this region, which reads "
            "the outside through operands alone");
  EXPECT_EQ(refused("tanh(", "tanhh(").substr(0, 36), "graph text, line 8, column 22: there");
  EXPECT_NE(refused("name=\"a1\"", "name=\"w\"")
                .find("this is not a region: input 1 must be data named a1, the operand that it "
                      "is; got the data 'w'"),
            std::string::npos);
  EXPECT_NE(refused("kind=\"data\", name=\"a1\"", "kind=\"parameter\", name=\"a1\"")
                .find("got the parameter 'a1': a region reads the outside through operands alone"),
            std::string::npos);
  EXPECT_NE(refused("output \"0\"", "output \"1\"").find("must be named \"0\"; got \"1\""),
            std::string::npos);
  EXPECT_NE(refused("  output \"0\" %5\n", "").find("there is no output"), std::string::npos);
  EXPECT_NE(refused("}} @h.0", "").find("a region is not closed"), std::string::npos);
  EXPECT_NE(refused("{body={", "{body={ %0").find("begin on the next line"), std::string::npos);
  EXPECT_NE(refused("}} @h.0", "} @h.0").find("expected '}'"), std::string::npos);
}

TEST(Region, NestsOnlySoDeep) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "%0 : f32[] = fused() {body={\n";
  EXPECT_NE(refusal<UserError>([&] { parse(text, find_op); }).find("more than 16 deep"),
            std::string::npos);
}

TEST(Region, SurvivesDamage) { test::expect_survives_damage(print(with_body(Region(chain(2))))); }

/// What captures something, or gives something back beside its outputs, is found twice: by the op
/// that is given it and by the verifier of a graph that holds it.
TEST(Region, ReadsTheOutsideThroughOperandsAlone) {
  const auto broken = [](const std::function<void(Graph&)>& damage) {
    Graph body = chain(2);
    damage(body);
    const Region region(body);
    const std::string refused = refusal<UserError>([&] { with_body(region); });
    EXPECT_EQ(refused.rfind("[fused] body: ", 0), 0u) << refused;
    Graph g = with_body(Region(chain(2)));
    g.node(2).attrs.set("body", region);
    const std::string found = refusal<InternalError>([&] { verify(g); });
    EXPECT_NE(found.find("the region 'body' of %2 (fused): " + region.problem()), std::string::npos)
        << found;
    return refused;
  };
  EXPECT_NE(broken([](Graph& g) { g.parameter("w", {3}); }).find("got the parameter 'w'"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) {
              g.input("a2", {3}, f32, InputKind::state);
            }).find("got the state 'a2'"),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.output("more", g.value(NodeId{0})); }).find("named \"1\""),
            std::string::npos);
  EXPECT_NE(broken([](Graph& g) { g.outputs().clear(); }).find("no output"), std::string::npos);
  EXPECT_NE(broken([](Graph& g) {
              g.outputs().push_back({"0", g.outputs()[0].value, 0});
            }).find("it updates '0'"),
            std::string::npos);
}

TEST(Region, IsVerifiedWithItsGraph) {
  Graph body = chain(2);
  body.node(2).results[0].shape = {4};
  Graph g = with_body(Region(chain(2)));
  g.node(2).attrs.set("body", Region(body));
  EXPECT_NE(refusal<InternalError>([&] { verify(g); }).find("not what infer says"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr
