// What a graph with branches and loops can get wrong: the message says what, and where it stands.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/target.h"
#include "ir/evaluate.h"
#include "ir/text.h"
#include "ops/control.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "runtime/engine.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

/// (iteration, x, step) -> (whether x is below the limit, x + step): one that ends by itself.
Region counting(double limit) {
  Graph g;
  g.input("a0", {}, i32);
  Value x = g.input("a1", {}, f32), step = g.input("a2", {}, f32);
  g.output("0", less(x + step, scalar(g, limit)));
  g.output("1", x + step);
  return Region(g);
}

/// Counts from 0 in steps of `x`.
Graph counting_graph(LoopEnd end, Role role = Role::data, double limit = 10) {
  Graph g;
  Value x = g.input("x", {}, f32, role);
  Scope scope(g, "h.3.solver");
  const Value carried[] = {scalar(g, 0)}, captured[] = {x};
  const LoopResults out =
      loop(less(scalar(g, 0), scalar(g, 1)), counting(limit), carried, captured, end);
  g.output("loss", out.carried[0]);
  g.output("iterations", out.iterations);
  return g;
}

float run(const Graph& g, float x, const char* output = "loss") {
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(g);
  engine.allocate();
  engine.set_scalar(p, "x", x);
  engine.run(p);
  if (std::string_view(output) == "loss") return engine.output_scalar(p, output);
  return static_cast<float>(*reinterpret_cast<const int32_t*>(engine.output(p, output)));
}

TEST(ControlErrors, ALoopNeedsABound) {
  const std::string text = print(counting_graph({.bound = 20}));
  const auto with = [&](const std::string& bound) {
    std::string changed = text;
    changed.replace(changed.find("bound=20"), std::string_view("bound=20").size(), bound);
    return test::user_error_of([&] { parse(changed, find_op); });
  };
  EXPECT_NE(with("bounds=20")
                .find("[loop] needs the attribute 'bound': a loop runs no more than so "
                      "many iterations (at h.3.solver)"),
            std::string::npos)
      << with("bounds=20");
  EXPECT_NE(with("bound=-1").find("[loop] bound must be in [0, 2^31); got -1"), std::string::npos);
  EXPECT_NE(with("bound=2147483648").find("[loop] bound must be in"), std::string::npos);
}

/// Without the attribute it ends there, as ONNX's Loop does at its trip count.
TEST(ControlErrors, TheBoundIsAnErrorWhereTheLoopSaysSo) {
  const Graph ends = counting_graph({.bound = 4}),
              fails = counting_graph({.bound = 4, .fails_at_bound = true});
  EXPECT_EQ(run(ends, 5), 10);
  EXPECT_EQ(run(ends, 5, "iterations"), 2);
  EXPECT_EQ(run(fails, 5), 10);
  EXPECT_EQ(run(fails, 2.5F), 10) << "at its bound, but by itself";
  EXPECT_EQ(run(ends, 1), 4);
  const std::string message =
      "[loop] its condition still holds after 4 iterations, its bound (at h.3.solver)";
  EXPECT_EQ(test::user_error_of([&] { run(fails, 1); }), message);
  const RefTensor x{{DType::f32, {}}, {1}};
  const RefTensor* in[] = {&x};
  EXPECT_EQ(test::user_error_of([&] { evaluate_graph(fails, in); }), message);
}

TEST(ControlErrors, RegionsCaptureNothing) {
  Graph body = counting(3).graph();
  body.parameter("w", {});
  Graph g;
  Value x = g.input("x", {}, f32);
  Scope scope(g, "h.1");
  const Value carried[] = {x}, captured[] = {x};
  EXPECT_EQ(
      test::user_error_of([&] { loop(less(x, x), Region(body), carried, captured, {.bound = 2}); }),
      "[loop] body: input 3 must be data named a3, the operand that it is; got the parameter "
      "'w': a region reads the outside through operands alone (at h.1)");
}

TEST(ControlErrors, OperandsAndRegionsMustFit) {
  Graph g;
  Value x = g.input("x", {}, f32), wide = g.input("wide", {2}, f32);
  const Value yes = less(x, x);
  const auto refused = [&](Value condition, Value carried, Value captured, const Region& body) {
    return test::user_error_of([&] {
      const Value c[] = {carried}, more[] = {captured};
      loop(condition, body, c, more, {.bound = 2});
    });
  };
  EXPECT_EQ(refused(x, x, x, counting(3)), "[loop] the condition must be bool[]; got f32[]");
  EXPECT_EQ(refused(yes, wide, x, counting(3)),
            "[loop] operand 1 must be f32[] as the region 'body' says; got f32[2]");
  Graph widened = counting(3).graph();
  const Value next = reshape(widened.value(widened.outputs()[1].value), {1});
  widened.outputs()[1].value = next.id;
  EXPECT_EQ(refused(yes, x, x, Region(widened)),
            "[loop] body: carried value 0 must keep its type; got f32[] and then f32[1]");
  Graph uncounted = counting(3).graph();
  std::swap(uncounted.outputs()[0].value, uncounted.outputs()[1].value);
  EXPECT_EQ(refused(yes, x, x, Region(uncounted)),
            "[loop] body: its first output must be the condition of the next iteration, bool[]; "
            "got f32[]");

  const auto region = [](bool widens) {
    Graph r;
    Value a = r.input("a0", {}, f32);
    r.output("0", widens ? reshape(a, {1}) : a);
    return Region(r);
  };
  const Value captured[] = {x}, too_many[] = {x, x};
  EXPECT_EQ(test::user_error_of([&] { branch(yes, region(false), region(true), captured); }),
            "[if] result 0 must have one type in both regions; got f32[] and f32[1]");
  EXPECT_EQ(test::user_error_of([&] { branch(yes, region(false), region(false), too_many); }),
            "[if] takes 2 operands; got 3");
}

TEST(ControlErrors, BranchesHaveNoDerivative) {
  Graph same, body, g;
  same.output("0", same.input("a0", {}, f32));
  body.input("a0", {}, DType::i32);
  const Value a = body.input("a1", {}, f32), inside[] = {a};
  const Value next = branch(less(a, a), Region(same), Region(same), inside)[0];
  body.output("0", less(next, a));
  body.output("1", next);
  const Value w = g.parameter("w", {}), carried[] = {w};
  const Value ended = loop(less(w, w + 1.0), Region(body), carried, {}, {.bound = 2}).carried[0];
  Graph by_loop = g;
  by_loop.output("loss", by_loop.value(ended.id));
  EXPECT_EQ(test::user_error_of([&] { differentiate(by_loop); }),
            "[loop] its gradient passes through if, which has no derivative: control flow is not "
            "differentiated");
  const Value outside[] = {w};
  Scope scope(g, "h.3.solver");
  g.output("loss", branch(less(w, w), Region(same), Region(same), outside)[0]);
  EXPECT_EQ(test::user_error_of([&] { differentiate(g); }),
            "[differentiate] 'loss' depends on a parameter through if (at h.3.solver), which has "
            "no derivative: control flow is not differentiated");
}

TEST(ControlErrors, AGpuRefusesThemByName) {
  const Graph g = counting_graph({.bound = 4});
  EXPECT_EQ(test::user_error_of(
                [&] { Program(g, cuda::described_backend(*cuda::gpu_description("cuda:sm_90"))); }),
            "cuda:sm_90 has no kernel for loop (at h.3.solver)");
}

}  // namespace
}  // namespace brrr
