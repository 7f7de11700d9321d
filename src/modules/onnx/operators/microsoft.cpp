// Operators of com.microsoft: what ONNX Runtime's optimiser joins, and attention as it has it.

#include <cmath>

#include "modules/onnx/call.h"
#include "modules/onnx/operators/attend.h"
#include "modules/onnx/operators/products.h"

namespace brrr::onnx {
namespace {

constexpr std::string_view kDomain = "com.microsoft";

void fused_matmul(Call& c) {
  if (c.integer("transBatchA", 0) != 0 || c.integer("transBatchB", 0) != 0)
    c.refuse("batches that are transposed");
  const Value a = c.in(0), b = c.in(1);
  if (a.shape().rank() < 2 || b.shape().rank() < 2) c.refuse("a factor that is a vector");
  const Value y = matmul(a, b, c.integer("transA", 0) != 0, c.integer("transB", 0) != 0);
  const double alpha = c.number("alpha", 1.0);
  c.out(alpha == 1 ? y : y * alpha);
}

// -- activations
// ----------------------------------------------------------------------------------

template <Gelu kHow>
void gelu_with_bias(Call& c) {
  c.out(gelu(c.has(1) ? c.in(0) + c.in(1) : c.in(0), kHow));
}

void quick_gelu(Call& c) {
  const Value x = c.in(0);
  c.out(x * sigmoid(x * c.number("alpha", 1.702)));
}

// -- norms
// ----------------------------------------------------------------------------------------

DType norm_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// [...] -> [..., 1]
Value as_column(Value x) {
  Shape shape = x.shape();
  shape.push_back(Dim(1));
  return reshape(x, shape);
}

struct Norm {
  Value y, rstd;
  std::optional<Value> mean;
};

/// Normalises the last axis. An absent weight is 1, an absent bias 0.
Norm norm_of(Value x, std::optional<Value> weight, std::optional<Value> bias, double eps,
             bool centred) {
  const DType dtype = x.dtype(), wide = norm_dtype(dtype);
  const Shape row{x.shape()[-1]};
  const Value w = weight ? cast(*weight, wide) : full(*x.graph, row, 1, wide);
  if (!centred) {
    const RmsNorm norm = rms_norm(cast(x, wide), w, eps);
    return {cast(norm.y, dtype), as_column(norm.rstd), std::nullopt};
  }
  const Value b = bias ? cast(*bias, wide) : full(*x.graph, row, 0, wide);
  const LayerNorm norm = layer_norm(cast(x, wide), w, b, eps);
  return {cast(norm.y, dtype), as_column(norm.rstd), as_column(norm.mean)};
}

/// Operands: input, skip, gamma, (beta,) bias.
template <bool kCentred>
void skip_norm(Call& c) {
  constexpr size_t kBias = kCentred ? 4 : 3;
  Value x = c.in(0) + c.in(1);
  if (c.has(kBias)) x = x + c.in(kBias);
  const auto beta = kCentred ? c.optional(3) : std::nullopt;
  const double eps = c.number("epsilon", kCentred ? 1e-12 : 1e-5);
  const Norm norm = norm_of(x, c.in(2), beta, eps, kCentred);
  c.out(norm.y);
  if (norm.mean) c.out(1, *norm.mean);
  c.out(2, norm.rstd);
  c.out(3, x);
}

void simplified_norm(Call& c) {
  const Value x = c.in(0);
  if (c.axis(c.integer("axis", -1), x.shape().rank()) != x.shape().rank() - 1)
    c.refuse("an axis that is not the last");
  const Norm norm = norm_of(x, c.in(1), std::nullopt, c.number("epsilon", 1e-5), false);
  c.out(norm.y);
  c.out(1, norm.rstd);
}

void embed_layer_norm(Call& c) {
  const Value ids = c.in(0);
  if (ids.shape().rank() != 2) c.fail("expected ids [B, T]; got {}", ids.type().str());
  const int64_t length = ids.shape().size(1);
  Value x = gather(c.in(2), ids, 0);
  x = x + (c.has(8) ? gather(c.in(3), c.in(8), 0) : slice(c.in(3), 0, 0, length));
  if (c.has(1) && c.has(4)) x = x + gather(c.in(4), c.in(1), 0);
  c.out(norm_of(x, c.in(5), c.in(6), c.number("epsilon", 1e-12), true).y);
  if (c.wants(1)) {
    const Value none = full(c.graph(), {ids.shape()[0]}, 0, DType::i32);
    c.out(1, c.has(7) ? sum(cast(c.in(7), DType::i32), {1}) : none);
  }
  c.out(2, x);
}

// -- attention
// ------------------------------------------------------------------------------------

double scale_of(Call& c, const Value& q) {
  const double scale = c.number("scale", 0.0);
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.shape().size(3)));
}

