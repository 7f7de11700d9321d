// Attention, rotary positions and what belongs to them.

#include <cmath>

#include "modules/onnx/call.h"
#include "modules/onnx/operators/attend.h"
#include "ops/control.h"

namespace brrr::onnx {
namespace {

/// A mask that ends before the last key hides the keys behind it.
Value padded_mask(Value mask, int64_t keys) {
  Graph& g = *mask.graph;
  const int rank = mask.shape().rank();
  const int64_t own = mask.shape().size(-1);
  if (own >= keys || own == 1) return mask;
  Shape rest = mask.shape();
  rest[-1] = Dim(keys - own);
  const bool is_bool = mask.dtype() == DType::boolean;
  const Value hidden =
      is_bool ? full(g, rest, 0, DType::boolean) : full(g, rest, -INFINITY, mask.dtype());
  const std::vector<Value> parts{mask, hidden};
  return concat(parts, rank - 1);
}

Value heads_of(Call& c, size_t i, const char* attribute) {
  const Value x = c.in(i);
  if (x.shape().rank() == 4) return x;
  if (x.shape().rank() != 3) c.fail("operand {} must have 3 or 4 axes; got {}", i, x.type().str());
  const int64_t heads = c.integer(attribute);
  if (heads < 1 || x.shape().size(2) % heads != 0)
    c.fail("{} = {} does not divide {}", attribute, heads, x.type().str());
  return split_heads(x, heads);
}

Value behind(std::optional<Value> past, Value x) {
  if (!past) return x;
  const std::vector<Value> parts{*past, x};
  return concat(parts, 2);
}

void check_heads(Call& c, const Value& q, const Value& k) {
  if (k.shape().size(1) < 1 || q.shape().size(1) % k.shape().size(1) != 0)
    c.fail("{} heads of keys do not divide {} heads of queries", k.shape().size(1),
           q.shape().size(1));
}

void attention_of_onnx(Call& c) {
  const bool flat = c.in(0).shape().rank() == 3;
  Attending a;
  a.q = heads_of(c, 0, "q_num_heads");
  a.k = behind(c.optional(4), heads_of(c, 1, "kv_num_heads"));
  a.v = behind(c.optional(5), heads_of(c, 2, "kv_num_heads"));
  check_heads(c, a.q, a.k);
  const double width = static_cast<double>(a.q.shape().size(3));
  a.scale = c.number("scale", 1 / std::sqrt(width));
  a.causal = c.integer("is_causal", 0) != 0;
  a.softcap = c.number("softcap", 0.0);
  a.left = c.integer("left_window_size", -1);
  a.right = c.integer("right_window_size", -1);
  if (c.has(3)) a.mask = padded_mask(c.in(3), a.k.shape().size(2));
  if (c.has(4)) a.offset = c.scalar(c.in(4).shape().size(2), DType::i32);
  if (c.has(6)) {
    a.keys = cast(c.in(6), DType::i32);
    if (!c.has(4)) a.offset = *a.keys - c.scalar(a.q.shape().size(2), DType::i32);
  }
  a.softmax_dtype = a.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  if (c.has_attribute("softmax_precision")) a.softmax_dtype = c.dtype("softmax_precision");
  if (c.wants(3)) a.scores_wanted = static_cast<int>(c.integer("qk_matmul_output_mode", 0));
  const Attended result = attend(a);
  c.out(flat ? join_heads(result.y) : result.y);
  c.out(1, a.k);
  c.out(2, a.v);
  if (result.scores) c.out(3, *result.scores);
}

/// The tensor that a graph of one input and one output makes of another.
Value modified(Call& c, const char* attribute, Value x) {
  if (!c.has_attribute(attribute)) return x;
  const std::vector<Item> out =
      c.lowering().lower_in_place(c.subgraph(attribute), c.names(), attribute, {{x, ""}});
  if (out.size() != 1 || !out[0].is_tensor() || out[0].value.shape() != x.shape())
    c.fail("{} must give one tensor of the shape {}", attribute, x.shape().str());
  return out[0].value;
}

void flex_attention(Call& c) {
  const Value q = c.in(0), k = c.in(1), v = c.in(2);
  if (q.shape().rank() != 4 || k.shape().rank() != 4 || v.shape().rank() != 4)
    c.fail("expected Q, K and V with 4 axes; got {}", q.type().str());
  check_heads(c, q, k);
  const int64_t heads = q.shape().size(1);
  const double scale = c.number("scale", 1 / std::sqrt(static_cast<double>(q.shape().size(3))));
  const DType dtype = q.dtype();
  const DType wide = c.dtype("softmax_precision", dtype == DType::f64 ? DType::f64 : DType::f32);
  if (!c.has_attribute("score_mod") && !c.has_attribute("prob_mod")) {
    AttentionOptions options;
    options.scale = scale;
    return c.out(attention(q, k, v, options).y);
  }
  Value s = matmul(cast(q, wide), cast(repeat_heads(k, heads), wide), false, true) * scale;
  s = modified(c, "score_mod", s);
  const Value p = modified(c, "prob_mod", softmax(s));
  c.out(matmul(cast(p, dtype), repeat_heads(v, heads)));
}

// -- positions
// ------------------------------------------------------------------------------------

/// The rows of a table [P, R / 2] at positions [B, T].
Value rows_at(Value table, Value positions) { return gather(table, positions, 0); }

void rotary_embedding(Call& c) {
  const Value x = c.in(0);
  const bool flat = x.shape().rank() == 3;
  const Value heads = heads_of(c, 0, "num_heads");
  Value cos = c.in(1), sin = c.in(2);
  if (c.has(3)) {
    cos = rows_at(cos, c.in(3));
    sin = rows_at(sin, c.in(3));
  }
  int64_t width = c.integer("rotary_embedding_dim", 0);
  if (width == 0) width = heads.shape().size(3);
  if (width % 2 != 0 || cos.shape().size(-1) != width / 2 || width > heads.shape().size(3))
    c.fail("angles {} do not fit {} columns of {}", cos.shape().str(), width, x.type().str());
  const Value y = turned(heads, cos, sin, c.integer("interleaved", 0) != 0);
  c.out(flat ? join_heads(y) : y);
}

void tensor_scatter(Call& c) {
  const Value past = c.in(0), update = c.in(1);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", -2), past.shape().rank()));
  const std::string mode = c.text("mode", "linear");
  if (mode != "linear" && mode != "circular") c.fail("mode = {}", mode);
  if (axis == 0) c.fail("the axis is that of the batches");
  const Value first = c.has(2) ? c.in(2) : full(c.graph(), {past.shape()[0]}, 0, DType::i64);
  c.out(with_rows(past, update, first, axis, mode == "circular"));
}

// -- linear attention
// -----------------------------------------------------------------------------

/// What a step of LinearAttention reads, in f32 or wider: [B, heads, T or 1, width] each.
struct LinearParts {
  Value q, k, v;
  std::optional<Value> keep, rate;  // e^decay, beta

