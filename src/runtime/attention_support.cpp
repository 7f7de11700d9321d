#include "runtime/attention_support.h"

#include <array>

#include "ops/ops.h"

namespace brrr {
namespace {

constexpr int64_t kWidth = 8;

/// One head whose q, k and v lie in the rows of these sources, from these columns on.
AttentionPlaces one_head(const HeadPlace& q, const HeadPlace& k, const HeadPlace& v) {
  return {.heads = 1,
          .kv_heads = 1,
          .width = kWidth,
          .value_width = kWidth,
          .q = q,
          .k = k,
          .v = v,
          .y_in_rows = true};
}

/// Whether the backend has a kernel for every attention and attention_grad node.
bool runs_attention(const Backend& backend, const Graph& g) {
  for (NodeId id = 0; id < g.size(); ++id)
    if (!g.is_input(id) && g.node(id).op->is_attention && !backend.target().runs(g, id))
      return false;
  return true;
}

}  // namespace

bool runs_ragged_attention(const Backend& backend, bool gradient) {
  Graph g;
  const Value x = g.parameter("x", {1, 3 * kWidth});
  AttentionOptions options;
  options.starts = g.input("starts", {2}, DType::i32);
  const AttentionPlaces places = one_head({0, 0, true}, {0, kWidth, true}, {0, 2 * kWidth, true});
  g.output("loss", sum(attention(std::span(&x, 1), places, options).y, {0, 1}));
  return runs_attention(backend, gradient ? differentiate(g) : g);
}

bool runs_block_attention(const Backend& backend) {
  constexpr int64_t kRows = 16;
  Graph g;
  const std::array<Value, 2> sources{g.input("x", {1, kWidth}, DType::f32),
                                     g.input("pool", {kRows, kWidth}, DType::f32)};
  AttentionOptions options;
  options.causal = true;
  options.starts = g.input("starts", {2}, DType::i32);
  options.lengths = g.input("lengths", {1}, DType::i32);
  options.blocks = g.input("blocks", {1, 1}, DType::i32);
  options.block_rows = kRows;
  g.output("y", attention(sources, one_head({0, 0, true}, {1, 0, true}, {1, 0, true}), options).y);
  return runs_attention(backend, g);
}

}  // namespace brrr
