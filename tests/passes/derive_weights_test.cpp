// Derived weights: which there are, who makes them, and that nothing else changes.

#include "passes/weights/derived_weight.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "ops/update.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/derived_weights.h"
#include "support/gpt2.h"
#include "support/long_proof.h"

namespace brrr {
namespace {

using optim::Accumulation;
using optim::OptimizerKind;

struct Compiled {
  Graph graph, refresh;
  Notes notes;
};

struct Options {
  DType precision = DType::bf16;
  bool fp8 = false;
  DType parameter_dtype = DType::f32;
  optim::Optimizer optimizer;
  Accumulation accumulation = Accumulation::none;
  std::set<std::string> disabled;
};

Compiled compile(const Graph& loss, const Options& o, const Target& target = {},
                 bool is_training = true) {
  Compiled c;
  PipelineOptions p;
  p.verify = true;
  p.precision = o.precision;
  p.fp8 = o.fp8;
  p.parameter_dtype = o.parameter_dtype;
  p.disabled = o.disabled;
  p.refresher = Refresher::update;
  if (is_training) {
    p.loss = "loss";
    p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, o.optimizer, o.accumulation); };
  }
  PipelineReport report;
  c.graph = run_pipeline(loss, target, p, &report);
  for (const PassRecord& r : report)
    if (r.name == "derive_weights") c.notes = r.notes;
  c.refresh = test::refresh_of(c.graph);
  return c;
}

models::Gpt2Config small_config() {
  models::Gpt2Config c = test::tiny_gpt2();
  c.n_embd = 48;  // sizes of which fp8 multiplies some
  return c;
}
Graph loss_graph() { return small_config().model()->loss(2, 8); }

std::vector<std::string> derived_in(const Graph& g) {
  std::vector<std::string> names;
  for (NodeId id : g.inputs(InputKind::state))
    if (g.role(id) == Role::derived) names.push_back(g.input_name(id));
  return names;
}

size_t casts_of_parameters(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes())
    n += is(node, Op::cast) && g.is_input(node.operands[0].node) &&
         g.input_kind(node.operands[0].node) == InputKind::parameter;
  return n;
}

/// Values for all inputs, derived weights being what their parameters say: to the judge, who rounds
/// nothing.
reference::Tensors inputs_of(const Compiled& c) {
  reference::Tensors in = test::gpt2_inputs(c.graph, small_config(), 5);
  for (auto& [name, t] : in)
    if (t.type.dtype != DType::i32 && (name.starts_with("ada") || name == "learning_rate"))
      for (double& x : t.data) x = is_float(t.type.dtype) ? std::fabs(x) + 0.01 : x;
  if (in.contains("optimizer_step")) in["optimizer_step"].data = {3};
  for (NodeId id : c.refresh.inputs(InputKind::parameter))
    if (!in.contains(c.refresh.input_name(id))) ADD_FAILURE() << c.refresh.input_name(id);
  for (auto& [name, t] : reference::evaluate(c.refresh, [&] {
         reference::Tensors all = in;
         for (NodeId id : c.refresh.inputs(InputKind::state)) {
           all[c.refresh.input_name(id)] = RefTensor(c.refresh.type({id, 0}));
         }
         return all;
       }()))
    in[name.substr(std::string("update:").size())] = t;
  return in;
}

/// The results that a graph without derived weights has, too.
reference::Tensors without_derived(const Graph& g, reference::Tensors results) {
  for (const std::string& name : derived_in(g)) results.erase("update:" + name);
  return results;
}

TEST(DeriveWeights, ChangesNoResultOfAnyOptimizer) {
  std::vector<optim::Optimizer> optimizers;
  for (const optim::OptimizerName& name : optim::optimizer_names())
    optimizers.emplace_back().kind = name.kind;
  optimizers.emplace_back().fused = false;
  for (const optim::Optimizer& optimizer : test::sampled(optimizers, 4, "optimizers"))
    for (const bool fp8 : {false, true})
      for (const Accumulation a :
           {Accumulation::none, Accumulation::first, Accumulation::middle, Accumulation::last}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", optim::name_of(optimizer.kind), optimizer.fused,
                                 fp8, static_cast<int>(a)));
        Options o;
        o.fp8 = fp8;
        o.optimizer = optimizer;
        o.accumulation = a;
        const Compiled with = compile(loss_graph(), o);
        o.disabled = {"derive_weights"};
        const Compiled without = compile(loss_graph(), o);
        EXPECT_TRUE(derived_in(without.graph).empty());
        EXPECT_FALSE(derived_in(with.graph).empty());
        EXPECT_EQ(casts_of_parameters(with.graph), 0u);
        const reference::Tensors in = inputs_of(with);
        const auto got = reference::evaluate(with.graph, in);
        EXPECT_EQ(test::difference(reference::evaluate(without.graph, in),
                                   without_derived(with.graph, got)),
                  0);
        // The copies of a step are those of its new parameters.
        const bool updates = a == Accumulation::none || a == Accumulation::last;
        reference::Tensors next = in;
        for (NodeId id : with.refresh.inputs(InputKind::parameter)) {
          const std::string& name = with.refresh.input_name(id);
          if (updates) next[name] = got.at("update:" + name);
        }
        for (const auto& [name, t] : reference::evaluate(with.refresh, next)) {
          const auto at = got.find(name);
          ASSERT_EQ(at != got.end(), updates) << name;
          if (updates) {
            EXPECT_TRUE(at->second == t) << name;
          }
        }
      }
}

