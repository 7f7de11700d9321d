// KV caches in 8 bits: which caches change, how, and what is refused.

#include "passes/precision/quantize_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "ops/quantized/int8_rows.h"
#include "passes/pipeline.h"
#include "support/temp_folder.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kHeads = 4, kKeyHeads = 2, kWidth = 8, kRoom = 24, kNew = 3;

/// New keys or values, appended to their cache at `position`.
Value appended(Graph& g, const char* name, Value position, DType dtype) {
  const Value cache =
      g.input(fmt::format("cache.{}.0", name), {1, kRoom, kKeyHeads * kWidth}, dtype, Role::cache);
  const Value part = g.input(name, {1, kNew, kKeyHeads * kWidth}, dtype);
  const Value grown = update_slice(cache, part, position, 1);
  g.update(cache, grown);
  return grown;
}

struct Decoding {
  Graph g;
  Value q, position, k, v;

  explicit Decoding(DType dtype = DType::f32)
      : q(g.input("q", {1, kNew, kHeads * kWidth}, dtype)),
        position(g.input("position", {}, DType::i32)),
        k(appended(g, "key", position, dtype)),
        v(appended(g, "value", position, dtype)) {
    AttentionOptions options;
    options.causal = true;
    options.scale = 0.35;
    options.position = position;
    const std::vector<Value> sources{q, k, v};
    g.output("y", attention(sources,
                            {.heads = kHeads,
                             .kv_heads = kKeyHeads,
                             .width = kWidth,
                             .value_width = kWidth,
                             .q = {0, 0, true},
                             .k = {1, 0, true},
                             .v = {2, 0, true},
                             .y_in_rows = true},
                            options)
                      .y);
  }
};

Target target_of_cpu() {
  static const Backend backend = cpu::cpu_backend();
  return backend.target();
}

TEST(QuantizeCache, CachesLieInInt8RowsWithAScaleForEachHead) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Decoding d(dtype);
    Notes notes;
    const Graph out = quantize_cache(d.g, target_of_cpu(), &notes);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("2 caches"), std::string::npos) << notes[0];
    for (const char* name : {"cache.key.0", "cache.value.0"}) {
      const NodeId cache = out.find_input(name);
      ASSERT_NE(cache, kNoNode);
      const Type& type = out.type({cache, 0});
      EXPECT_EQ(out.role(cache), Role::cache);
      EXPECT_EQ(type.storage, ops::int8_rows(3, kWidth));
      EXPECT_EQ(type.dtype, dtype);
      EXPECT_EQ(type.bytes(), kRoom * kKeyHeads * (kWidth + 4));
      const auto next = std::ranges::find(out.outputs(), cache, &Output::updates);
      ASSERT_NE(next, out.outputs().end());
      EXPECT_EQ(out.type(next->value), type);
    }
  }
}

TEST(QuantizeCache, ResultsStayNear) {
  const Decoding d;
  const Graph out = quantize_cache(d.g, target_of_cpu());
  reference::Tensors in = test::random_inputs(d.g, 3, -1, 1, 3);
  in.at("position").set_number(0, 20);
  reference::Tensors stored = in;
  for (auto& [name, tensor] : stored) tensor.type = out.type({out.find_input(name), 0});
  const RefTensor wanted = reference::evaluate(d.g, in).at("y"),
                  got = reference::evaluate(out, stored).at("y");
  double most = 0;
  for (size_t i = 0; i < wanted.data.size(); ++i)
    most = std::max(most, std::abs(got.data[i] - wanted.data[i]));
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 0.02);
}

TEST(QuantizeCache, RefusesCachesThatAttentionDoesNotReadAlone) {
  Decoding d;
  d.g.output("sum", sum(d.k, {0, 1, 2}));
  EXPECT_USER_ERROR(quantize_cache(d.g, target_of_cpu()),
                    "cannot store cache.key.0: something other than attention reads it");
  Graph unread;
  const Value position = unread.input("position", {}, DType::i32);
  appended(unread, "key", position, DType::f32);
  EXPECT_USER_ERROR(quantize_cache(unread, target_of_cpu()), "cannot store cache.key.0");
}

TEST(QuantizeCache, RefusesTargetsWithoutKernel) {
  Target target;
  target.name = "abacus";
  target.runs = [](const Graph&, NodeId) { return false; };
  EXPECT_USER_ERROR(quantize_cache(Decoding().g, target),
                    "abacus has no attention that reads a cache in int8");
}

TEST(QuantizeCache, OnlyKeysAndValuesAreReadInInt8) {
  Graph g;
  const Value qkv = g.input("qkv", {8, 24}, DType::f32);
  const Value mask = store(g.input("mask", {8, 8}, DType::f32), ops::int8_rows(2, 8));
  AttentionOptions options;
  options.mask = mask;
  const AttentionPlaces places{.heads = 1,
                               .kv_heads = 1,
                               .width = 8,
                               .value_width = 8,
                               .q = {0, 0, true},
                               .k = {0, 8, true},
                               .v = {0, 16, true},
                               .y_in_rows = true};
  EXPECT_USER_ERROR(attention(std::span(&qkv, 1), places, options),
                    "only keys and values may lie in int8 rows");
  const Value stored = store(qkv, ops::int8_rows(2, 8));
  EXPECT_USER_ERROR(attention(std::span(&stored, 1), places, {}),
                    "keys or values alone may lie in int8 rows");
}

TEST(QuantizeCache, RowsWithOneScaleAreNotUpdated) {
  Graph g;
  const Storage storage{Layout::rows, Quantized{8, 1, 0}};
  const Value x = store(g.input("x", {6, 8}, DType::f32), storage),
              part = store(g.input("part", {2, 8}, DType::f32), storage);
  EXPECT_USER_ERROR(update_slice(x, part, g.input("at", {}, DType::i32), 0), "x must lie in rows");
  EXPECT_USER_ERROR(update_rows(x, g.input("slots", {2}, DType::i32), part), "x must lie in rows");
}

TEST(QuantizeCache, GraphsWithoutCacheStay) {
  Graph g;
  g.output("y", exp(g.input("x", {3}, DType::f32)));
  EXPECT_EQ(quantize_cache(g, target_of_cpu()), g);
}

TEST(QuantizeCache, PipelineStoresCachesOnlyWhereAsked) {
  const Graph g = Decoding().g;
  for (const CachePrecision cache : {CachePrecision::computed, CachePrecision::int8}) {
    const Graph out = run_pipeline(g, target_of_cpu(), for_inference(DType::f32, {}, cache));
    EXPECT_EQ(out.type({out.find_input("cache.key.0"), 0}).storage.is_plain(),
              cache == CachePrecision::computed);
  }
}

}  // namespace
}  // namespace brrr
