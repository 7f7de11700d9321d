// Weights in panels: which products read them, who writes them, and that results stay.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "base/panels.h"
#include "ops/ops.h"
#include "ops/update.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/derived_weights.h"
#include "support/gpt2.h"
#include "support/graph_run.h"
#include "support/tensors.h"

namespace brrr {
namespace {

Target packing() {
  Target t;
  // Terms in whole panels, as the CPU has them.
  t.gains_by_panels = [](const Graph& g, NodeId id) {
    return g.type(g.node(id).operands[0]).shape.size(-1) % kPanelTerms == 0;
  };
  return t;
}

size_t count(const Graph& g, std::string_view op) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == op;
  return n;
}

/// Products that read panels.
std::vector<const Node*> readers(const Graph& g) {
  std::vector<const Node*> list;
  for (NodeId id = 0; id < g.size(); ++id) {
    const OpClass c = g.node(id).op->op_class;
    if (c == OpClass::contraction && test::touches_storage(g, id)) list.push_back(&g.node(id));
  }
  return list;
}

reference::Tensors values_of(const Graph& g) { return test::random_inputs(g, 3, -1, 1, 3); }

struct Weight {
  Shape shape;
  bool transpose_b;
  bool packed;
};

TEST(WeightPanels, AnyWeightOfWholeTilesOfTerms) {
  for (const Weight& w : {Weight{{64, 96}, false, true},
                          {{64, 97}, false, true},
                          {{65, 96}, false, false},
                          {{97, 64}, true, true},
                          {{96, 65}, true, false}}) {
    SCOPED_TRACE(fmt::format("{} {}", w.shape.str(), w.transpose_b));
    Graph g;
    const Value weight = cast(g.parameter("w", w.shape), DType::bf16);
    const Value x = g.input("x", {3, w.shape.size(w.transpose_b ? 1 : 0)}, DType::bf16);
    g.output("y", matmul(x, weight, false, w.transpose_b, DType::f32));
    Notes notes;
    const Graph packed = weight_panels(g, packing(), Refresher::update, &notes);
    EXPECT_EQ(readers(packed).size(), w.packed);
    EXPECT_EQ(notes.size(), w.packed);
    EXPECT_EQ(test::difference(reference::evaluate(g, values_of(g)),
                               reference::evaluate(packed, values_of(g))),
              0);
  }
}

TEST(WeightPanels, TheLossHead) {
  struct Head {
    bool transposed;
    int64_t classes;
  };
  for (const Head& h : {Head{true, 45}, {false, 45}, {true, 64}, {false, 32}})
    for (const char* op :
         {"linear_cross_entropy", "linear_cross_entropy_grad", "linear_cross_entropy_step"}) {
      SCOPED_TRACE(fmt::format("{} of {} classes, {}", op, h.classes, h.transposed));
      const bool grad = std::string_view(op).ends_with("_grad");
      Graph g;
      const Value w = g.parameter("w", h.transposed ? Shape{h.classes, 64} : Shape{64, h.classes});
      std::vector<Value> in{g.input("x", {2, 3, 64}, DType::bf16), cast(w, DType::bf16),
                            g.input("targets", {2, 3}, DType::i32)};
      Attrs attrs{{"ignore_index", int64_t{-1}}, {"transpose_w", h.transposed}};
      if (grad) {
        in.push_back(g.input("lse", {2, 3}, DType::f32));
        attrs.set("dlse", true);
      }
      if (std::string_view(op) != "linear_cross_entropy") {
        in.push_back(g.input("dlosses", {2, 3}, DType::f32));
        attrs.set("dw_dtype", DType::f32);
      }
      if (grad) in.push_back(g.input("dlse", {2, 3}, DType::f32));
      const std::vector<Value> results = call(brrr::op(op), in, attrs);
      for (size_t i = 0; i < results.size(); ++i) g.output(fmt::format("y{}", i), results[i]);
      const Graph packed = weight_panels(g, packing(), Refresher::update);
      EXPECT_EQ(readers(packed).size(), 1u);
      EXPECT_EQ(count(packed, "store"), std::string_view(op) == "linear_cross_entropy" ? 1u : 2u);
      for (size_t i = 0; i < results.size(); ++i)
        EXPECT_EQ(packed.type(packed.outputs()[i].value), g.type(g.outputs()[i].value));
      EXPECT_EQ(test::difference(reference::evaluate(g, values_of(g)),
                                 reference::evaluate(packed, values_of(g))),
                0);
    }
}

TEST(WeightPanels, NothingElse) {
  Graph g;
  const Value parameter = g.parameter("w", {64, 64});
  const Value w = cast(parameter, DType::bf16), x = g.input("x", {64, 64}, DType::bf16);
  g.output("left", matmul(w, x));
  g.output("turned", matmul(x, w, true, false));
  g.output("rows", embedding(w, g.input("ids", {3}, DType::i32)));
  g.output("wide", matmul(cast(x, DType::f32), parameter));
  g.output("input", matmul(x, g.input("v", {64, 64}, DType::bf16)));
  g.output("computed", matmul(x, cast(parameter * parameter, DType::bf16)));
  EXPECT_TRUE(readers(weight_panels(g, packing(), Refresher::update)).empty());
  // The target decides.
  g.output("right", matmul(x, w));
  EXPECT_TRUE(readers(weight_panels(g, {}, Refresher::update)).empty());
  EXPECT_EQ(readers(weight_panels(g, packing(), Refresher::update)).size(), 1u);
}

models::Gpt2Config config() {
  models::Gpt2Config c = test::tiny_gpt2();
  c.n_embd = 64;
  c.n_head = 2;
  c.n_layer = 1;
  return c;
}

/// Four matrices, forward and backward, and the logits of a head that is open here.
constexpr size_t kReaders = 9;

struct Compiled {
  Graph graph, refresh;
  Notes notes;
};

Compiled compile(const Target& target, std::set<std::string> disabled = {},
                 optim::OptimizerKind kind = optim::OptimizerKind::adamw) {
  Compiled c;
  PipelineOptions p;
  p.verify = true;
  p.precision = DType::bf16;
  p.disabled = std::move(disabled);
  p.refresher = Refresher::update;
  p.loss = "loss";
  optim::Optimizer optimizer;
  optimizer.kind = kind;
  p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, optimizer, optim::Accumulation::none); };
  PipelineReport report;
  c.graph = run_pipeline(config().model()->loss(2, 8), target, p, &report);
  for (const PassRecord& r : report)
    if (r.name == "derive_weights") c.notes = r.notes;
  c.refresh = test::refresh_of(c.graph);
  return c;
}