TEST(DeriveWeights, TheUpdateWritesThem) {
  for (const optim::OptimizerName& name : optim::optimizer_names()) {
    SCOPED_TRACE(name.spellings[0]);
    Options o;
    o.optimizer.kind = name.kind;
    const Compiled c = compile(loss_graph(), o);
    const auto names = derived_in(c.graph);
    size_t written = 0;
    for (const Node& node : c.graph.nodes())
      if (node.op->updates_parameters)
        for (int64_t flag : node.attrs.get_or<std::vector<int64_t>>("copies", {}))
          written += static_cast<size_t>(flag);
    EXPECT_EQ(written, names.size());
    for (const Node& node : c.graph.nodes())  // nothing but the update makes one
      EXPECT_FALSE(is(node, Op::cast) && node.results[0].dtype == DType::bf16 &&
                   c.graph.node(node.operands[0].node).op->updates_parameters);
    ASSERT_EQ(c.notes.size(), 1u);
    EXPECT_NE(c.notes[0].find(fmt::format("the update writes {}", written)), std::string::npos)
        << c.notes[0];
  }
}

// The table is embedding and head at once: two readers in the graph, one copy.
TEST(DeriveWeights, ATiedTableHasOneCopy) {
  const Compiled c = compile(loss_graph(), {});
  int of_table = 0;
  for (const std::string& name : derived_in(c.graph))
    of_table += name.find("wte") != std::string::npos;
  EXPECT_EQ(of_table, 1);
}

TEST(DeriveWeights, NamesAreThoseOfOtherProgramsOfTheModel) {
  Options o;
  o.fp8 = true;
  const Compiled step = compile(loss_graph(), o);
  o.accumulation = Accumulation::first;
  EXPECT_EQ(derived_in(compile(loss_graph(), o).graph), derived_in(step.graph));
  // An evaluation reads them, too; what only the backward pass reads (turned copies) it lacks.
  const Compiled eval = compile(loss_graph(), o, {}, false);
  const auto all = derived_in(step.graph);
  EXPECT_FALSE(derived_in(eval.graph).empty());
  for (const std::string& name : derived_in(eval.graph))
    EXPECT_NE(std::find(all.begin(), all.end(), name), all.end()) << name;
  for (const Output& out : eval.graph.outputs()) EXPECT_EQ(out.updates, kNoNode);
}

TEST(DeriveWeights, OnlyWhereBitsAreFewer) {
  Options o;
  o.precision = DType::f32;
  EXPECT_TRUE(derived_in(compile(loss_graph(), o).graph).empty());
  // Matrices in bf16 are read as they are.
  o.precision = o.parameter_dtype = DType::bf16;
  const Graph g = compile(loss_graph(), o).graph;
  for (const std::string& name : derived_in(g))
    EXPECT_LT(g.type({g.find_input(name), 0}).shape.rank(), 2) << name;
}

// Copies that no update writes as its result: turned, padded, quantised, or of a target whose
// kernel has no such result.
TEST(DeriveWeights, AreMadeAgainBehindTheUpdate) {
  Target padding;
  padding.product_multiple = 64;
  Options o;
  auto in_new = [](const Compiled& c) {
    EXPECT_EQ(casts_of_parameters(c.graph), 0u);
    size_t updated = 0;
    for (const Output& out : c.graph.outputs())
      updated += out.updates != kNoNode && c.graph.role(out.updates) == Role::derived;
    EXPECT_EQ(updated, derived_in(c.graph).size());
  };
  const Compiled padded = compile(loss_graph(), o, padding);
  in_new(padded);
  Target plain;
  plain.name = "plain";
  plain.runs = [](const Graph& g, NodeId id) {
    return g.node(id).op->is_primitive() && g.node(id).attrs.find("copies") == nullptr;
  };
  const Compiled refused = compile(loss_graph(), o, plain);
  in_new(refused);
  ASSERT_EQ(refused.notes.size(), 2u);
  EXPECT_NE(refused.notes[0].find("are recomputed"), std::string::npos) << refused.notes[0];
  EXPECT_NE(refused.notes[1].find("adamw on plain"), std::string::npos) << refused.notes[1];
  o.disabled = {"simplify"};  // leaves equal casts beside each other
  in_new(compile(loss_graph(), o));
}

}  // namespace
}  // namespace brrr
