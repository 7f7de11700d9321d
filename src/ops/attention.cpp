// Scaled dot-product attention (Vaswani et al. 2017, equation 1) with masks and dropout, and its
// derivative. The decompositions hold all T x S scores; kernels need not (Dao et al. 2022).

#include <algorithm>
#include <optional>

#include "ops/support.h"

namespace brrr {
namespace {

constexpr size_t kForwardFirst = 3;   // optional operands follow q, k, v
constexpr size_t kBackwardFirst = 6;  // and q, k, v, y, lse, dy

// The operands that attributes say are there, in this order.
enum class Extra { position, mask, lengths, key, dlse };

std::vector<Extra> extras_of(const Attrs& attrs) {
  std::vector<Extra> list;
  if (attrs.get<bool>("position")) list.push_back(Extra::position);
  if (attrs.get<bool>("mask")) list.push_back(Extra::mask);
  if (attrs.get<bool>("lengths")) list.push_back(Extra::lengths);
  if (attrs.get<double>("p") > 0) list.push_back(Extra::key);
  if (attrs.get_or<bool>("dlse", false)) list.push_back(Extra::dlse);
  return list;
}

std::optional<size_t> index_of(const Attrs& attrs, size_t first, Extra which) {
  const auto list = extras_of(attrs);
  const auto at = std::find(list.begin(), list.end(), which);
  if (at == list.end()) return std::nullopt;
  return first + static_cast<size_t>(at - list.begin());
}

DType work_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

Shape scores_shape(const Shape& q, const Shape& k) {
  Shape s = ops::leading(q);
  s.push_back(k[-2]);
  return s;
}

void check_attributes(const InferContext& c) {
  c.attr<double>("scale");
  c.attr<double>("masked");
  const bool causal = c.attr<bool>("causal");
  if (c.attr<bool>("position") && !causal) c.fail("a position needs causal=true");
  c.attr<bool>("mask");
  c.attr<bool>("lengths");
  const double p = c.attr<double>("p");
  if (!(p >= 0 && p < 1)) c.fail("p must be in [0, 1); got {}", p);
  ops::expect_stream(c);
}

void check_qkv(const InferContext& c) {
  ops::expect_float(c, 0, "q");
  ops::expect_same_dtype(c, 0, 1);
  ops::expect_same_dtype(c, 0, 2);
  const Shape &q = c.in[0].shape, &k = c.in[1].shape, &v = c.in[2].shape;
  if (q.rank() < 2 || k.rank() != q.rank() || v.rank() != q.rank() ||
      q.without_last(2) != k.without_last(2) || q.without_last(2) != v.without_last(2) ||
      !(q[-1] == k[-1]) || !(k[-2] == v[-2]))
    c.fail("q, k, v must be [..., T, D], [..., S, D], [..., S, Dv]; got {}, {}, {}", q.str(),
           k.str(), v.str());
}

void expect_broadcasts_to(const InferContext& c, size_t i, const char* what, const Shape& to) {
  if (ops::broadcast(c, c.in[i].shape, to) != to)
    c.fail("{} must broadcast to {}; got {}", what, to.str(), c.in[i].str());
}

void check_extras(const InferContext& c, size_t first) {
  const Shape &q = c.in[0].shape, &k = c.in[1].shape;
  if (auto i = index_of(c.attrs, first, Extra::position); i && c.in[*i] != Type{DType::i32, {}})
    c.fail("position must be i32[]; got {}", c.in[*i].str());
  if (auto i = index_of(c.attrs, first, Extra::mask)) {
    if (c.in[*i].dtype != DType::boolean) ops::expect_float(c, *i, "a mask that is not bool");
    expect_broadcasts_to(c, *i, "mask", scores_shape(q, k));
  }
  if (auto i = index_of(c.attrs, first, Extra::lengths)) {
    if (c.in[*i].dtype != DType::i32) c.fail("lengths must be i32; got {}", c.in[*i].str());
    expect_broadcasts_to(c, *i, "lengths", q.without_last(2));
  }
  if (auto i = index_of(c.attrs, first, Extra::key); i && c.in[*i] != Type{DType::i32, {2}})
    c.fail("key must be i32[2]; got {}", c.in[*i].str());
}

Type y_type(const InferContext& c) {
  Shape y = c.in[0].shape;
  y[-1] = c.in[2].shape[-1];
  return {c.in[0].dtype, y};
}
Type lse_type(const InferContext& c) {
  return {work_dtype(c.in[0].dtype), ops::leading(c.in[0].shape)};
}

// The node opened: what the decompositions of forward and backward share.
struct Opened {
  Graph& g;
  const Attrs& attrs;
  std::span<const Value> in;
  size_t first;
  DType work;
  Value q, k, v;  // in the work dtype

