// Attention that reads q, k and v where one product has left them, side by side in a row, and gives
// the heads of y side by side, as the next product reads them: no transposed copies around it.

#include <algorithm>

#include "ops/support.h"

namespace brrr {
namespace {

constexpr size_t kPackedForwardFirst = 1;   // optional operands follow qkv
constexpr size_t kPackedBackwardFirst = 4;  // and qkv, y, lse, dy

int64_t heads_of(const Attrs& attrs) { return attrs.get<int64_t>("heads"); }

Attrs attrs_of_attention(const Attrs& attrs) {
  Attrs list;
  for (const auto& [name, value] : attrs)
    if (name != "heads") list.set(name, value);
  return list;
}

// qkv: [..., T, 3 H D] -> [..., H, T, D]
Shape head_shape(const Shape& qkv, int64_t heads) {
  Shape s = qkv.without_last(2);
  s.push_back(Dim(heads));
  s.push_back(qkv[-2]);
  s.push_back(Dim(qkv.size(-1) / (3 * heads)));
  return s;
}

Shape y_shape(const Shape& qkv) {
  Shape s = qkv;
  s[-1] = Dim(qkv.size(-1) / 3);
  return s;
}

// The operands that attributes say are there come from `first` on.
void check_qkv(const InferContext& c, size_t first, bool dlse) {
  const auto heads = c.attr<int64_t>("heads");
  ops::expect_operands(c, first + size_t{c.attr<bool>("mask")} + size_t{c.attr<bool>("lengths")} +
                              size_t{c.attr<double>("p") > 0} + size_t{dlse});
  ops::expect_float(c, 0, "qkv");
  const Shape& qkv = c.in[0].shape;
  if (heads < 1 || qkv.rank() < 2 || qkv.size(-1) % (3 * heads) != 0)
    c.fail("qkv must be [..., T, 3 H D] with H = {}; got {}", heads, qkv.str());
  if (c.attr<bool>("position")) c.fail("keys are those of the queries: there is no position");
}

// What attention gives, or its gradient: q, k, v, then `more` of its own operands, then the
// optional ones from `first` on.
std::vector<Type> infer_attention(const InferContext& c, std::string_view name,
                                  std::span<const Type> more, size_t first) {
  std::vector<Type> in(3, {c.in[0].dtype, head_shape(c.in[0].shape, heads_of(c.attrs))});
  in.insert(in.end(), more.begin(), more.end());
  for (size_t i = first; i < c.in.size(); ++i) in.push_back(c.in[i]);
  return op(name).infer({c.op, in, c.attrs});
}

std::vector<int64_t> counted(int64_t n) {
  std::vector<int64_t> axes(static_cast<size_t>(n));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// [..., T, H D] -> [..., H, T, D]
Value split_heads(Value x, int64_t heads) {
  Shape rows = x.shape();
  const int64_t n = rows.rank() - 2, width = rows.size(-1) / heads;
  rows[-1] = Dim(heads);
  rows.push_back(Dim(width));
  std::vector<int64_t> axes = counted(n + 3);
  std::swap(axes[static_cast<size_t>(n)], axes[static_cast<size_t>(n) + 1]);
  return transpose(reshape(x, rows), axes);
}

// [..., H, T, D] -> [..., T, H D]
Value join_heads(Value x) {
  const int64_t n = x.shape().rank() - 3;
  std::vector<int64_t> axes = counted(n + 3);
  std::swap(axes[static_cast<size_t>(n)], axes[static_cast<size_t>(n) + 1]);
  Shape rows = x.shape().without_last(3);
  rows.push_back(x.shape()[-2]);
  rows.push_back(Dim(x.shape().size(-3) * x.shape().size(-1)));
  return reshape(transpose(x, axes), rows);
}

// [..., T, 3 H D] -> three of [..., H, T, D]
std::vector<Value> unpack(Value qkv, int64_t heads) {
  const Shape head = head_shape(qkv.shape(), heads);
  const int64_t n = head.rank() - 3;
  Shape parts = head.without_last(3);
  for (Dim d : {head[-2], Dim(3), head[-3], head[-1]}) parts.push_back(d);
  std::vector<int64_t> axes{n + 1};
  for (int64_t i = 0; i < n; ++i) axes.push_back(i);
  axes.insert(axes.end(), {n + 2, n, n + 3});
  const Value apart = transpose(reshape(qkv, parts), axes);
  std::vector<Value> list;
  for (int64_t i = 0; i < 3; ++i) list.push_back(reshape(slice(apart, 0, i, 1), head));
  return list;
}

// The inverse of unpack.
Value pack(std::span<const Value> parts) {
  Shape one = parts[0].shape();
  const int64_t n = one.rank() - 3;
  one.insert(0, Dim(1));
  std::vector<Value> list;
  for (Value part : parts) list.push_back(reshape(part, one));
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < n; ++i) axes.push_back(i + 1);
  axes.insert(axes.end(), {n + 2, 0, n + 1, n + 3});
  const Value rows = transpose(concat(list, 0), axes);
  Shape out = one.without_last(3);
  out.erase(0);
  out.push_back(one[-2]);
  out.push_back(Dim(3 * one.size(-3) * one.size(-1)));
  return reshape(rows, out);
}

std::vector<Value> packed_forward(const DecomposeContext& c) {
  std::vector<Value> in = unpack(c.in[0], heads_of(c.node.attrs));
  in.insert(in.end(), c.in.begin() + kPackedForwardFirst, c.in.end());
  const auto out = call("attention", in, attrs_of_attention(c.node.attrs));
  return {join_heads(out[0]), out[1]};
}

std::vector<Value> packed_backward(const DecomposeContext& c) {
  const int64_t heads = heads_of(c.node.attrs);
  std::vector<Value> in = unpack(c.in[0], heads);
  for (Value v : {split_heads(c.in[1], heads), c.in[2], split_heads(c.in[3], heads)})
    in.push_back(v);
  in.insert(in.end(), c.in.begin() + kPackedBackwardFirst, c.in.end());
  return {pack(call("attention_grad", in, attrs_of_attention(c.node.attrs)))};
}

void packed_vjp(VjpContext& c) {
  const Attrs attrs = c.attrs();
  const Value y = c.result(0), lse = c.result(1);
  const Value dy = c.has_grad(0) ? c.grad(0) : full(c.graph, y.shape(), 0, y.dtype());
  std::vector<Value> extras;
  for (size_t i = kPackedForwardFirst; i < c.node().operands.size(); ++i)
    extras.push_back(c.operand(i));
  if (c.wants(0)) {
    std::vector<Value> in{c.operand(0), y, lse, dy};
    in.insert(in.end(), extras.begin(), extras.end());
    if (c.has_grad(1)) in.push_back(c.grad(1));
    Attrs grad_attrs = attrs;
    grad_attrs.set("dlse", c.has_grad(1));
    c.set(0, call("packed_attention_grad", in, grad_attrs)[0]);
  }
  std::vector<bool> wanted(3 + extras.size());
  for (size_t i = 0; i < extras.size(); ++i) wanted[3 + i] = c.wants(kPackedForwardFirst + i);
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
  // A trained mask: attention itself knows its gradient.
  std::vector<Value> in = unpack(c.operand(0), heads_of(attrs));
  in.insert(in.end(), extras.begin(), extras.end());
  const auto opened = call("attention", in, attrs_of_attention(attrs));
  const std::vector<Value> grads{split_heads(dy, heads_of(attrs)),
                                 c.has_grad(1) ? c.grad(1) : Value{}};
  VjpContext inner(c.graph, opened[0].id.node, grads, wanted);
  op("attention").vjp(inner);
  for (size_t i = 0; i < extras.size(); ++i)
    if (wanted[3 + i]) c.set(kPackedForwardFirst + i, inner.grads()[3 + i]);
}

// The products are attention's, but every element is read and written in its place.
Cost cost_of_packed(const Node& n, std::span<const Type> in, std::string_view name) {
  const std::vector<Type> qkv(3, {in[0].dtype, head_shape(in[0].shape, heads_of(n.attrs))});
  return ops::streaming_cost(n, in, op(name).cost(n, qkv).flops);
}

struct PackedCase {
  Shape qkv;
  int64_t heads;
  bool causal = false;
  Shape mask_shape = {};
  std::optional<DType> mask = std::nullopt;
  bool lengths = false;
  double p = 0;
};

// A boolean mask is wide enough to leave some key to every query.
const PackedCase kSampleCases[] = {
    {.qkv = {2, 5, 3 * 2 * 4}, .heads = 2, .causal = true},
    {.qkv = {7, 3 * 3 * 5}, .heads = 3},
    {.qkv = {2, 2, 4, 3 * 2 * 3}, .heads = 2, .causal = true, .lengths = true},
    {.qkv = {2, 11, 3 * 2 * 2}, .heads = 2, .mask_shape = {2, 1, 1, 11}, .mask = DType::boolean},
    {.qkv = {3, 4, 3 * 2 * 4},
     .heads = 2,
     .causal = true,
     .mask_shape = {2, 1, 4},
     .mask = DType::f32},
    {.qkv = {2, 6, 3 * 1 * 8}, .heads = 1, .causal = true, .p = 0.25},
    {.qkv = {1, 1, 3}, .heads = 1},
};

std::vector<Sample> samples(bool backward) {
  std::vector<Sample> out;
  for (const PackedCase& s : kSampleCases) {
    const Shape head = head_shape(s.qkv, s.heads);
    Sample sample{{ops::tensor(s.qkv)},
                  {{"causal", s.causal},
                   {"heads", s.heads},
                   {"lengths", s.lengths},
                   {"mask", s.mask.has_value()},
                   {"masked", -INFINITY},
                   {"p", s.p},
                   {"position", false},
                   {"scale", 1 / std::sqrt(static_cast<double>(head.size(-1)))},
                   {"stream", int64_t{5}}}};
    if (backward) {  // an lse as large as makes probabilities of the scores
      sample.in.push_back(ops::tensor(y_shape(s.qkv)));
      sample.in.push_back(ops::tensor(ops::leading(head), 2, 4));
      sample.in.push_back(ops::tensor(y_shape(s.qkv)));
      sample.attrs.set("dlse", s.causal);
    }
    if (s.mask)
      sample.in.push_back(s.mask == DType::boolean ? ops::tensor(s.mask_shape, 0, 2, DType::boolean)
                                                   : ops::tensor(s.mask_shape));
    if (s.lengths)
      sample.in.push_back(
          ops::tensor(head.without_last(2), 1, static_cast<double>(head.size(-2) + 1), DType::i32));
    if (s.p > 0) sample.in.push_back(ops::tensor({2}, 0, 1000, DType::i32));
    if (backward && s.causal) sample.in.push_back(ops::tensor(ops::leading(head)));
    out.push_back(std::move(sample));
  }
  return out;
}

}  // namespace

bool is_attention(const OpDef& op) {
  return op.name == "attention" || op.name == "attention_grad" || op.name == "packed_attention" ||
         op.name == "packed_attention_grad";
}

namespace ops {

std::vector<OpDef> packed_attention_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "packed_attention";
    d.doc =
        "attention of {heads} heads whose q, k and v lie side by side: a row of qkv is [3, H, D], "
        "a "
        "row of y [H, D]. qkv: [..., T, 3 H D], y: [..., T, H D], lse: [..., H, T] f32 (f64 of "
        "f64). Attributes and optional operands as in attention with q: [..., H, T, D], but no "
        "{position}";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b1;  // qkv; a mask keeps its digits
    d.infer = [](const InferContext& c) {
      check_qkv(c, kPackedForwardFirst, false);
      const auto types = infer_attention(c, "attention", {}, kPackedForwardFirst);
      return std::vector<Type>{{c.in[0].dtype, y_shape(c.in[0].shape)}, types[1]};
    };
    d.decompose = packed_forward;
    d.vjp = packed_vjp;
    d.cost = [](const Node& n, std::span<const Type> in) {
      return cost_of_packed(n, in, "attention");
    };
    d.samples = [] { return samples(false); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "packed_attention_grad";
    d.is_gradient = true;
    d.doc =
        "attention_grad of q, k and v that lie side by side, its gradients as well. qkv, dqkv: "
        "[..., T, 3 H D], y, dy: [..., T, H D], lse: [..., H, T] f32 (f64 of f64). Then what "
        "packed_attention has read behind qkv, and {dlse} [..., H, T]";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.infer = [](const InferContext& c) {
      check_qkv(c, kPackedBackwardFirst, c.attr<bool>("dlse"));
      const Type y{c.in[0].dtype, y_shape(c.in[0].shape)};
      for (size_t i : {size_t{1}, size_t{3}})
        if (c.in[i] != y) c.fail("y and dy must be {}; got {}", y.str(), c.in[i].str());
      const Type head{y.dtype, head_shape(c.in[0].shape, heads_of(c.attrs))};
      infer_attention(c, "attention_grad", std::vector<Type>{head, c.in[2], head},
                      kPackedBackwardFirst);
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = packed_backward;
    d.cost = [](const Node& n, std::span<const Type> in) {
      return cost_of_packed(n, in, "attention_grad");
    };
    d.samples = [] { return samples(true); };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
