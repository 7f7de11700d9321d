// Llama's q, k, v and gate, up as one product each: the engine holds them instead of the
// parameters, and texts stay.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "models/llama/llama_config.h"
#include "ops/fused.h"
#include "passes/pipeline.h"
#include "passes/weights/derived_weight.h"
#include "runtime/engine.h"
#include "support/generated.h"

namespace brrr {
namespace {

models::ModelPtr model(bool has_bias) {
  models::LlamaConfig c;
  c.vocab_size = 101;
  c.max_position_embeddings = 96;
  c.hidden_size = 64;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 96;
  c.qkv_bias = has_bias;
  return c.model();
}

Graph compiled(bool has_bias, DType precision, std::set<std::string> disabled) {
  PipelineOptions p;
  p.precision = p.parameter_dtype = precision;
  p.refresher = Refresher::loader;
  p.disabled = std::move(disabled);
  return run_pipeline(model(has_bias)->decode({.capacity = 96, .cache = precision}),
                      cpu::cpu_backend().target(), p);
}

size_t contractions(const Graph& g) {
  size_t n = 0;
  for (NodeId id = 0; id < g.size(); ++id)
    n += class_of(g.node(id)) == OpClass::contraction && !g.node(id).op->is_attention;
  return n;
}

TEST(JoinedProducts, TakeThePlaceOfTheirParameters) {
  for (const DType precision : {DType::f32, DType::bf16})
    for (const bool has_bias : {false, true}) {
      const Graph apart = compiled(has_bias, precision, {"join_products"});
      const Graph joined = compiled(has_bias, precision, {});
      EXPECT_EQ(contractions(apart), 2u * 7 + 1);
      EXPECT_EQ(contractions(joined), 2u * 4 + 1);
      std::map<size_t, size_t> by_sources;
      for (const NodeId id : joined.inputs()) {
        const auto weight = derived_weight(joined.node(id).attrs);
        if (!weight) continue;
        ++by_sources[weight->sources.size()];
        for (const std::string& source : weight->sources)
          EXPECT_EQ(joined.find_input(source), kNoNode) << source;
      }
      EXPECT_EQ(by_sources[3], has_bias ? 4u : 2u) << "q, k, v and their biases";
      EXPECT_EQ(by_sources[2], 2u) << "gate, up";
      Engine one(cpu::cpu_backend()), other(cpu::cpu_backend());
      one.add(apart);
      other.add(joined);
      EXPECT_EQ(other.forecast().parameter_bytes, one.forecast().parameter_bytes)
          << "no weight is there twice";
    }
}

TEST(JoinedProducts, TextsAreTheSame) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const bool has_bias : {false, true})
      for (const bool use_cache : {true, false}) {
        infer::GeneratorOptions options;
        options.precision = precision;
        options.use_cache = use_cache;
        EXPECT_EQ(test::generated(model(has_bias), options),
                  test::generated(model(has_bias), options, "join_products"))
            << name_of(precision) << has_bias << use_cache;
      }
}

}  // namespace
}  // namespace brrr
