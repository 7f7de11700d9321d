#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// x = high + low but for 2^-17 of it: what bf16 holds of x, and of what that leaves.
struct Halves {
  Value high, low;
};
Halves halves(Value x) {
  Value high = cast(x, DType::bf16);
  return {high, cast(x - cast(high, DType::f32), DType::bf16)};
}

// The loss head of bf16 operands, its gradients in f32. (There is none of halves: `high` leaves it
// in f32.)
void narrow_loss_head(Rewriter& r, NodeId id) {
  const Node& node = r.in().node(id);
  auto operands = r.operands(id);
  for (size_t i : {size_t{0}, size_t{1}}) operands[i] = cast(operands[i], DType::bf16);
  Attrs attrs = node.attrs;
  if (node.op->name != "linear_cross_entropy")
    for (const char* name : {"dx_dtype", "dw_dtype"})
      if (attrs.find(name) == nullptr) attrs.set(name, DType::f32);
  const auto results = call(node.op->name, operands, std::move(attrs));
  for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
}

bool is_product(const std::string& op) {
  return op == "matmul" || op == "linear" || op.starts_with("linear_cross_entropy");
}

// The products say that tf32 will do; whether it is faster is the target's affair.
Graph allow_tf32(const Graph& in, Notes* notes) {
  Graph out = in;
  int count = 0;
  for (NodeId id = 0; id < out.size(); ++id) {
    Node& node = out.node(id);
    if (!is_product(node.op->name) || in.type(node.operands[0]).dtype != DType::f32) continue;
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
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (node.op->name.starts_with("linear_cross_entropy") &&
        in.type(node.operands[0]).dtype == DType::f32 && precision == MatmulPrecision::medium) {
      narrow_loss_head(r, id);
      ++count;
      return true;
    }
    const bool is_matmul = node.op->name == "matmul";
    if (!is_matmul && node.op->name != "linear") return false;
    if (in.type(node.operands[0]).dtype != DType::f32) return false;
    const auto x = r.operands(id);
    Attrs wide = node.attrs;
    wide.set("dtype", DType::f32);
    auto product = [&](Value a, Value b) {
      if (is_matmul) return call("matmul", std::vector<Value>{a, b}, wide)[0];
      return matmul(a, b, false, false, DType::f32);
    };
    Value y;
    if (precision == MatmulPrecision::medium) {
      y = product(cast(x[0], DType::bf16), cast(x[1], DType::bf16));
    } else {
      const Halves a = halves(x[0]), b = halves(x[1]);
      y = product(a.high, b.high) + (product(a.high, b.low) + product(a.low, b.high));
    }
    if (!is_matmul) y = y + cast(x[2], DType::f32);
    r.bind({id, 0}, cast(y, node.results[0].dtype));
    ++count;
    return true;
  });
  if (notes && count)
    notes->push_back(fmt::format(
        "{} f32 products from {}", count,
        precision == MatmulPrecision::medium ? "bf16 operands" : "three of bf16 halves"));
  return out;
}

}  // namespace brrr
