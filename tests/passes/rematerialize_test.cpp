// What rematerialisation chooses, and what that saves: cuts against all choices, copies that come
// late, budgets that hold, and the figures of GPT-2 124M, which are known without running it.

#include "passes/memory/rematerialize.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/cpu/target.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/memory/min_cut.h"
#include "passes/memory/recomputation_choice.h"
#include "passes/memory/recomputation_cost.h"
#include "passes/pipeline.h"
#include "support/engine_run.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::Random;

// -- minimum cuts
// ----------------------------------------------------------------------------------------

TEST(MinCut, IsTheCheapestOfAllCuts) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    MinCut cut;
    const auto inner = static_cast<uint32_t>(random.below(8));
    for (uint32_t i = 0; i < inner; ++i) cut.add_node();
    struct Edge {
      uint32_t from, to;
      double price;
    };
    std::vector<Edge> edges;
    for (int64_t i = random.below(24); i > 0; --i) {
      const Edge e{static_cast<uint32_t>(random.below(inner + 2)),
                   static_cast<uint32_t>(random.below(inner + 2)),
                   static_cast<double>(random.below(5))};
      edges.push_back(e);
      cut.add_edge(e.from, e.to, e.price);
    }
    auto price = [&](uint32_t sides) {  // bit i: node i is with the source
      double total = 0;
      for (const Edge& e : edges)
        if ((sides >> e.from & 1) && !(sides >> e.to & 1)) total += e.price;
      return total;
    };
    double least = INFINITY;
    int fewest = 0;
    for (uint32_t sides = 0; sides < 1u << (inner + 2); ++sides) {
      if (!(sides >> MinCut::kSource & 1) || (sides >> MinCut::kSink & 1)) continue;
      const int count = __builtin_popcount(sides);
      if (price(sides) < least || (price(sides) == least && count < fewest)) {
        least = price(sides);
        fewest = count;
      }
    }
    for (int again = 0; again < 2; ++again) {  // and a second time
      const std::vector<bool> found = cut.solve();
      uint32_t sides = 0;
      for (uint32_t i = 0; i < found.size(); ++i) sides |= static_cast<uint32_t>(found[i]) << i;
      ASSERT_EQ(price(sides), least) << "round " << round;
      ASSERT_EQ(__builtin_popcount(sides), fewest) << "round " << round;
    }
  }
}

// What the cut minimises: predicted time, and the price of every value that is kept for the
// backward pass or for a copy.
double price_of(const Recomputation& r, const RecomputationCost& cost, double price,
                const Recomputation::Choice& again) {
  const Graph& g = r.graph();
  std::set<NodeId> copies;
  for (NodeId id : r.copies(again)) copies.insert(id);
  double total = cost.seconds(again);
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!r.is_forward(id) || copies.contains(id)) continue;
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port) {
      bool needed = false;
      for (const auto& reader : r.readers({id, port}))
        needed = needed || reader.late || copies.contains(reader.node);
      if (needed) total += price * static_cast<double>(g.type({id, port}).bytes());
    }
  }
  return total;
}

// A few ops in any order, cheap and dear ones, on rows of two widths.
Graph random_network(uint32_t seed) {
  Random random(seed);
  Graph g;
  std::vector<Value> values{g.parameter("x", {16, 8})};
  Value wider = g.parameter("wider", {8, 32}), narrower = g.parameter("narrower", {32, 8});
  while (g.size() < 9) {
    const auto n = static_cast<int64_t>(values.size());
    Value a = values[static_cast<size_t>(std::max(random.below(n), random.below(n)))];
    Value b = values[static_cast<size_t>(random.below(n))];
    switch (random.below(6)) {
      case 0:
        values.push_back(tanh(a));
        break;
      case 1:
        if (a.shape() == b.shape()) values.push_back(a * b);
        break;
      case 2:
        values.push_back(gelu(a));
        break;
      case 3:
        values.push_back(softmax(a));
        break;
      default:
        values.push_back(matmul(a, a.shape().size(1) == 8 ? wider : narrower));
    }
  }
  g.output("loss", sum(square(values.back()), {0, 1}));
  return g;
}