  Opened(Graph& graph, const Attrs& a, std::span<const Value> operands, size_t first_extra)
      : g(graph),
        attrs(a),
        in(operands),
        first(first_extra),
        work(work_dtype(operands[0].dtype())),
        q(cast(operands[0], work)),
        k(cast(operands[1], work)),
        v(cast(operands[2], work)) {}

  std::optional<Value> extra(Extra which) const {
    const auto i = index_of(attrs, first, which);
    return i ? std::optional<Value>(in[*i]) : std::nullopt;
  }
  double scale() const { return attrs.get<double>("scale"); }
  bool boolean_mask() const {
    const auto mask = extra(Extra::mask);
    return mask && mask->dtype() == DType::boolean;
  }
  Value number(double x) const { return scalar(g, x, work); }

  // [..., T, S]
  Value scores() const {
    const Dim t = q.shape()[-2], s = k.shape()[-2];
    Value x = matmul(q, k, false, true) * scale();
    if (const auto mask = extra(Extra::mask))
      x = boolean_mask() ? where(*mask, x, number(attrs.get<double>("masked")))
                         : x + cast(*mask, work);
    Value columns = iota(g, {1, s}, 1);
    if (attrs.get<bool>("causal")) {
      Value rows = iota(g, {t, 1}, 0);
      if (const auto position = extra(Extra::position)) rows = rows + *position;
      x = where(less_equal(columns, rows), x, number(-INFINITY));
    }
    if (const auto lengths = extra(Extra::lengths))
      x = where(less(columns, ops::column(ops::column(*lengths))), x, number(-INFINITY));
    return x;
  }
  // Dropout of probabilities or of their gradients: both by the same mask.
  Value drop(Value x) const {
    const auto key = extra(Extra::key);
    return key ? dropout(x, *key, attrs.get<double>("p"), attrs.get<int64_t>("stream")) : x;
  }
};

struct ScoreGradients {
  Value p, ds;  // [..., T, S]: the probabilities, and d loss / d scores before the scale
};

ScoreGradients score_gradients(const Opened& o, Value y, Value lse, Value dy,
                               std::optional<Value> dlse) {
  Value p = exp(o.scores() - ops::column(lse));
  Value dp = o.drop(matmul(dy, o.v, false, true));
  Value delta = sum(dy * y, {-1}, true);
  if (dlse) delta = delta - ops::column(*dlse);
  Value ds = p * (dp - delta);
  if (o.boolean_mask()) ds = where(*o.extra(Extra::mask), ds, o.number(0));
  return {p, ds};
}

std::vector<Value> forward(const DecomposeContext& c) {
  const Opened o(c.graph, c.node.attrs, c.in, kForwardFirst);
  Value s = o.scores();
  Value top = max(s, {-1}, true);
  Value e = exp(s - top);
  Value total = sum(e, {-1}, true);
  Value y = matmul(o.drop(e / total), o.v);
  return {cast(y, c.in[0].dtype()), reshape(log(total) + top, ops::leading(s.shape()))};
}

std::vector<Value> backward(const DecomposeContext& c) {
  const Opened o(c.graph, c.node.attrs, c.in, kBackwardFirst);
  Value y = cast(c.in[3], o.work), dy = cast(c.in[5], o.work);
  const auto [p, ds] = score_gradients(o, y, c.in[4], dy, o.extra(Extra::dlse));
  Value dq = matmul(ds, o.k) * o.scale();
  Value dk = matmul(ds, o.q, true, false) * o.scale();
  Value dv = matmul(o.drop(p), dy, true, false);
  const DType t = c.in[0].dtype();
  return {cast(dq, t), cast(dk, t), cast(dv, t)};
}

void vjp(VjpContext& c) {
  std::vector<Value> forward_in;
  for (size_t i = 0; i < c.node().operands.size(); ++i) forward_in.push_back(c.operand(i));
  const Attrs attrs = c.attrs();
  Value y = c.result(0), lse = c.result(1);
  Value dy = c.has_grad(0) ? c.grad(0) : full(c.graph, y.shape(), 0, y.dtype());
  std::vector<Value> in{forward_in[0], forward_in[1], forward_in[2], y, lse, dy};
  in.insert(in.end(), forward_in.begin() + kForwardFirst, forward_in.end());
  if (c.has_grad(1)) in.push_back(c.grad(1));
  Attrs grad_attrs = attrs;
  grad_attrs.set("dlse", c.has_grad(1));
  if (c.wants(0) || c.wants(1) || c.wants(2)) {
    const auto grads = call("attention_grad", in, grad_attrs);
    for (size_t i = 0; i < 3; ++i)
      if (c.wants(i)) c.set(i, grads[i]);
  }
  const auto mask = index_of(attrs, kForwardFirst, Extra::mask);
  if (!mask || !c.wants(*mask)) return;
  // A trained bias of the scores: its gradient is as large as they are, so nothing is saved here.
  const Opened o(c.graph, grad_attrs, in, kBackwardFirst);
  Value ds = score_gradients(o, cast(y, o.work), lse, cast(dy, o.work), o.extra(Extra::dlse)).ds;
  c.set(*mask, cast(sum_to(ds, forward_in[*mask].shape()), forward_in[*mask].dtype()));
}

double width(const Type& t) { return static_cast<double>(t.shape.size(-1)); }

// The (query, key) pairs that see each other. Only what the attributes say is known: masks and
// lengths count as open, a position as that of the last query at the last key.
double visible_pairs(const Node& n, std::span<const Type> in) {
  const int64_t queries = in[0].shape.size(-2), keys = in[1].shape.size(-2);
  const auto all = ops::elements(Type{DType::f32, scores_shape(in[0].shape, in[1].shape)});
  if (!n.attrs.get<bool>("causal") || queries == 0) return all;
  const int64_t first = n.attrs.get<bool>("position") ? std::max<int64_t>(0, keys - queries) : 0;
  double seen = 0;  // of one head
  for (int64_t i = 0; i < queries; ++i) seen += static_cast<double>(std::min(keys, first + i + 1));
  return keys == 0 ? 0 : all / static_cast<double>(queries * keys) * seen;
}

// Products of those pairs with vectors of that width.
double pair_flops(const Node& n, std::span<const Type> in, double of_width) {
  return 2 * visible_pairs(n, in) * of_width;
}

struct SampleCase {
  Shape q, k;
  int64_t dv;
  bool causal = false, position = false;
  Shape mask_shape = {};
  std::optional<DType> mask = std::nullopt;
  bool lengths = false;
  double p = 0, masked = -INFINITY;
};

// Every option, alone and combined; a boolean mask is wide enough to leave some key to every query.
const SampleCase kSampleCases[] = {
    {.q = {2, 3, 5, 8}, .k = {2, 3, 5, 8}, .dv = 8, .causal = true},
    {.q = {5, 7}, .k = {9, 7}, .dv = 3},
    {.q = {2, 1, 16}, .k = {2, 11, 16}, .dv = 16, .causal = true, .position = true},
    {.q = {2, 4, 3}, .k = {2, 9, 3}, .dv = 5, .causal = true, .position = true, .lengths = true},
    {.q = {2, 2, 3, 4},
     .k = {2, 2, 37, 4},
     .dv = 4,
     .mask_shape = {2, 1, 3, 37},
     .mask = DType::boolean},
    {.q = {3, 5, 4},
     .k = {3, 4, 4},
     .dv = 4,
     .mask_shape = {5, 4},
     .mask = DType::boolean,
     .masked = -1e4},
    {.q = {2, 2, 6, 4},
     .k = {2, 2, 6, 4},
     .dv = 4,
     .causal = true,
     .mask_shape = {2, 1, 6},
     .mask = DType::f32},
    {.q = {2, 5, 4}, .k = {2, 7, 4}, .dv = 4, .mask_shape = {5, 1}, .mask = DType::f32, .p = 0.4},
    {.q = {2, 6, 80}, .k = {2, 6, 80}, .dv = 80, .causal = true, .p = 0.25},
    {.q = {1, 3, 1}, .k = {1, 4, 1}, .dv = 1},
};

std::vector<Sample> attention_samples(bool backward) {
  std::vector<Sample> out;
  for (const SampleCase& s : kSampleCases) {
    Shape y = s.q;
    y[-1] = Dim(s.dv);
    Shape v = s.k;
    v[-1] = Dim(s.dv);
    Sample sample{{ops::tensor(s.q), ops::tensor(s.k), ops::tensor(v)},
                  {{"causal", s.causal},
                   {"lengths", s.lengths},
                   {"mask", s.mask.has_value()},
                   {"masked", s.masked},
                   {"p", s.p},
                   {"position", s.position},
                   {"scale", 1 / std::sqrt(static_cast<double>(s.q.size(-1)))},
                   {"stream", int64_t{5}}}};
    if (backward) {  // an lse as large as makes probabilities of the scores
      sample.in.push_back(ops::tensor(y));
      sample.in.push_back(ops::tensor(ops::leading(s.q), 2, 4));
      sample.in.push_back(ops::tensor(y));
      sample.attrs.set("dlse", s.causal);
    }
    if (s.position) sample.in.push_back(ops::tensor({}, 0, 4, DType::i32));
    if (s.mask)
      sample.in.push_back(s.mask == DType::boolean ? ops::tensor(s.mask_shape, 0, 2, DType::boolean)
                                                   : ops::tensor(s.mask_shape));
    if (s.lengths)
      sample.in.push_back(
          ops::tensor(s.q.without_last(2), 1, static_cast<double>(s.k.size(-2) + 1), DType::i32));
    if (s.p > 0) sample.in.push_back(ops::tensor({2}, 0, 1000, DType::i32));
    if (backward && s.causal) sample.in.push_back(ops::tensor(ops::leading(s.q)));
    out.push_back(std::move(sample));
  }
  return out;
}

constexpr const char* kOperandsDoc =
    "Then, each where an attribute says so: {position} i32[] (0 without it), {mask} broadcasting "
    "to [..., T, S], bool or added, {lengths} i32 broadcasting to [...], and with {p} > 0 the key "
    "[2] i32 of dropout";

}  // namespace

Attention attention(Value q, Value k, Value v, const AttentionOptions& o) {
  std::vector<Value> in{q, k, v};
  for (const auto& extra : {o.position, o.mask, o.lengths})
    if (extra) in.push_back(*extra);
  if (o.p > 0) {
    BRRR_CHECK(o.key.has_value(), "attention: dropout needs a key");
    in.push_back(*o.key);
  }
  const auto out = call("attention", in,
                        {{"causal", o.causal},
                         {"lengths", o.lengths.has_value()},
                         {"mask", o.mask.has_value()},
                         {"masked", o.masked},
                         {"p", o.p},
                         {"position", o.position.has_value()},
                         {"scale", o.scale},
                         {"stream", o.stream}});
  return {out[0], out[1]};
}

namespace ops {

std::vector<OpDef> attention_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "attention";
    d.read_to_position = {1, 2};
    d.doc =
        std::string(
            "s = {scale} q kᵀ, then: where a bool mask is false {masked}, or plus the added mask; "
            "-inf unless key <= query + position ({causal}) and key < length. lse = log sum e^s "
            "over S, y = dropout(e^(s - lse)) v, where dropout takes element i of the [..., T, S] "
            "probabilities as the op dropout does. A query that sees no key gives NaN, as softmax "
            "does. q: [..., T, D], k: [..., S, D], v: [..., S, Dv]. ") +
        kOperandsDoc +
        ". y: [..., T, Dv], lse: [..., T] f32 (f64 of f64); sums and statistics in f32 or wider";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b111;  // q, k, v; a mask keeps its digits
    d.infer = [](const InferContext& c) {
      check_attributes(c);
      expect_operands(c, kForwardFirst + extras_of(c.attrs).size());
      check_qkv(c);
      check_extras(c, kForwardFirst);
      return std::vector<Type>{y_type(c), lse_type(c)};
    };
    d.decompose = forward;
    d.vjp = vjp;
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, pair_flops(n, in, width(in[0]) + width(in[2])));
    };
    d.samples = [] { return attention_samples(false); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "attention_grad";
    d.is_gradient = true;
    d.doc =
        std::string(
            "With s as in attention, p = e^(s - lse), g = dropout(dy vᵀ) and delta = sum_Dv(dy y) "
            "- dlse: ds = p (g - delta), 0 where a bool mask is false; dq = {scale} ds k, dk = "
            "{scale} dsᵀ q, dv = dropout(p)ᵀ dy. q, dq: [..., T, D], k, dk: [..., S, D], v, dv: "
            "[..., S, Dv], y, dy: [..., T, Dv], lse: [..., T] f32 (f64 of f64). ") +
        kOperandsDoc + ", and {dlse} [..., T]; sums in f32 or wider";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.infer = [](const InferContext& c) {
      check_attributes(c);
      c.attr<bool>("dlse");
      expect_operands(c, kBackwardFirst + extras_of(c.attrs).size());
      check_qkv(c);
      for (size_t i : {size_t{3}, size_t{5}})
        if (c.in[i] != y_type(c))
          c.fail("y and dy must be {}; got {}", y_type(c).str(), c.in[i].str());
      const auto dlse = index_of(c.attrs, kBackwardFirst, Extra::dlse);
      for (size_t i : {size_t{4}, dlse.value_or(4)})
        if (c.in[i] != lse_type(c))
          c.fail("lse and dlse must be {}; got {}", lse_type(c).str(), c.in[i].str());
      check_extras(c, kBackwardFirst);
      return std::vector<Type>{c.in[0], c.in[1], c.in[2]};
    };
    d.decompose = backward;
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, pair_flops(n, in, 3 * width(in[0]) + 2 * width(in[2])));
    };
    d.samples = [] { return attention_samples(true); };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
