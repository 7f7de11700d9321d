// The contracts of the pass table: each order that they forbid is refused when it is run.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/errors.h"
#include "ir/text.h"
#include "models/gpt2/gpt2_config.h"
#include "ops/control.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/pass_table.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

/// A small model, and options under which every pass runs that its kind of program has.
struct TrialProgram {
  Graph loss = test::tiny_gpt2(true, 0.1).model()->loss(2, 4);
  Target target;
  PipelineOptions options;

  explicit TrialProgram(bool trains, bool in_16_bits) {
    target.runs = [](const Graph&, NodeId) { return true; };
    options.matmul_precision = MatmulPrecision::medium;
    if (in_16_bits) {
      options.precision = DType::bf16;
      options.parameter_dtype = DType::bf16;
      options.fp8 = true;
      options.refresher = Refresher::update;
    }
    if (!trains) {
      options.refresher = Refresher::loader;
      options.quantization.bits = 8;
      // With weights in blocks, read_blocks runs.
      if (!in_16_bits) options.quantization.blocks = std::make_shared<BlockParameters>();
      options.cache = CachePrecision::int8;
    }
    if (!trains) return;
    options.loss = "loss";
    options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
    options.rematerialize.policy = RematPolicy::blocks;
    options.fake_quantization.bits = 8;
    options.base_quantization.bits = 8;
    options.sharding = {2, 1};
  }

  bool runs(const Pass& pass) const { return pass.applies({target, options, {}}); }
  std::string failure(std::span<const Pass> table) {
    try {
      run_passes(table, loss, target, options);
    } catch (const InternalError& e) {
      return e.what();
    }
    return "";
  }
};

bool has_fact(const std::vector<Fact>& facts, Fact fact) {
  return std::find(facts.begin(), facts.end(), fact) != facts.end();
}

/// The table with the pass at `from` moved so that it stands right before or behind the one at
/// `to`.
std::vector<Pass> moved_table(size_t from, size_t to) {
  std::vector<Pass> table(pass_table().begin(), pass_table().end());
  const auto at = [&](size_t i) { return table.begin() + static_cast<ptrdiff_t>(i); };
  if (from < to)
    std::rotate(at(from), at(from + 1), at(to + 1));
  else
    std::rotate(at(to), at(from), at(from + 1));
  return table;
}

TEST(PassTable, EveryForbiddenOrderIsRefused) {
  const auto table = pass_table();
  std::vector<std::unique_ptr<TrialProgram>> programs;
  for (const bool trains : {true, false})
    for (const bool in_16_bits : {true, false})
      programs.push_back(std::make_unique<TrialProgram>(trains, in_16_bits));
  int orders = 0;
  for (size_t p = 0; p < table.size(); ++p)
    for (size_t giver = 0; giver < table.size(); ++giver)
      for (const Fact fact : table[giver].order.gives) {
        const bool needs = has_fact(table[p].order.needs, fact);
        if (!needs && !has_fact(table[p].order.before, fact)) continue;
        EXPECT_EQ(needs, giver < p) << table[p].name << " and " << table[giver].name;
        const auto both = std::find_if(programs.begin(), programs.end(), [&](const auto& program) {
          return program->runs(table[p]) && program->runs(table[giver]);
        });
        if (both == programs.end()) {
          EXPECT_EQ(table[p].name, "inference") << "no program runs " << table[giver].name;
          continue;
        }
        ++orders;
        const std::string why = (*both)->failure(moved_table(p, giver));
        EXPECT_NE(why.find("the pass "), std::string::npos)
            << table[p].name << " moved to " << table[giver].name << ": '" << why << "'";
      }
  EXPECT_GT(orders, 40);
}

TEST(PassTable, TheRunnerChecksNeedsAndBefore) {
  const auto pass = [](const char* name) {
    Pass p;
    p.name = name;
    p.applies = [](const PassContext&) { return true; };
    p.run = [](const Graph& g, const PassContext&) { return PassResult{g, {}}; };
    return p;
  };
  Pass gives = pass("gives"), needs = pass("needs"), before = pass("before");
  gives.order.gives = {Fact::fused};
  needs.order.needs = {Fact::fused};
  before.order.before = {Fact::fused};
  TrialProgram program(false, false);
  EXPECT_EQ(program.failure(std::vector{before, gives, needs}), "");
  EXPECT_NE(program.failure(std::vector{needs, gives}).find("the pass needs needs"),
            std::string::npos);
  EXPECT_NE(program.failure(std::vector{gives, before}).find("the pass before comes after"),
            std::string::npos);
  // What does not run gives nothing.
  gives.applies = [](const PassContext&) { return false; };
  EXPECT_NE(program.failure(std::vector{gives, needs}), "");
  EXPECT_EQ(program.failure(std::vector{gives, before}), "");
}

