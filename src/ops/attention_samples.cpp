#include "ops/attention_samples.h"

#include <cmath>
#include <optional>

#include "ops/attention.h"
#include "ops/quantized/int8_rows.h"
#include "ops/support.h"

namespace brrr::ops {
namespace {

/// Where q, k and v lie.
enum class Lie {
  apart,          // [..., H, T, D] and [..., K, S, D] and [..., K, S, Dv]
  apart_in_rows,  // [..., T, H D] and [..., S, K D] and [..., S, K Dv]
  in_one,         // [..., T, H D + K D + K Dv]
  q_and_kv,       // [..., T, H D] and [..., S, K Dv + K D]: v first
  q_and_cache,    // [..., T, H D] and [..., K, S, D + Dv]
  cached,  // q in [..., T, H D + K D + K Dv], whose other columns nobody reads; k and v apart
};

struct AttentionCase {
  Shape batch;
  int64_t t, s, d, dv;
  int64_t heads = 1, kv_heads = 1;
  Lie lie = Lie::apart;
  bool causal = false;
  int64_t window = 0;
  std::optional<int64_t> window_after = std::nullopt;
  std::optional<Shape> position = std::nullopt, lengths = std::nullopt;
  int64_t sequences = 0;  // of a ragged batch
  int64_t outside = 0;    // rows in front of its sequences and behind them
  int64_t table = 0;  // columns of the block table; keys are a pool of blocks of kSampleBlock rows
  Shape mask_shape = {};
  std::optional<DType> mask = std::nullopt;
  bool mask_by_distance = false;
  double p = 0, masked = -INFINITY;
  bool has_int8_keys = false;  // keys and values lie in int8 rows
};

constexpr int64_t kSampleBlock = 4;

// A boolean mask is wide enough to leave some key to every query.
const AttentionCase kAttentionCases[] = {
    {.batch = {2}, .t = 5, .s = 5, .d = 8, .dv = 8, .heads = 3, .kv_heads = 3, .causal = true},
    {.batch = {}, .t = 5, .s = 9, .d = 7, .dv = 3, .lie = Lie::apart_in_rows},
    {.batch = {2}, .t = 1, .s = 11, .d = 16, .dv = 16, .causal = true, .position = Shape{}},
    {.batch = {2},
     .t = 4,
     .s = 9,
     .d = 3,
     .dv = 5,
     .causal = true,
     .position = Shape{},
     .lengths = Shape{2}},
    {.batch = {2},
     .t = 3,
     .s = 37,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .mask_shape = {2, 1, 3, 37},
     .mask = DType::boolean},
    {.batch = {},
     .t = 5,
     .s = 4,
     .d = 4,
     .dv = 4,
     .heads = 3,
     .kv_heads = 3,
     .mask_shape = {5, 4},
     .mask = DType::boolean,
     .masked = -1e4},
    {.batch = {2},
     .t = 6,
     .s = 6,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .causal = true,
     .mask_shape = {2, 1, 6},
     .mask = DType::f32},
    {.batch = {2},
     .t = 5,
     .s = 7,
     .d = 4,
     .dv = 4,
     .mask_shape = {5, 1},
     .mask = DType::f32,
     .p = 0.4},
    {.batch = {2}, .t = 6, .s = 6, .d = 80, .dv = 80, .causal = true, .p = 0.25},
    {.batch = {1}, .t = 3, .s = 4, .d = 1, .dv = 1},
    // One product gives q, k and v.
    {.batch = {2},
     .t = 5,
     .s = 5,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .causal = true},
    {.batch = {}, .t = 7, .s = 7, .d = 5, .dv = 5, .heads = 3, .kv_heads = 3, .lie = Lie::in_one},
    {.batch = {2, 2},
     .t = 4,
     .s = 4,
     .d = 3,
     .dv = 3,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .causal = true,
     .lengths = Shape{2, 1}},
    {.batch = {2},
     .t = 11,
     .s = 11,
     .d = 2,
     .dv = 2,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .mask_shape = {2, 1, 1, 11},
     .mask = DType::boolean},
    {.batch = {3},
     .t = 4,
     .s = 4,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .causal = true,
     .mask_shape = {2, 1, 4},
     .mask = DType::f32},
    {.batch = {2}, .t = 6, .s = 6, .d = 8, .dv = 8, .lie = Lie::in_one, .causal = true, .p = 0.25},
    {.batch = {1}, .t = 1, .s = 1, .d = 1, .dv = 1, .lie = Lie::in_one},
    // Fewer key and value heads.
    {.batch = {2}, .t = 5, .s = 6, .d = 4, .dv = 3, .heads = 4, .kv_heads = 2},
    {.batch = {2},
     .t = 5,
     .s = 5,
     .d = 4,
     .dv = 3,
     .heads = 6,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .causal = true,
     .p = 0.25},
    {.batch = {},
     .t = 5,
     .s = 8,
     .d = 4,
     .dv = 4,
     .heads = 3,
     .kv_heads = 1,
     .lie = Lie::apart_in_rows,
     .mask_shape = {3, 5, 1},
     .mask = DType::f32},
    {.batch = {2},
     .t = 3,
     .s = 8,
     .d = 4,
     .dv = 2,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::q_and_kv,
     .causal = true,
     .position = Shape{2}},
    // Windows.
    {.batch = {2}, .t = 9, .s = 9, .d = 4, .dv = 4, .causal = true, .window = 3},
    {.batch = {2}, .t = 6, .s = 9, .d = 4, .dv = 4, .window = 2},
    {.batch = {2},
     .t = 3,
     .s = 12,
     .d = 4,
     .dv = 4,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::q_and_cache,
     .causal = true,
     .window = 4,
     .position = Shape{2},
     .p = 0.25},
    {.batch = {2},
     .t = 7,
     .s = 7,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 1,
     .lie = Lie::in_one,
     .causal = true,
     .window = 2,
     .mask_shape = {7, 7},
     .mask = DType::f32},
    // Windows on both sides of a query.
    {.batch = {2},
     .t = 9,
     .s = 9,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .window = 3,
     .window_after = 2},
    {.batch = {2}, .t = 7, .s = 9, .d = 4, .dv = 4, .window_after = 3, .lengths = Shape{2}},
    {.batch = {2},
     .t = 3,
     .s = 12,
     .d = 4,
     .dv = 4,
     .window = 2,
     .window_after = 1,
     .position = Shape{2},
     .p = 0.25},
    // A position for each sequence; columns that nobody reads.
    {.batch = {3},
     .t = 2,
     .s = 9,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::cached,
     .causal = true,
     .position = Shape{3}},
    {.batch = {2},
     .t = 1,
     .s = 9,
     .d = 4,
     .dv = 4,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::cached,
     .causal = true,
     .position = Shape{2},
     .lengths = Shape{1}},
    {.batch = {2},
     .t = 9,
     .s = 6,
     .d = 4,
     .dv = 4,
     .heads = 3,
     .kv_heads = 3,
     .mask_shape = {3, 19},
     .mask = DType::f32,
     .mask_by_distance = true},
    // Keys and values of a cache in int8 rows.
    {.batch = {2},
     .t = 1,
     .s = 29,
     .d = 16,
     .dv = 16,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::cached,
     .causal = true,
     .position = Shape{},
     .has_int8_keys = true},
    {.batch = {1},
     .t = 7,
     .s = 211,
     .d = 20,
     .dv = 12,
     .heads = 6,
     .kv_heads = 3,
     .lie = Lie::apart_in_rows,
     .causal = true,
     .window = 90,
     .position = Shape{},
     .has_int8_keys = true},
    {.batch = {},
     .t = 9,
     .s = 44,
     .d = 32,
     .dv = 32,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::apart_in_rows,
     .causal = true,
     .sequences = 3,
     .table = 6,
     .has_int8_keys = true},
    // Ragged batches.
    {.batch = {},
     .t = 21,
     .s = 21,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .sequences = 3,
     .mask_shape = {2, 41},
     .mask = DType::f32,
     .mask_by_distance = true},
    {.batch = {},
     .t = 23,
     .s = 23,
     .d = 4,
     .dv = 3,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .sequences = 4,
     .outside = 2},
    {.batch = {},
     .t = 19,
     .s = 19,
     .d = 5,
     .dv = 5,
     .heads = 2,
     .kv_heads = 2,
     .causal = true,
     .sequences = 3},
    {.batch = {},
     .t = 25,
     .s = 25,
     .d = 4,
     .dv = 4,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::in_one,
     .window = 4,
     .window_after = 3,
     .sequences = 3,
     .outside = 1},
    {.batch = {},
     .t = 17,
     .s = 17,
     .d = 4,
     .dv = 4,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::apart_in_rows,
     .causal = true,
     .window = 3,
     .sequences = 2,
     .mask_shape = {17},
     .mask = DType::f32,
     .p = 0.3},
    {.batch = {},
     .t = 9,
     .s = 24,
     .d = 4,
     .dv = 6,
     .heads = 4,
     .kv_heads = 2,
     .lie = Lie::apart_in_rows,
     .causal = true,
     .sequences = 3,
     .outside = 1,
     .table = 5},
    {.batch = {},
     .t = 6,
     .s = 40,
     .d = 8,
     .dv = 8,
     .heads = 2,
     .kv_heads = 2,
     .lie = Lie::apart_in_rows,
     .causal = true,
     .window = 5,
     .sequences = 2,
     .table = 4},
};

Shape axes_of(const Shape& batch, std::initializer_list<int64_t> more) {
  Shape s = batch;
  for (int64_t n : more) s.push_back(Dim(n));
  return s;
}

struct Sources {
  std::vector<Shape> shapes;
  std::array<HeadPlace, 3> places;  // q, k, v
};

Sources sources_of(const AttentionCase& c) {
  const int64_t q = c.heads * c.d, k = c.kv_heads * c.d, v = c.kv_heads * c.dv;
  switch (c.lie) {
    case Lie::apart:
      return {{axes_of(c.batch, {c.heads, c.t, c.d}), axes_of(c.batch, {c.kv_heads, c.s, c.d}),
               axes_of(c.batch, {c.kv_heads, c.s, c.dv})},
              {{{0, 0, false}, {1, 0, false}, {2, 0, false}}}};
    case Lie::apart_in_rows:
      return {{axes_of(c.batch, {c.t, q}), axes_of(c.batch, {c.s, k}), axes_of(c.batch, {c.s, v})},
              {{{0, 0, true}, {1, 0, true}, {2, 0, true}}}};
    case Lie::in_one:
      return {{axes_of(c.batch, {c.t, q + k + v})},
              {{{0, 0, true}, {0, q, true}, {0, q + k, true}}}};
    case Lie::q_and_kv:
      return {{axes_of(c.batch, {c.t, q}), axes_of(c.batch, {c.s, v + k})},
              {{{0, 0, true}, {1, v, true}, {1, 0, true}}}};
    case Lie::q_and_cache:
      return {{axes_of(c.batch, {c.t, q}), axes_of(c.batch, {c.kv_heads, c.s, c.d + c.dv})},
              {{{0, 0, true}, {1, 0, false}, {1, c.d, false}}}};
    case Lie::cached:
      break;
  }
  return {{axes_of(c.batch, {c.t, q + k + v}), axes_of(c.batch, {c.kv_heads, c.s, c.d}),
           axes_of(c.batch, {c.kv_heads, c.s, c.dv})},
          {{{0, 0, true}, {1, 0, false}, {2, 0, false}}}};
}

Sample attention_sample(const AttentionCase& c, bool gradient) {
  const Sources sources = sources_of(c);
  Sample sample;
  for (const Shape& s : sources.shapes) sample.in.push_back(tensor(s));
  for (size_t i = 1; c.has_int8_keys && i < 3; ++i)
    sample.in[i] = int8_rows_operand(sources.shapes[i], i == 1 ? c.d : c.dv);
  const bool y_in_rows = sources.places[0].in_rows;
  sample.attrs = {{"causal", c.causal},
                  {"heads", c.heads},
                  {"kv_heads", c.kv_heads},
                  {"lengths", c.lengths.has_value()},
                  {"mask", c.mask.has_value()},
                  {"masked", c.masked},
                  {"p", c.p},
                  {"position", c.position.has_value()},
                  {"scale", 1 / std::sqrt(static_cast<double>(c.d))},
                  {"stream", int64_t{5}},
                  {"value_width", c.dv},
                  {"width", c.d},
                  {"window", c.window},
                  {"y_in_rows", y_in_rows}};
  if (c.window_after) sample.attrs.set("window_after", *c.window_after);
  constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    const HeadPlace& place = sources.places[i];
    sample.attrs.set(kNames[i], std::vector<int64_t>{place.source, place.column, place.in_rows});
  }
  if (gradient) {  // an lse as large as makes probabilities of the scores
    const Shape y = y_in_rows ? axes_of(c.batch, {c.t, c.heads * c.dv})
                              : axes_of(c.batch, {c.heads, c.t, c.dv});
    const Shape lse = axes_of(c.batch, {c.heads, c.t});
    sample.in.push_back(tensor(y));
    sample.in.push_back(tensor(lse, 2, 4));
    sample.in.push_back(tensor(y));
    sample.attrs.set("dlse", c.causal);
  }
  // Under a window a query of a large position would see nothing.
  const double furthest = c.window > 0 ? static_cast<double>(c.s - c.t + 1) : 4;
  if (c.position) sample.in.push_back(tensor(*c.position, 0, furthest, DType::i32));
  if (c.mask)
    sample.in.push_back(c.mask == DType::boolean ? tensor(c.mask_shape, 0, 2, DType::boolean)
                                                 : tensor(c.mask_shape));
  if (c.mask_by_distance) sample.attrs.set("mask_by_distance", true);
  if (c.lengths)
    sample.in.push_back(tensor(*c.lengths, 1, static_cast<double>(c.s + 1), DType::i32));
  if (c.sequences > 0) {
    sample.in.push_back(tensor({c.sequences + 1}, static_cast<double>(c.outside),
                               static_cast<double>(c.t - c.outside + 1), DType::i32));
    sample.in.back().is_partition = true;
    sample.attrs.set("starts", true);
    if (c.causal && c.table == 0) sample.attrs.set("longest", c.t);
  }
  if (c.table > 0) {
    // The operand lengths precedes starts.
    sample.in.insert(sample.in.end() - 1,
                     tensor({c.sequences}, static_cast<double>(c.t),
                            static_cast<double>(c.table * kSampleBlock + 1), DType::i32));
    sample.in.push_back(
        tensor({c.sequences, c.table}, 0, static_cast<double>(c.s / kSampleBlock), DType::i32));
    sample.attrs.set("lengths", true);
    sample.attrs.set("block_rows", kSampleBlock);
  }
  if (c.p > 0) sample.in.push_back(tensor({2}, 0, 1000, DType::i32));
  if (gradient && c.causal) sample.in.push_back(tensor(axes_of(c.batch, {c.heads, c.t})));
  return sample;
}

}  // namespace

std::vector<Sample> attention_samples(bool gradient) {
  std::vector<Sample> out;
  for (const AttentionCase& c : kAttentionCases)
    if (!gradient || (c.lie != Lie::cached && c.table == 0 && !c.has_int8_keys))
      out.push_back(attention_sample(c, gradient));
  return out;
}

}  // namespace brrr::ops