TEST(RecomputationCost, TheCutIsTheCheapestOfAllChoices) {
  int mixed = 0;
  for (uint32_t seed = 0; seed < 80; ++seed) {
    const Graph g = simplify(differentiate(random_network(seed)));
    const Recomputation r(g);
    std::vector<NodeId> forward;
    for (NodeId id = 0; id < g.size(); ++id)
      if (r.is_forward(id)) forward.push_back(id);
    ASSERT_LE(forward.size(), 10u);
    RecomputationCost cost(r, {2e9, 2e9, 1, 2e9, 1e9, 1e-8});
    for (const double price : {1e-10, 1e-9, 5e-9, 2e-8}) {
      const auto found = cost.cheapest(price, Recomputation::Choice(g.size()));
      double least = INFINITY;
      for (uint32_t bits = 0; bits < 1u << forward.size(); ++bits) {
        Recomputation::Choice again(g.size());
        for (size_t i = 0; i < forward.size(); ++i) again[forward[i]] = bits >> i & 1;
        least = std::min(least, price_of(r, cost, price, again));
      }
      EXPECT_NEAR(price_of(r, cost, price, found), least, 1e-6 * std::fabs(least) + 1e-15)
          << "seed " << seed << ", price " << price;
      const size_t copies = r.copies(found).size();
      mixed += copies > 0 && copies + 1 < forward.size();
    }
  }
  EXPECT_GE(mixed, 80) << "most choices were all or nothing";
}

// -- graphs of GPT-2
// ----------------------------------------------------------------------------------------

PipelineOptions training(const Rematerialize& rematerialize) {
  PipelineOptions options;
  options.loss = "loss";
  options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
  options.rematerialize = rematerialize;
  return options;
}

Rematerialize policy(RematPolicy p, int64_t budget = 0) {
  Rematerialize options;
  options.policy = p;
  options.budget_bytes = budget;
  return options;
}

Graph compiled(const Graph& loss, const Rematerialize& rematerialize,
               MatmulPrecision products = MatmulPrecision::highest) {
  PipelineOptions options = training(rematerialize);
  options.matmul_precision = products;
  return run_pipeline(loss, cpu::cpu_backend().target(), options);
}

constexpr MatmulPrecision kProducts[] = {MatmulPrecision::highest, MatmulPrecision::high,
                                         MatmulPrecision::medium};

models::Gpt2Config small_gpt2(int64_t layers) {
  models::Gpt2Config c = test::tiny_gpt2();
  c.n_positions = 64;
  c.n_embd = 48;
  c.n_layer = layers;
  return c;
}

// Copies that came early would be alive together: a layer more would cost all its activations.
TEST(Rematerialize, WithBlocksALayerMoreCostsItsInput) {
  for (const MatmulPrecision products : kProducts) {
    SCOPED_TRACE(static_cast<int>(products));
    auto bytes = [&](int64_t layers, RematPolicy p) {
      return activation_bytes(
          compiled(small_gpt2(layers).model()->loss(2, 64), policy(p), products));
    };
    const int64_t input = 2 * 64 * 48 * 4;
    EXPECT_EQ(bytes(9, RematPolicy::blocks) - bytes(4, RematPolicy::blocks), 5 * input);
    EXPECT_GT(bytes(9, RematPolicy::none) - bytes(4, RematPolicy::none), 5 * 10 * input);
    EXPECT_LE(bytes(9, RematPolicy::all), bytes(9, RematPolicy::blocks));
    // Of many small layers not even every input is kept.
    EXPECT_LT(bytes(40, RematPolicy::all), bytes(40, RematPolicy::blocks));
  }
}