/// A table of one pass that does this.
std::vector<Pass> table_of(const char* name, std::function<Graph(const Graph&)> change) {
  Pass p;
  p.name = name;
  p.applies = [](const PassContext&) { return true; };
  p.run = [change](const Graph& g, const PassContext&) { return PassResult{change(g), {}}; };
  return {p};
}

TEST(PassTable, APassThatGivesAnOutputAnotherTypeIsStopped) {
  TrialProgram program(false, false);
  const std::string dropped = program.failure(table_of("drops", [](Graph g) {
    g.outputs().pop_back();
    return g;
  }));
  EXPECT_NE(dropped.find("the pass drops drops the output 'loss'"), std::string::npos) << dropped;
  const std::string wider = program.failure(table_of("widens", [](Graph g) {
    g.outputs()[0].value = reshape(g.value(g.outputs()[0].value), {1, 1}).id;
    return g;
  }));
  EXPECT_NE(
      wider.find("the pass widens makes of the output 'loss' f32[] the output 'loss' f32[1,1]"),
      std::string::npos)
      << wider;
  const std::string renamed = program.failure(table_of("renames", [](const Graph& g) {
    return rewrite(g, [](Rewriter& r, NodeId id) {
      if (!r.in().is_input(id) || r.in().input_kind(id) != InputKind::data) return false;
      r.bind({id, 0}, r.out().input("new " + r.in().input_name(id), r.in().type({id, 0})));
      return true;
    });
  }));
  EXPECT_NE(renamed.find("the pass renames drops the input 'tokens'"), std::string::npos)
      << renamed;
}

// In the middle of a graph, where no output shows it.
TEST(PassTable, APassThatReplacesAValueByOneOfAnotherTypeIsStopped) {
  Graph g;
  g.output("y", sum(exp(g.input("x", {2, 4}, f32)), {0, 1}));
  const auto replaced = [](std::function<Value(Value)> by) {
    return [by](const Graph& in) {
      return rewrite(in, [&](Rewriter& r, NodeId id) {
        if (!is(in.node(id), Op::exp)) return false;
        r.bind({id, 0}, by(r.operands(id)[0]));
        return true;
      });
    };
  };
  const std::pair<const char*, std::function<Value(Value)>> wrong[] = {
      {"f32[1,2,4]",
       [](Value x) {
         return reshape(x, {1, 2, 4});
       }},
      {"f64[2,4]", [](Value x) { return cast(x, f64); }},
      {"f32[2,1]", [](Value x) { return max(x, {1}, true); }},
  };
  for (const auto& [type, by] : wrong) {
    TrialProgram program(false, false);
    program.loss = g;
    const std::string why = program.failure(table_of("replaces", replaced(by)));
    EXPECT_NE(why.find(fmt::format("%1.0 (exp) is f32[2,4], and what replaces it is {}", type)),
              std::string::npos)
        << why;
  }
}

TEST(PassTable, TheEnvironmentAsksForVerification) {
  TrialProgram program(false, false);
  const auto table = table_of("breaks", [](Graph g) {  // the types are not what infer says
    for (NodeId id = 0; id < g.size(); ++id)
      if (is(g.node(id), Op::gelu)) g.node(id).results[0].dtype = DType::f64;
    return g;
  });
  ::setenv("BRRR_VERIFY", "0", 1);
  EXPECT_EQ(program.failure(table), "");
  ::setenv("BRRR_VERIFY", "1", 1);
  const std::string why = program.failure(table);
  EXPECT_NE(why.find("after the pass breaks: "), std::string::npos) << why;
}

TEST(PassTable, SomeOrdersThatMustNotBe) {
  const auto index = [](std::string_view name) {
    for (size_t i = 0; i < pass_table().size(); ++i)
      if (pass_table()[i].name == name) return i;
    ADD_FAILURE() << name;
    return size_t{0};
  };
  TrialProgram training(true, true);
  EXPECT_EQ(training.failure(pass_table()), "");
  for (const auto& [pass, to] : {std::pair("optimizer", "differentiate"),
                                 {"match_attention", "differentiate"},
                                 {"autocast", "differentiate"},
                                 {"fp8_products", "autocast"},
                                 {"derive_weights", "decompose"},
                                 {"derive_weights", "rematerialize"},
                                 {"rematerialize", "fuse"},
                                 {"fuse", "fuse_epilogues"},
                                 {"fuse_bias_gradients", "fuse"},
                                 {"fuse_epilogues", "schedule"},
                                 {"matmul_precision", "rematerialize"}})
    EXPECT_NE(training.failure(moved_table(index(pass), index(to))), "")
        << pass << " moved to " << to;
}