  std::vector<Value> all() const {
    std::vector<Value> list{q, k, v};
    if (keep) list.push_back(*keep);
    if (rate) list.push_back(*rate);
    return list;
  }
  /// The same parts, as all() gives them.
  LinearParts with(const std::vector<Value>& list) const {
    LinearParts p{list[0], list[1], list[2], {}, {}};
    if (keep) p.keep = list[3];
    if (rate) p.rate = list.back();
    return p;
  }
};

/// [B, T, heads n] -> [B, heads, T, n]; one column a head, or one for all.
Value of_heads(Call& c, Value x, int64_t heads, DType dtype) {
  const int64_t width = x.shape().size(2);
  if (width % heads != 0 && width != 1)
    c.fail("{} does not share out {} heads", x.type().str(), heads);
  return cast(split_heads(x, width == 1 ? 1 : heads), dtype);
}

LinearParts linear_parts(Call& c, DType wide) {
  const int64_t kv = c.integer("kv_num_heads"), heads = c.integer("q_num_heads");
  if (kv < 1 || heads < 1) c.fail("{} heads of queries and {} of keys", heads, kv);
  if (kv < 1 || heads % kv != 0) c.fail("{} heads of keys for {} of queries", kv, heads);
  const std::string rule = c.text("update_rule", "gated_delta");
  if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta")
    c.refuse("update_rule = {}", rule);
  LinearParts p;
  p.q = of_heads(c, c.in(0), heads, wide);
  double scale = c.number("scale", 0.0);
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(p.q.shape().size(3)));
  p.q = p.q * scale;
  p.k = of_heads(c, c.in(1), kv, wide);
  p.v = of_heads(c, c.in(2), kv, wide);
  if (rule.starts_with("gated")) p.keep = exp(of_heads(c, c.in(4), kv, wide));
  if (rule.ends_with("delta")) p.rate = of_heads(c, c.in(5), kv, wide);
  return p;
}

struct LinearStep {
  Value y, state;  // [B, H, 1, Dv], [B, K, D, Dv]
};

LinearStep linear_step(const LinearParts& p, Value state) {
  const Shape q = p.q.shape(), k = p.k.shape();
  Value value = p.v;
  if (p.keep) state = state * transpose(*p.keep, {0, 1, 3, 2});
  if (p.rate) value = (value - matmul(p.k, state)) * *p.rate;
  state = state + matmul(p.k, value, true, false);
  const Value query = reshape(p.q, {q[0], k[1], Dim(q.size(1) / k.size(1)), q[3]});
  return {reshape(matmul(query, state), {q[0], q[1], Dim(1), state.shape()[3]}), state};
}

/// x [B, heads, T, n] as a table of its steps: [T, B heads n].
Value table_of_steps(Value x) {
  const Shape s = x.shape();
  return reshape(transpose(x, {2, 0, 1, 3}), {s[2], Dim(s.size(0) * s.size(1) * s.size(3))});
}

/// All steps, in a loop: y [B, H, T, Dv] and the last state.
LinearStep linear_loop(Graph& g, const LinearParts& p, Value first) {
  const int64_t steps = p.k.shape().size(2);
  Graph body;
  const Value time = body.input("a0", {DType::i32, {}}),
              state = body.input("a1", Type(first.type()));
  std::vector<Value> tables, parts;
  for (const Value& x : p.all()) {
    tables.push_back(table_of_steps(x));
    Shape one = x.shape();
    one[2] = Dim(1);
    const std::string name = fmt::format("a{}", tables.size() + 1);
    const Value table = body.input(name, Type(tables.back().type()));
    parts.push_back(reshape(embedding(table, reshape(time, {1})), one));
  }
  const LinearStep next = linear_step(p.with(parts), state);
  body.output("0", scalar(body, true, DType::boolean));
  body.output("1", next.state);
  body.output("2", next.y);
  const std::vector<Value> carried{first};
  const LoopResults r = loop(scalar(g, true, DType::boolean), Region(std::move(body)), carried,
                             tables, {.bound = steps});
  const Shape s = r.stacked[0].shape();  // [T, B, H, 1, Dv]
  return {transpose(reshape(r.stacked[0], {s[0], s[1], s[2], s[4]}), {1, 2, 0, 3}), r.carried[0]};
}

void linear_attention(Call& c) {
  const DType dtype = c.in(0).dtype(), wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const LinearParts p = linear_parts(c, wide);
  const Shape k = p.k.shape();
  const Value first = c.has(3) ? cast(c.in(3), wide)
                               : full(c.graph(), {k[0], k[1], k[3], p.v.shape()[3]}, 0.0, wide);
  const LinearStep last = k.size(2) == 1 ? linear_step(p, first) : linear_loop(c.graph(), p, first);
  c.out(cast(join_heads(last.y), dtype));
  c.out(1, cast(last.state, c.has(3) ? c.in(3).dtype() : dtype));
}

const OperatorRow kAttentionRows[] = {
    {"", "Attention", attention_of_onnx},
    {"", "RotaryEmbedding", rotary_embedding},
    {"", "TensorScatter", tensor_scatter},
    {"", "LinearAttention", linear_attention},
    {"ai.onnx.preview", "FlexAttention", flex_attention},
};

}  // namespace

std::span<const OperatorRow> attention_operators() { return kAttentionRows; }

}  // namespace brrr::onnx
