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

}  // namespace

Graph matmul_precision(const Graph& in, MatmulPrecision precision, Notes* notes) {
  if (precision == MatmulPrecision::highest) return in;
  int count = 0;
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
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