/// Keys that take part, from a mask of [B] lengths, [B, S], [B, T, S] or [B, 1, T, S].
void mask_keys(Call& c, size_t i, Attending& a) {
  if (!c.has(i)) return;
  const Value mask = c.in(i);
  const Shape s = mask.shape();
  const Dim batch = a.q.shape()[0];
  if (s.rank() == 1 && s[0] == batch) {
    a.keys = cast(mask, DType::i32);
    return;
  }
  const Value visible = cast(mask, DType::boolean);
  if (s.rank() == 2)
    a.mask = reshape(visible, {s[0], Dim(1), Dim(1), s[1]});
  else if (s.rank() == 3)
    a.mask = reshape(visible, {s[0], Dim(1), s[1], s[2]});
  else if (s.rank() == 4)
    a.mask = visible;
  else
    c.refuse("a mask {}", s.str());
  a.masked = c.number("mask_filter_value", -10000.0);
}

/// A bias that is added to the scores, beside a mask.
void add_bias(Call& c, size_t i, Attending& a) {
  if (!c.has(i)) return;
  Value bias = c.in(i);
  if (a.mask) {
    const Value hidden = c.scalar_like(a.masked, bias);
    bias = bias + where(*a.mask, c.scalar_like(0.0, bias), hidden);
  }
  a.mask = bias;
}

Value behind_past(std::optional<Value> past, Value x) {
  if (!past) return x;
  const std::vector<Value> parts{*past, x};
  return concat(parts, 2);
}

/// Attention of x [B, T, q k v], whose operands are a mask, a past [2, B, H, P, D] and a bias of
/// the scores.
void attention_of_packed(Call& c, Value x, size_t mask, size_t past_keys, size_t bias) {
  const int64_t heads = c.integer("num_heads");
  if (c.integer("do_rotary", 0) != 0) c.refuse("do_rotary");
  const int64_t third = x.shape().size(2) / 3;
  const std::vector<int64_t> sizes =
      c.integer_list("qkv_hidden_sizes").value_or(std::vector<int64_t>{third, third, third});
  if (sizes.size() != 3 || heads < 1 || sizes[0] + sizes[1] + sizes[2] != x.shape().size(2))
    c.fail("{} does not hold q, k and v", x.type().str());
  Attending a;
  a.q = split_heads(slice(x, 2, 0, sizes[0]), heads);
  a.k = split_heads(slice(x, 2, sizes[0], sizes[1]), heads);
  a.v = split_heads(slice(x, 2, sizes[0] + sizes[1], sizes[2]), heads);
  if (c.has(past_keys)) {
    const Value past = c.in(past_keys);
    Shape one = past.shape();
    one.erase(0);
    a.offset = c.scalar(past.shape().size(3), DType::i32);
    a.k = behind_past(reshape(slice(past, 0, 0, 1), one), a.k);
    a.v = behind_past(reshape(slice(past, 0, 1, 1), one), a.v);
  }
  a.scale = scale_of(c, a.q);
  a.causal = c.integer("unidirectional", 0) != 0;
  mask_keys(c, mask, a);
  add_bias(c, bias, a);
  c.out(join_heads(attend(a).y));
  if (!c.wants(1)) return;
  Shape pair = a.k.shape();
  pair.insert(0, Dim(1));
  const std::vector<Value> both{reshape(a.k, pair), reshape(a.v, pair)};
  c.out(1, concat(both, 0));
}

