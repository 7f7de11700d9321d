#include "modules/onnx/operators/attend.h"

#include <numeric>

namespace brrr::onnx {
namespace {

/// [] or [B] -> [] or [B, 1, 1, 1]
Value of_batches(Value v) {
  if (v.shape().elements() == 1) return reshape(v, {});
  return reshape(v, {v.shape()[0], Dim(1), Dim(1), Dim(1)});
}

Value both(std::optional<Value> a, Value b) { return a ? logical_and(*a, b) : b; }

/// Which key each query may see by its place; nothing: all.
std::optional<Value> visible_places(const Attending& a) {
  Graph& g = *a.q.graph;
  const Shape pairs{a.q.shape()[-2], a.k.shape()[-2]};
  const Value key = iota(g, pairs, 1, DType::i32);
  Value query = iota(g, pairs, 0, DType::i32);
  if (a.offset) query = query + of_batches(*a.offset);
  std::optional<Value> visible;
  if (a.causal) visible = both(visible, less_equal(key, query));
  if (a.left >= 0) visible = both(visible, less_equal(query, key + scalar(g, a.left, DType::i32)));
  if (a.right >= 0)
    visible = both(visible, less_equal(key, query + scalar(g, a.right, DType::i32)));
  if (a.keys) visible = both(visible, less(key, of_batches(*a.keys)));
  return visible;
}

/// What is added to the scores: float, broadcasting to them; nothing: 0.
std::optional<Value> bias_of(const Attending& a, DType dtype) {
  Graph& g = *a.q.graph;
  const Value zero = scalar(g, 0.0, dtype), hidden = scalar(g, -INFINITY, dtype);
  std::optional<Value> bias;
  if (a.mask && a.mask->dtype() != DType::boolean)
    bias = cast(*a.mask, dtype);
  else if (a.mask)
    bias = where(*a.mask, zero, scalar(g, a.masked, dtype));
  if (const auto visible = visible_places(a)) bias = where(*visible, bias ? *bias : zero, hidden);
  return bias;
}

/// Zeros for the queries that see no key: those whose row of the bias is -inf everywhere.
Value zeros_of_blind(Value y, Value bias) {
  Graph& g = *y.graph;
  const Value top = max(bias, {bias.shape().rank() - 1}, true);
  return where(equal(top, scalar(g, -INFINITY, bias.dtype())), scalar(g, 0.0, y.dtype()), y);
}

/// Whether the op `attention` says it all without a bias.
bool is_plain(const Attending& a) {
  const bool window = a.left >= 0 || a.right >= 0;
  if (a.mask || a.keys || window) return false;
  return !a.offset || a.offset->shape().rank() == 0;
}

Attended with_scores(const Attending& a, std::optional<Value> bias) {
  const DType dtype = a.q.dtype();
  const double root = std::sqrt(a.scale);
  const Value k = repeat_heads(a.k, a.q.shape().size(1));
  std::optional<Value> wanted;
  Value s = matmul(a.q * root, k * root, false, true);
  if (a.scores_wanted == 0) wanted = s;
  if (a.softcap != 0) s = tanh(s / a.softcap) * a.softcap;
  if (a.scores_wanted == 1) wanted = s;
  if (bias) s = s + cast(*bias, dtype);
  if (a.scores_wanted == 2) wanted = s;
  Value p = softmax(cast(s, a.softmax_dtype));
  // Without a mask a query sees its own key at least.
  if (bias && !is_plain(a)) p = zeros_of_blind(p, *bias);
  p = cast(p, dtype);
  if (a.scores_wanted == 3) wanted = p;
  return {matmul(p, repeat_heads(a.v, a.q.shape().size(1))), wanted};
}

}  // namespace

Attended attend(const Attending& a) {
  const DType dtype = a.q.dtype();
  AttentionOptions options;
  options.scale = a.scale;
  // Written out, match_attention makes one op of it, together with the moves of heads around it.
  // It cannot where q has 16 bits, whose softmax is in f32.
  const bool opened = bytes_of(dtype) >= bytes_of(DType::f32) || a.softcap != 0 ||
                      a.scores_wanted >= 0 || bytes_of(a.softmax_dtype) < bytes_of(DType::f32);
  if (!opened && is_plain(a)) {
    options.causal = a.causal;
    if (a.causal && a.offset) options.position = *a.offset;
    return {attention(a.q, a.k, a.v, options).y, std::nullopt};
  }
  std::optional<Value> bias = bias_of(a, dtype == DType::f64 ? DType::f64 : DType::f32);
  if (opened) return with_scores(a, bias);
  options.mask = cast(*bias, dtype);
  return {zeros_of_blind(attention(a.q, a.k, a.v, options).y, *bias), std::nullopt};
}

Value split_heads(Value x, int64_t heads) {
  const Shape s = x.shape();
  return transpose(reshape(x, {s[0], s[1], Dim(heads), Dim(s.size(2) / heads)}), {0, 2, 1, 3});
}

Value join_heads(Value x) {
  const Shape s = x.shape();
  return reshape(transpose(x, {0, 2, 1, 3}), {s[0], s[2], Dim(s.size(1) * s.size(3))});
}

Value repeat_heads(Value x, int64_t heads) {
  const Shape s = x.shape();
  if (s.size(1) == heads) return x;
  const Value one = reshape(x, {s[0], s[1], Dim(1), s[2], s[3]});
  const Dim each(heads / s.size(1));
  return reshape(broadcast_to(one, {s[0], s[1], each, s[2], s[3]}), {s[0], Dim(heads), s[2], s[3]});
}

Value turned(Value x, Value cos, Value sin, bool interleaved) {
  const Shape shape = x.shape();
  const int64_t half = cos.shape().size(-1), width = shape.size(3);
  // One axis for the heads.
  const auto of_heads = [](Value v) {
    Shape s = v.shape();
    s.insert(s.rank() - 2, Dim(1));
    return reshape(v, s);
  };
  cos = of_heads(cos);
  sin = of_heads(sin);
  const Value part = width == 2 * half ? x : slice(x, 3, 0, 2 * half);
  std::vector<Value> parts;
  if (interleaved) {
    const Shape one{shape[0], shape[1], shape[2], Dim(half), Dim(1)};
    const Shape flat{shape[0], shape[1], shape[2], Dim(half)};
    const Value pairs = reshape(part, {shape[0], shape[1], shape[2], Dim(half), Dim(2)});
    const Value a = reshape(slice(pairs, 4, 0, 1), flat), b = reshape(slice(pairs, 4, 1, 1), flat);
    const std::vector<Value> turned_pairs{reshape(a * cos - b * sin, one),
                                          reshape(a * sin + b * cos, one)};
    parts = {reshape(concat(turned_pairs, 4), part.shape())};
  } else {
    const Value a = slice(part, 3, 0, half), b = slice(part, 3, half, half);
    parts = {a * cos - b * sin, a * sin + b * cos};
  }
  if (width != 2 * half) parts.push_back(slice(x, 3, 2 * half, width - 2 * half));
  return parts.size() == 1 ? parts[0] : concat(parts, 3);
}

Value with_rows(Value past, Value update, Value first, int axis, bool circular) {
  Graph& g = *past.graph;
  const int64_t batch = past.shape().size(0), size = past.shape().size(axis),
                more = update.shape().size(axis);
  // Row j of batch b comes from the update where j - first[b] is one of its rows, else from past.
  // Both lie in one tensor, whose rows the batches count through: [B (S + U), ...].
  const Shape places{batch, size};
  const Value all = scalar(g, size, DType::i64), count = scalar(g, more, DType::i64),
              zero = scalar(g, 0, DType::i64);
  const Value place = iota(g, places, 1, DType::i64);
  Value row = place - reshape(cast(first, DType::i64), {batch, 1});
  if (circular) {
    row = fmod(row, all);
    row = where(less(row, zero), row + all, row);
  }
  const Value is_new = logical_and(less_equal(zero, row), less(row, count));
  const Value from = where(is_new, row + all, place) +
                     iota(g, places, 0, DType::i64) * scalar(g, size + more, DType::i64);
  // [B, axis, rest...]
  std::vector<int64_t> order(static_cast<size_t>(past.shape().rank()));
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + axis);
  order.insert(order.begin() + 1, axis);
  const std::vector<Value> parts{past, update};
  const Value rows = transpose(concat(parts, axis), order);
  Shape flat, moved = rows.shape();
  flat.push_back(Dim(batch * (size + more)));
  for (int a = 2; a < rows.shape().rank(); ++a) flat.push_back(rows.shape()[a]);
  moved[1] = Dim(size);
  Value y = reshape(gather(reshape(rows, flat), reshape(from, {batch * size}), 0), moved);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return transpose(y, back);
}

}  // namespace brrr::onnx
