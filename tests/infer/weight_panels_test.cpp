// Parameters of products in panels: the same numbers, bit for bit, as with the parameters as they
// are.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/panels.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_model.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "passes/weights/derived_weight.h"
#include "support/generated.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

models::Gpt2Config config() {
  models::Gpt2Config c = test::tiny_gpt2(true);
  c.n_embd = 64;
  c.n_head = 2;
  c.n_positions = 96;
  c.vocab_size = 101;  // no multiple of a panel
  return c;
}

Graph compiled(const Backend& backend, int64_t tokens, const char* disabled, Notes* notes) {
  PipelineOptions p;
  p.precision = p.parameter_dtype = DType::bf16;
  p.refresher = Refresher::loader;
  if (*disabled != '\0') p.disabled.insert(disabled);
  PipelineReport report;
  const Graph g = run_pipeline(
      models::gpt2_decode_graph(config(), {1, tokens, config().n_positions, DType::bf16}),
      backend.target(), p, &report);
  for (const PassRecord& pass : report)
    if (pass.name == "weight_panels") *notes = pass.notes;
  return g;
}

TEST(WeightPanels, OfProductsAlone) {
  Notes notes;
  const Backend backend = cpu::cpu_backend();
  const Graph g = compiled(backend, 1, "", &notes);
  size_t packed = 0;
  for (const NodeId id : g.inputs()) {
    const Type& type = g.type({id, 0});
    const auto weight = derived_weight(g.node(id).attrs);
    packed += weight.has_value();
    // Positions are read by rows alone; vectors are no matrices.
    EXPECT_EQ(weight.has_value(), !type.storage.is_plain()) << g.input_name(id);
    if (!weight) continue;
    ASSERT_EQ(weight->sources.size(), 1u);
    EXPECT_EQ(g.find_input(weight->sources[0]), kNoNode) << "the panels take its place";
    const bool is_table = weight->sources[0].ends_with("wte.weight");
    EXPECT_EQ(type.storage.layout, right_layout(is_table)) << weight->sources[0];
    if (is_table) {
      EXPECT_EQ(type.shape, Shape({config().vocab_size, config().n_embd}));
    }
  }
  EXPECT_EQ(packed, 4u * static_cast<size_t>(config().n_layer) + 1);
  EXPECT_FALSE(notes.empty());
  const Graph plain = compiled(backend, 1, "weight_panels", &notes);
  for (const NodeId id : plain.inputs()) EXPECT_NE(plain.role(id), Role::derived);
  EXPECT_EQ(g.size(), plain.size());
}

/// A matrix that is read in two orders, or by no product, stays.
TEST(WeightPanels, NotInTwoOrders) {
  const Backend backend = cpu::cpu_backend();
  struct Readers {
    bool table, right, transposed, packed;
  };
  for (const Readers& r : {Readers{true, false, false, false},
                           {true, true, false, false},
                           {false, true, true, false},
                           {false, true, false, true},
                           {true, false, true, true}}) {
    SCOPED_TRACE(fmt::format("table {}, right {}, transposed {}", r.table, r.right, r.transposed));
    Graph g;
    const Value w = g.parameter("w", {64, 64}, DType::bf16);
    const Value x = g.input("x", {3, 64}, DType::bf16), ids = g.input("ids", {3}, DType::i32);
    if (r.table) g.output("rows", embedding(w, ids));
    if (r.right) g.output("y", matmul(x, w));
    if (r.transposed) g.output("z", matmul(x, w, false, true));
    const Target target = backend.target();
    const Graph packed =
        derive_weights(weight_panels(g, target, Refresher::loader), target, Refresher::loader);
    EXPECT_EQ(packed.find_input("w") == kNoNode, r.packed);
  }
}

TEST(WeightPanels, ThePlacesArePermuted) {
  const int64_t k = 96, n = 64;
  std::vector<bool> taken(static_cast<size_t>(k * n));
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = place_in_panels(i, j, k);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, k * n);
      EXPECT_FALSE(taken[static_cast<size_t>(at)]);
      taken[static_cast<size_t>(at)] = true;
    }
  EXPECT_EQ(panel_elements(k, n), k * n);
}

TEST(WeightPanels, TextsAreTheSame) {
  infer::GeneratorOptions options;
  options.precision = DType::bf16;
  const models::ModelPtr model = models::gpt2_model(config());
  EXPECT_EQ(test::generated(model, options), test::generated(model, options, "weight_panels"));
}

}  // namespace
}  // namespace brrr