/// Operands: input, weights, bias, mask_index, past, attention_bias.
void packed_attention(Call& c) {
  if (c.has(6)) c.refuse("past_sequence_length");
  Value x = matmul(c.in(0), c.in(1));
  if (c.has(2)) x = x + c.in(2);
  attention_of_packed(c, x, 3, 4, 5);
}

/// Operands: input, weight, bias, input_scale, weight_scale, mask_index, input_zero_point,
/// weight_zero_point, past.
void quantised_attention(Call& c) {
  const Value product = integer_product(shifted(c, 0, 6, false), shifted(c, 1, 7, false));
  const Value factor = reshape(c.in(3), {}) * c.in(4);
  attention_of_packed(c, cast(product, factor.dtype()) * factor + c.in(2), 5, 8, c.inputs());
}

/// Operands: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value.
void multi_head_attention(Call& c) {
  const int64_t heads = c.integer("num_heads");
  if (!c.has(1) || !c.has(2)) c.refuse("query, key and value in one operand");
  for (size_t i = 8; i < c.inputs(); ++i)
    if (c.has(i)) c.refuse("operand {}", i);
  std::array<Value, 3> parts;
  int64_t column = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Value x = c.in(i);
    const int64_t width = x.shape().size(-1);
    if (x.shape().rank() == 3) {
      parts[i] = split_heads(c.has(3) ? x + slice(c.in(3), 0, column, width) : x, heads);
      column += width;
    } else {
      if (x.shape().rank() != 4 || c.has(3)) c.refuse("operand {} as {}", i, x.type().str());
      parts[i] = x;
    }
  }
  Attending a;
  a.q = parts[0];
  a.k = behind_past(c.optional(6), parts[1]);
  a.v = behind_past(c.optional(7), parts[2]);
  if (c.has(6)) a.offset = c.scalar(c.in(6).shape().size(2), DType::i32);
  a.scale = scale_of(c, a.q);
  a.causal = c.integer("unidirectional", 0) != 0;
  // Its definition does not say beside which key the first query stands then.
  if (a.causal && parts[1].shape()[2] != parts[0].shape()[2])
    c.refuse("unidirectional with {} queries and {} keys", parts[0].shape()[2].str(),
             parts[1].shape()[2].str());
  mask_keys(c, 4, a);
  add_bias(c, 5, a);
  c.out(join_heads(attend(a).y));
  c.out(1, a.k);
  c.out(2, a.v);
}

/// Where the new tokens stand: [B, T], from the number of tokens before them, [B].
Value positions_from(Call& c, Value before, int64_t length) {
  const Shape places{before.shape()[0], Dim(length)};
  return iota(c.graph(), places, 1, DType::i64) +
         reshape(cast(before, DType::i64), {before.shape()[0], Dim(1)});
}

