#include <map>

#include "ops/ops.h"
#include "passes/memory/recomputation.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// x = high + low but for 2^-17 of it: what bf16 holds of x, and of what that leaves.
struct Halves {
  Value high, low;
};
// What was bf16 before, as a parameter that is stored in it, is taken as it was.
Value in_bf16(Value x) {
  const Node& node = x.graph->node(x.id.node);
  if (!is(node, Op::cast)) return cast(x, DType::bf16);
  const Value before = x.graph->value(node.operands[0]);
  return before.dtype() == DType::bf16 ? before : cast(x, DType::bf16);
}
Halves halves(Value x) {
  Value high = in_bf16(x);
  return {high, cast(x - cast(high, DType::f32), DType::bf16)};
}
Halves only_high(Value x) { return {in_bf16(x), {}}; }

// What products read in bf16. Those of the forward pass share it, and so do those behind it.
// Nothing is handed from the one to the other: that is for rematerialize to say, which has seen the
// f32 values. What comes of parameters alone is made for each product, so that it lives no longer.
class Operands {
 public:
  Operands(const Graph& in, Halves (*make)(Value)) : make_(make), of_parameters_(in.size()) {
    for (NodeId id = 0; id < in.size(); ++id) {
      const Node& node = in.node(id);
      bool all =
          in.is_input(id) ? in.input_kind(id) == InputKind::parameter : !node.operands.empty();
      for (const ValueId& v : node.operands) all = all && of_parameters_[v.node];
      of_parameters_[id] = all;
    }
  }

  Halves of(Rewriter& r, NodeId reader, size_t operand) {
    const Graph& in = r.in();
    const ValueId v = in.node(reader).operands[operand];
    if (of_parameters_[v.node]) return make_(r.map(v));
    const ValueId root = behind_reshapes(in, v);  // [B, T, C] and [B * T, C] are the same bytes
    const Phase phase = in.phase(reader);
    const bool late = phase == Phase::backward || phase == Phase::recompute;
    auto [at, is_new] = made_.try_emplace({root, late});
    if (is_new) at->second = make_(r.map(root));
    Halves x = at->second;
    for (Value* part : {&x.high, &x.low})
      if (root != v && part->graph != nullptr) *part = reshape(*part, in.type(v).shape);
    return x;
  }

 private:
  Halves (*make_)(Value);
  std::vector<bool> of_parameters_;                  // [node]
  std::map<std::pair<ValueId, bool>, Halves> made_;  // bool: behind the forward pass
};

// The loss head of bf16 operands, its gradients in f32. (There is none of halves: `high` leaves it
// in f32.)
void narrow_loss_head(Rewriter& r, NodeId id, Operands& parts) {
  const Node& node = r.in().node(id);
  auto operands = r.operands(id);
  for (size_t i : {size_t{0}, size_t{1}}) operands[i] = parts.of(r, id, i).high;
  Attrs attrs = node.attrs;
  if (node.op->is_gradient)
    for (const char* name : {"dx_dtype", "dw_dtype"})
      if (attrs.find(name) == nullptr) attrs.set(name, DType::f32);
  const auto results = call(*node.op, operands, std::move(attrs));
  for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
}

bool is_loss_head(const OpDef& op) { return op.loss && op.loss->from_product; }

// The products say that tf32 will do; whether it is faster is the target's affair.
Graph allow_tf32(const Graph& in, Notes* notes) {
  Graph out = in;
  int count = 0;
  for (NodeId id = 0; id < out.size(); ++id) {
    Node& node = out.node(id);
    if (!product_form(node) && !is_loss_head(*node.op)) continue;
    if (in.type(node.operands[0]).dtype != DType::f32) continue;
    node.attrs.set("tf32", true);
    ++count;
  }
  if (notes && count) notes->push_back(fmt::format("{} f32 products in tf32", count));
  return out;
}

}  // namespace

Graph matmul_precision(const Graph& in, MatmulPrecision precision, const Target& target,
                       Notes* notes) {
  if (precision == MatmulPrecision::highest) return in;
  if (precision == MatmulPrecision::high && target.has_tf32) return allow_tf32(in, notes);
  int count = 0;
  Operands parts(in, precision == MatmulPrecision::medium ? only_high : halves);
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (is_loss_head(*node.op) && in.type(node.operands[0]).dtype == DType::f32 &&
        precision == MatmulPrecision::medium) {
      narrow_loss_head(r, id, parts);
      ++count;
      return true;
    }
    const auto form = product_form(node);
    if (!form || in.type(node.operands[0]).dtype != DType::f32) return false;
    Attrs wide = node.attrs;
    wide.set("dtype", DType::f32);
    auto product = [&](Value a, Value b) {
      if (!form->has_bias) return call(*node.op, std::vector<Value>{a, b}, wide)[0];
      return matmul(a, b, false, false, DType::f32);
    };
    const Halves a = parts.of(r, id, 0), b = parts.of(r, id, 1);
    Value y = product(a.high, b.high);
    if (precision == MatmulPrecision::high)
      y = y + (product(a.high, b.low) + product(a.low, b.high));
    if (form->has_bias) y = y + cast(r.operands(id)[2], DType::f32);
    r.bind({id, 0}, cast(y, node.results[0].dtype));
    ++count;
    return true;
  });
  if (notes && count)
    notes->push_back(fmt::format(
        "{} f32 products from {}", count,
        precision == MatmulPrecision::medium ? "bf16 operands" : "three of bf16 halves"));
  return drop_dead(out);
}

}  // namespace brrr