// Copies cast for themselves, and come to the same bits.
TEST(Rematerialize, ChangesNoBitOfProductsOfBf16) {
  models::Gpt2Config config = test::tiny_gpt2(true, 0.2);
  config.n_layer = 2;
  const Graph loss = config.model()->loss(2, 7);
  const Backend backend = cpu::cpu_backend();
  for (const MatmulPrecision products : {MatmulPrecision::high, MatmulPrecision::medium})
    for (const bool fused : {true, false}) {
      PipelineOptions options;
      options.loss = "loss";
      options.verify = true;
      options.matmul_precision = products;
      if (!fused) options.disabled = {"fuse", "fuse_epilogues"};
      const Graph none = run_pipeline(loss, backend.target(), options);
      const auto in = test::gpt2_inputs(none, config, 3);
      const test::Bytes wanted = test::run_on_cpu(none, in);
      for (const RematPolicy p : {RematPolicy::blocks, RematPolicy::all, RematPolicy::automatic}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", static_cast<int>(products), fused, name_of(p)));
        options.rematerialize = policy(p);
        options.rematerialize.rates = {1e30, 1e30, 1, 1e30, 16e9, 0};
        const Graph g = run_pipeline(loss, backend.target(), options);
        options.rematerialize = {};
        EXPECT_GT(g.size(), none.size());
        const test::Bytes got = test::run_on_cpu(g, in);
        ASSERT_EQ(got.size(), wanted.size());
        for (const auto& [name, bytes] : wanted) EXPECT_TRUE(got.at(name) == bytes) << name;
      }
    }
}

// A cast of a weight that was made for two products would live from the one to the other.
TEST(Rematerialize, EveryProductCastsItsWeightForItself) {
  const models::Gpt2Config config = small_gpt2(3);
  const Graph loss = config.model()->loss(2, 64);
  for (const RematPolicy p : {RematPolicy::blocks, RematPolicy::all, RematPolicy::automatic}) {
    PipelineOptions options = training(policy(p));
    options.matmul_precision = MatmulPrecision::medium;
    options.disabled = {"fuse", "fuse_epilogues"};
    const Graph g = run_pipeline(loss, cpu::cpu_backend().target(), options);
    const auto uses = count_uses(g);
    int casts = 0;
    for (NodeId id = 0; id < g.size(); ++id) {
      const Node& node = g.node(id);
      if (!is(node, Op::cast) || !g.is_input(node.operands[0].node)) continue;
      EXPECT_EQ(uses[id][0], 1u) << name_of(p) << " %" << id;
      ++casts;
    }
    EXPECT_GE(casts, 2 * 4 * 3) << name_of(p);
  }
}

TEST(Rematerialize, CopiesStandBehindTheBackwardOfTheNextLayer) {
  const Graph g = compiled(small_gpt2(3).model()->loss(2, 64), policy(RematPolicy::blocks));
  NodeId last_of_next = 0, first_copy = kNoNode;
  for (NodeId id = 0; id < g.size(); ++id) {
    const std::string& scope = g.scope_of(id);
    if (scope.starts_with("backward:h.1.attn")) last_of_next = id;
    if (scope.starts_with("recompute:h.0") && first_copy == kNoNode && !is(g.node(id), Op::after))
      first_copy = id;
  }
  ASSERT_NE(first_copy, kNoNode);
  ASSERT_GT(last_of_next, 0u);
  // Sums for the gradients of that layer's parameters may follow, its products do not.
  for (NodeId id = first_copy; id < g.size(); ++id)
    EXPECT_FALSE(g.scope_of(id).starts_with("backward:h.1") &&
                 g.node(id).op->op_class == OpClass::contraction)
        << id;
}

TEST(Rematerialize, NeedsNoModelButNumberedScopes) {
  Graph scopes;
  const auto block_of = [&](std::string_view path) {
    scopes.set_scope(path, Phase::backward);
    const Value x = full(scopes, {}, 1);
    EXPECT_EQ(scopes.path_of(x.id.node), path);
    return std::string(scopes.block_of(x.id.node));
  };
  EXPECT_EQ(block_of("h.3.attn"), "h.3");
  EXPECT_EQ(block_of("model.layers.11.mlp.0"), "model.layers.11");
  EXPECT_EQ(block_of("h3.attn"), "");
  EXPECT_EQ(block_of("7"), "7");
  EXPECT_EQ(block_of(""), "");
  const Graph g = simplify(differentiate(test::RandomGraph(3, 40, true).graph()));
  EXPECT_TRUE(drop_dead(rematerialize(g, policy(RematPolicy::blocks))) == drop_dead(g));
  EXPECT_TRUE(rematerialize(g, policy(RematPolicy::none)) == g);
}