/// Operands: query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache,
/// sin_cache, position_ids, attention_bias, head_sink.
void group_query_attention(Call& c) {
  const int64_t heads = c.integer("num_heads"), kv = c.integer("kv_num_heads");
  if (c.has(11) || c.integer("smooth_softmax", 0) > 0) c.refuse("a sink of the softmax");
  if (heads < 1 || kv < 1 || heads % kv != 0) c.fail("{} heads share {}", heads, kv);
  Value q = c.in(0), k, v;
  if (c.has(1)) {
    k = c.in(1);
    v = c.in(2);
  } else {  // side by side
    const int64_t width = q.shape().size(2) / (heads + 2 * kv);
    k = slice(q, 2, heads * width, kv * width);
    v = slice(q, 2, (heads + kv) * width, kv * width);
    q = slice(q, 2, 0, heads * width);
  }
  const int64_t length = q.shape().size(1);
  q = split_heads(q, heads);
  k = split_heads(k, kv);
  v = split_heads(v, kv);
  const Value keys = reshape(cast(c.in(5), DType::i32), {q.shape()[0]}) + c.scalar(1, DType::i32);
  const Value before = keys - c.scalar(length, DType::i32);
  if (c.integer("do_rotary", 0) != 0) {
    const Value at = c.has(9) ? c.in(9) : positions_from(c, before, length);
    const Value cos = gather(c.in(7), at, 0), sin = gather(c.in(8), at, 0);
    const bool interleaved = c.integer("rotary_interleaved", 0) != 0;
    q = turned(q, cos, sin, interleaved);
    k = turned(k, cos, sin, interleaved);
  }
  const int64_t total = c.known_integer(6), own = c.has(3) ? c.in(3).shape().size(2) : 0;
  const auto grown = [&](size_t past, Value fresh) {
    if (own >= total) return with_rows(c.in(past), fresh, before, 2, false);
    Shape shape = fresh.shape();
    shape[2] = Dim(total - own);
    const Value room = full(c.graph(), shape, 0, fresh.dtype());
    return with_rows(own > 0 ? behind_past(c.in(past), room) : room, fresh, before, 2, false);
  };
  Attending a;
  a.q = q;
  a.k = grown(3, k);
  a.v = grown(4, v);
  a.scale = scale_of(c, q);
  a.causal = true;
  a.softcap = c.number("softcap", 0.0);
  a.offset = before;
  a.keys = keys;
  const int64_t window = c.integer("local_window_size", -1);
  if (window > 0) a.left = window - 1;
  add_bias(c, 10, a);
  c.out(join_heads(attend(a).y));
  c.out(1, a.k);
  c.out(2, a.v);
}

/// Operands: input, position_ids, cos_cache, sin_cache.
void rotary_of_microsoft(Call& c) {
  const Value x = c.in(0), at = c.in(1);
  if (c.integer("is_packed_batching", 0) != 0) c.refuse("packed batches");
  const bool flat = x.shape().rank() == 3;
  const int64_t half = c.in(2).shape().size(-1);
  int64_t heads = c.integer("num_heads", 0);
  if (flat && heads == 0) heads = x.shape().size(2) / (2 * half);
  if (flat && (heads < 1 || x.shape().size(2) % heads != 0)) c.fail("{} heads", heads);
  const Value by_heads = flat ? split_heads(x, heads) : x;
  const int64_t batch = x.shape().size(0), length = by_heads.shape().size(2);
  // One position is that of the first token.
  const Value places = at.shape().elements() == 1 && at.shape().rank() == 1
                           ? positions_from(c, broadcast_to(at, {batch}), length)
                           : at;
  const Value y = turned(by_heads, gather(c.in(2), places, 0), gather(c.in(3), places, 0),
                         c.integer("interleaved", 0) != 0);
  c.out(flat ? join_heads(y) : y);
}

const OperatorRow kMicrosoftRows[] = {
    {"", "SimplifiedLayerNormalization", simplified_norm},
    {kDomain, "SimplifiedLayerNormalization", simplified_norm},
    {kDomain, "FusedMatMul", fused_matmul},
    {kDomain, "TransposeMatMul", fused_matmul},
    {kDomain, "Gelu", gelu_with_bias<Gelu::erf>},
    {kDomain, "BiasGelu", gelu_with_bias<Gelu::erf>},
    {kDomain, "FastGelu", gelu_with_bias<Gelu::tanh>},
    {kDomain, "QuickGelu", quick_gelu},
    {kDomain, "SkipLayerNormalization", skip_norm<true>},
    {kDomain, "SkipSimplifiedLayerNormalization", skip_norm<false>},
    {kDomain, "EmbedLayerNormalization", embed_layer_norm},
    {kDomain, "Attention", packed_attention},
    {kDomain, "QAttention", quantised_attention},
    {kDomain, "MultiHeadAttention", multi_head_attention},
    {kDomain, "GroupQueryAttention", group_query_attention},
    {kDomain, "RotaryEmbedding", rotary_of_microsoft},
};

}  // namespace

std::span<const OperatorRow> microsoft_operators() { return kMicrosoftRows; }

}  // namespace brrr::onnx
