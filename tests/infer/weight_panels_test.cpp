// Parameters of products in panels: the same numbers, bit for bit, as with the parameters as they
// are.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/panels.h"
#include "infer/runner.h"
#include "models/gpt2/gpt2_config.h"
#include "modules/onnx/onnx_module.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "passes/weights/derived_weight.h"
#include "support/generated.h"
#include "support/gpt2.h"
#include "support/onnx_fields.h"
#include "train/fit.h"

namespace brrr {
namespace {

models::Gpt2Config config() {
  models::Gpt2Config c = test::tiny_gpt2(true);
  c.n_embd = 64;
  c.n_head = 2;
  c.n_positions = 96;
  c.vocab_size = 113;  // no multiple of a panel
  return c;
}

Graph compiled(const Backend& backend, DType dtype, int64_t tokens, const char* disabled,
               Notes* notes) {
  PipelineOptions p;
  p.precision = p.parameter_dtype = dtype;
  p.refresher = Refresher::loader;
  if (*disabled != '\0') p.disabled.insert(disabled);
  PipelineReport report;
  const Graph g = run_pipeline(config().model()->decode({1, tokens, config().n_positions, dtype}),
                               backend.target(), p, &report);
  for (const PassRecord& pass : report)
    if (pass.name == "weight_panels") *notes = pass.notes;
  return g;
}

class WeightPanels : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, WeightPanels, testing::Values(DType::bf16, DType::f32),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(WeightPanels, OfProductsAlone) {
  Notes notes;
  const Backend backend = cpu::cpu_backend();
  const Graph g = compiled(backend, GetParam(), 1, "", &notes);
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
  const Graph plain = compiled(backend, GetParam(), 1, "weight_panels", &notes);
  for (const NodeId id : plain.inputs()) EXPECT_NE(plain.role(id), Role::derived);
  EXPECT_EQ(g.size(), plain.size());
}

/// A matrix that is read in two orders, or by no product, stays.
TEST_P(WeightPanels, NotInTwoOrders) {
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
    const Value w = g.parameter("w", {64, 64}, GetParam());
    const Value x = g.input("x", {3, 64}, GetParam()), ids = g.input("ids", {3}, DType::i32);
    if (r.table) g.output("rows", embedding(w, ids));
    if (r.right) g.output("y", matmul(x, w));
    if (r.transposed) g.output("z", matmul(x, w, false, true));
    const Target target = backend.target();
    const Graph packed =
        derive_weights(weight_panels(g, target, Refresher::loader), target, Refresher::loader);
    EXPECT_EQ(packed.find_input("w") == kNoNode, r.packed);
  }
}

TEST(WeightPlaces, ArePermuted) {
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

TEST_P(WeightPanels, TextsAreTheSame) {
  infer::GeneratorOptions options;
  options.precision = GetParam();
  const models::ModelPtr model = config().model();
  EXPECT_EQ(test::generated(model, options), test::generated(model, options, "weight_panels"));
}

/// Panels of a file's weights are memory that the file as it is mapped does not need.
TEST(Runner, WeightsLieInPanelsWhereTheyFit) {
#ifdef BRRR_SANITIZED
  GTEST_SKIP() << "the sanitizer takes memory of its own";
#endif
  using namespace test::onnx_bytes;  // NOLINT: builders of bytes
  constexpr int64_t kWidth = 2048, kMiB = int64_t{1} << 20;
  std::vector<float> weights(static_cast<size_t>(kWidth * kWidth));  // 16 MiB
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 97) / 97 - 0.5f;
  const std::string bytes =
      test::onnx_bytes::model(input("x", kFloat, {2, kWidth}) +
                              initializer(tensor("w", kFloat, {kWidth, kWidth}, raw(weights))) +
                              node("MatMul", {"x", "w"}, {"y"}) + output("y", kFloat, {2, kWidth}));
  std::vector<float> x(static_cast<size_t>(2 * kWidth));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 89) / 89 - 0.5f;
  const PortValues inputs = {{"x", HostTensor::of<float>({2, kWidth}, x)}};
  std::vector<std::vector<float>> results;
  for (const int64_t room : {12 * kMiB, 300 * kMiB}) {
    infer::Memory memory;
    machine::trim_heap();  // as the runner does before it measures
    memory.limit = {resident_memory().needed() + room, "the limit of the test"};
    infer::Runner runner(onnx::open_module(onnx::File::parse(bytes, "m.onnx")), cpu::cpu_backend(),
                         {}, memory);
    const PortValues y = runner.run(inputs);
    const auto values = y.find("y")->second.tensor().as<float>();
    results.emplace_back(values.begin(), values.end());
    const bool in_panels = room > 200 * kMiB;
    EXPECT_EQ(runner.session().engine().lent_bytes(), in_panels ? 0 : 4 * kWidth * kWidth);
    EXPECT_EQ(runner.session().engine().forecast().total() >= 4 * kWidth * kWidth, in_panels);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace brrr