TEST(Rematerialize, EveryBudgetHoldsOrIsRefusedWithTheLeast) {
  int64_t least_of_highest = 0;
  for (const auto& [dropout, products] : {std::pair{0.0, MatmulPrecision::highest},
                                          {0.2, MatmulPrecision::highest},
                                          {0.2, MatmulPrecision::high},
                                          {0.2, MatmulPrecision::medium}}) {
    SCOPED_TRACE(fmt::format("dropout {}, {}", dropout, static_cast<int>(products)));
    models::Gpt2Config config = small_gpt2(4);
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout;
    const Graph loss = config.model()->loss(2, 64);
    const int64_t all = activation_bytes(compiled(loss, policy(RematPolicy::none), products));
    int64_t least = 0;
    double before = 0;
    for (int percent = 100; percent > 0 && least == 0; percent -= 7) {
      const int64_t budget = all * percent / 100;
      try {
        const Graph g = compiled(loss, policy(RematPolicy::automatic, budget), products);
        EXPECT_LE(activation_bytes(g), budget) << percent;
        const double seconds = predicted_seconds(g, Rates{});
        EXPECT_GE(seconds, before * 0.99) << percent << ": less memory, but faster";
        before = seconds;
      } catch (const UserError& e) {
        EXPECT_EQ(e.code(), ExitCode::kNoMemory);
        const std::string text = e.what();
        const size_t at = text.find('(');
        ASSERT_NE(at, std::string::npos) << text;
        least = std::stoll(text.substr(at + 1));
        EXPECT_GT(least, budget) << text;
      }
    }
    ASSERT_GT(least, 0);
    EXPECT_LT(least, products == MatmulPrecision::highest ? all / 3 : all * 2 / 5);
    EXPECT_LE(activation_bytes(compiled(loss, policy(RematPolicy::automatic, least), products)),
              least);
    if (products == MatmulPrecision::highest) least_of_highest = least;
    EXPECT_LE(least, least_of_highest * 3 / 2);
  }
}

// -- the figures of GPT-2 124M, batch 4 x 512
// ----------------------------------------------------------------------------------------

class Gpt2Figures : public testing::Test {
 protected:
  static Graph loss() {
    models::Gpt2Config c;  // 124M
    c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = 0;
    return c.model()->loss(4, 512);
  }
  struct Figures {
    int64_t activations;
    double seconds;
  };
  static Figures of(RematPolicy p, int64_t budget = 0) {
    static const Graph graph = loss();
    const Graph g = compiled(graph, policy(p, budget));
    return {activation_bytes(g), predicted_seconds(g, Rates{})};
  }
};

TEST_F(Gpt2Figures, AutoHoldsItsBudgetAtTheLeastPredictedTime) {
  const Figures none = of(RematPolicy::none);
  const Figures blocks = of(RematPolicy::blocks), all = of(RematPolicy::all);
  // In values of [B, T, C] for each layer. Were q, k, v and y copied around attention, 17 of them
  // would be kept: budgets are parts of that.
  const double unit = 12 * 4 * 512 * 768 * 4, copied = 17 * unit;
  EXPECT_NEAR(static_cast<double>(none.activations) / unit, 16.2, 0.1);
  EXPECT_LT(blocks.activations * 7, none.activations);
  EXPECT_LE(all.activations, blocks.activations);
  EXPECT_GT(blocks.seconds, 1.14 * none.seconds);

  const Figures cheap = of(RematPolicy::automatic);
  EXPECT_LT(static_cast<double>(cheap.activations), copied * 5 / 8);
  EXPECT_LT(cheap.seconds, 1.01 * none.seconds);

  const struct {
    double part, cost;  // of the activations; at most so much more time
  } cases[] = {{2, 1.045}, {2.5, 1.07}, {3, 1.09}, {4, 1.115}, {5, 1.125}};
  for (const auto& [part, cost] : cases) {
    const auto budget = static_cast<int64_t>(copied / part);
    const Figures f = of(RematPolicy::automatic, budget);
    EXPECT_LE(f.activations, budget);
    EXPECT_LT(f.seconds / none.seconds, cost) << part;
  }
  // In the memory of `blocks`, faster.
  const Figures same = of(RematPolicy::automatic, blocks.activations);
  EXPECT_LE(same.activations, blocks.activations);
  EXPECT_LT(same.seconds, 0.99 * blocks.seconds);
}

}  // namespace
}  // namespace brrr
