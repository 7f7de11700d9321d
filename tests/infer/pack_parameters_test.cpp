// Parameters of products in panels: the same numbers, bit for bit, as with the parameters as they
// are.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "infer/generator.h"
#include "infer/sampler.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_model.h"
#include "models/initialise.h"
#include "ops/ops.h"
#include "ops/panels.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
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
  p.packs_parameters = true;
  if (*disabled != '\0') p.disabled.insert(disabled);
  PipelineReport report;
  const Graph g = run_pipeline(
      models::gpt2_decode_graph(config(), {1, tokens, config().n_positions, DType::bf16}),
      backend.target(), p, &report);
  for (const PassRecord& pass : report)
    if (pass.name == "pack_parameters") *notes = pass.notes;
  return g;
}

TEST(PackParameters, OfProductsAlone) {
  Notes notes;
  const Backend backend = cpu::cpu_backend();
  const Graph g = compiled(backend, 1, "", &notes);
  size_t packed = 0;
  for (const NodeId id : g.inputs()) {
    const auto panels = panels_in(g.node(id).attrs);
    packed += panels.has_value();
    // Positions are read by rows alone; vectors are no matrices.
    EXPECT_EQ(panels.has_value(), g.type({id, 0}).shape.rank() == 6) << g.input_name(id);
    EXPECT_FALSE(panels && panels->parameter.find("wpe") != std::string::npos);
    if (panels && panels->rows) {
      EXPECT_TRUE(panels->parameter.ends_with("wte.weight"));
      EXPECT_EQ(panels->rows, config().vocab_size);
    }
  }
  EXPECT_EQ(packed, 4u * static_cast<size_t>(config().n_layer) + 1);
  EXPECT_FALSE(notes.empty());
  const Graph plain = compiled(backend, 1, "pack_parameters", &notes);
  for (const NodeId id : plain.inputs()) EXPECT_NE(plain.role(id), Role::panels);
  EXPECT_EQ(g.size(), plain.size());
}

TEST(PackParameters, InputsSayWhatTheyAre) {
  Graph g;
  for (const Panels& panels : {Panels{"h.0.attn.c_attn.weight", std::nullopt},
                               Panels{"wte.weight", 50257}, Panels{"12:w", std::nullopt}}) {
    const Value in = g.input(panels_state(panels), panels_shape(64, 64), DType::bf16, Role::panels,
                             attributes_of(panels));
    const auto read = panels_in(g.node(in.id.node).attrs);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->parameter, panels.parameter);
    EXPECT_EQ(read->rows, panels.rows);
  }
  const Value plain = g.parameter("wte.weight", {64, 64});
  EXPECT_FALSE(panels_in(g.node(plain.id.node).attrs));
}

/// A matrix that is read in two orders, or by no product, stays.
TEST(PackParameters, NotInTwoOrders) {
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
    const Graph packed = pack_parameters(g, backend.target());
    EXPECT_EQ(packed.find_input("w") == kNoNode, r.packed);
  }
}

TEST(PackParameters, ThePlacesArePermuted) {
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
  EXPECT_EQ(panels_shape(k, n).elements(), k * n);
}

std::vector<int32_t> generated(const char* disabled) {
  if (*disabled != '\0') ::setenv("BRRR_DISABLE_PASS", disabled, 1);
  infer::GeneratorOptions options;
  options.precision = DType::bf16;
  infer::Generator generator(
      models::gpt2_model(config()), cpu::cpu_backend(),
      [](std::string_view name, std::span<float> out) {
        models::initial_weights(*models::gpt2_model(config()), 5)(name, out);
      },
      options);
  infer::Sampling sampling;
  sampling.temperature = 1;
  // A prompt of several tokens is a product of several rows.
  const std::vector<int32_t> tokens =
      generator.generate(std::vector<int32_t>{3, 1, 4, 1, 5}, 60, infer::Sampler(sampling, 11));
  ::unsetenv("BRRR_DISABLE_PASS");
  return tokens;
}

TEST(PackParameters, TextsAreTheSame) { EXPECT_EQ(generated(""), generated("pack_parameters")); }

}  // namespace
}  // namespace brrr