TEST(PassTable, NamesAreThoseOfTheOptions) {
  std::set<std::string> optional;
  for (const Pass& pass : pass_table())
    if (pass.optional) optional.insert(pass.name);
  const auto names = optional_passes();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), optional);
  EXPECT_EQ(names.size(), optional.size());
  // A name stands for one function, wherever it runs.
  for (const Pass& a : pass_table())
    for (const Pass& b : pass_table()) EXPECT_TRUE(a.name != b.name || a.file == b.file) << a.name;
}

/// x through a loop whose body has a branch: four graphs in all.
Graph with_nested_regions() {
  Graph negative, body, g;
  negative.output("0", -negative.input("a0", {2}, f32));
  Graph positive;
  positive.output("0", positive.input("a0", {2}, f32) * 2.0);
  const Value i = body.input("a0", {}, i32), x = body.input("a1", {2}, f32);
  const Value captured[] = {x};
  const Value more = less(i, scalar(body, 1, i32));
  body.output("0", more);
  body.output("1", branch(more, Region(negative), Region(positive), captured)[0]);
  const Value carried[] = {g.input("x", {2}, f32)};
  const Value first = less(scalar(g, 0), scalar(g, 1));
  g.output("y", loop(first, Region(body), carried, {}, {.bound = 3}).carried[0]);
  return g;
}

/// The only node of that op.
NodeId only(const Graph& graph, std::string_view op) {
  const auto has_name = [&](const Node& node) { return node.op->name == op; };
  EXPECT_EQ(std::ranges::count_if(graph.nodes(), has_name), 1);
  return static_cast<NodeId>(std::ranges::find_if(graph.nodes(), has_name) - graph.nodes().begin());
}

TEST(PassTable, APassEntersRegionsWhereItsRecordSaysSo) {
  std::vector<size_t> sizes[2];  // of the graphs that each pass is given
  std::vector<Pass> table;
  for (const bool enters : {false, true}) {
    Pass pass;
    pass.name = enters ? "enters" : "stays outside";
    pass.applies = [](const PassContext&) { return true; };
    pass.run = [&sizes, enters](const Graph& graph, const PassContext&) {
      sizes[enters].push_back(graph.size());
      return PassResult{graph, {fmt::format("{} nodes", graph.size())}};
    };
    pass.enters_regions = enters;
    table.push_back(pass);
  }
  const Graph g = with_nested_regions();
  PipelineReport report;
  PipelineOptions options;
  options.verify = true;
  EXPECT_EQ(run_passes(table, g, TrialProgram(false, false).target, options, &report), g);
  const Graph& body = *regions_of(g.node(only(g, "loop")))[0];
  EXPECT_EQ(sizes[0], (std::vector<size_t>{g.size()}));
  // What is inside comes first: the branches, the body, the graph.
  EXPECT_EQ(sizes[1], (std::vector<size_t>{3, 2, body.size(), g.size()}))
      << "the region `else` stands before `then`";
  EXPECT_EQ(report[1].notes,
            (std::vector<std::string>{fmt::format("{} nodes", g.size()), "in a region: 3 nodes",
                                      "in a region: 2 nodes",
                                      fmt::format("in a region: {} nodes", body.size())}));
}

TEST(PassTable, ChangesInsideRegionsArriveOutside) {
  Graph g = with_nested_regions();
  // -(-x) is x: the branch gets simpler, and with it every graph that holds it.
  Graph twice, body = *regions_of(g.node(only(g, "loop")))[0];
  twice.output("0", -(-twice.input("a0", {2}, f32)));
  body.node(only(body, "if")).attrs.set("then", Region(twice));
  g.node(only(g, "loop")).attrs.set("body", Region(body));
  PipelineOptions options;
  options.verify = true;
  const Graph out = run_pipeline(g, TrialProgram(false, false).target, options);
  const Graph& new_body = *regions_of(out.node(only(out, "loop")))[0];
  const Region& then = new_body.node(only(new_body, "if")).attrs.get<Region>("then");
  EXPECT_EQ(then.graph().size(), 1u) << print(out);
}

}  // namespace
}  // namespace brrr