int64_t layouts_written(const Graph& g) {
  int64_t all = 0;
  for (const Node& node : g.nodes())
    if (node.op->updates_parameters)
      for (const int64_t layouts : node.attrs.get_or<std::vector<int64_t>>("copies", {}))
        all |= layouts;
  return all;
}

TEST(WeightPanels, TheUpdateWritesBothOrders) {
  const Compiled c = compile(packing());
  EXPECT_EQ(readers(c.graph).size(), kReaders);
  EXPECT_EQ(count(c.graph, "store"), 0u) << "nobody else makes them";
  EXPECT_EQ(layouts_written(c.graph), 7) << "what the head multiplies backward has odd terms";
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.notes[0].find("are recomputed"), std::string::npos) << c.notes[0];
  // Whoever writes parameters makes them of those.
  EXPECT_EQ(count(c.refresh, "store"), kReaders);
}

TEST(WeightPanels, ATargetWhoseUpdateWritesNone) {
  Target target = packing();
  target.name = "plain";
  target.runs = [](const Graph& g, NodeId id) {
    return g.node(id).op->is_primitive() && !ops::has_copies_in_panels(g.node(id).attrs);
  };
  const Compiled c = compile(target);
  EXPECT_EQ(readers(c.graph).size(), kReaders);
  EXPECT_EQ(count(c.graph, "store"), kReaders) << "behind the update";
  EXPECT_EQ(layouts_written(c.graph), 1);
  ASSERT_EQ(c.notes.size(), 2u);
  EXPECT_NE(c.notes[1].find("adamw on plain writes none in panels"), std::string::npos)
      << c.notes[1];
}

TEST(WeightPanels, OnlyBesideDeriveWeights) {
  EXPECT_TRUE(readers(compile(packing(), {"derive_weights"}).graph).empty());
  EXPECT_TRUE(readers(compile(packing(), {"weight_panels"}).graph).empty());
}

}  // namespace
}  // namespace brrr
