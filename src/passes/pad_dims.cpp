#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

constexpr double kMostWaste = 0.1;  // of a size

// The size to pad to; the size itself where it fits already or would grow too much.
int64_t padded_size(int64_t size, int64_t multiple) {
  const int64_t up = (size + multiple - 1) / multiple * multiple;
  return static_cast<double>(up - size) <= kMostWaste * static_cast<double>(size) ? up : size;
}

Value pad_to(Value x, int axis, int64_t size) {
  const int normal = axis < 0 ? axis + x.shape().rank() : axis;
  const int64_t more = size - x.shape().size(normal);
  return more > 0 ? pad(x, normal, 0, more) : x;
}

}  // namespace

Graph pad_dims(const Graph& in, const Target& target, Notes* notes) {
  if (target.product_multiple <= 1) return in;
  return rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    const auto form = product_form(node);
    if (!form) return false;
    // Activations times activations (attention) have no size that a user chose.
    const ValueId w = node.operands[1];
    if (!in.is_input(w.node) || in.input_kind(w.node) != InputKind::parameter) return false;
    const bool tb = form->transpose_b;
    const int k_of_a = form->transpose_a ? -2 : -1, k_of_b = tb ? -1 : -2, n_of_b = tb ? -2 : -1;
    const Dim& columns = in.type(w).shape[n_of_b];
    const Dim& terms = in.type(w).shape[k_of_b];
    if (columns.is_symbol() || terms.is_symbol()) return false;
    const int64_t n = padded_size(columns.size(), target.product_multiple);
    const int64_t k = padded_size(terms.size(), target.product_multiple);
    if (n == columns.size() && k == terms.size()) return false;

    std::vector<Value> x = r.operands(id);
    x[0] = pad_to(x[0], k_of_a, k);
    x[1] = pad_to(pad_to(x[1], k_of_b, k), n_of_b, n);
    if (form->has_bias) x[2] = pad_to(x[2], 0, n);
    Value y = call(*node.op, x, node.attrs)[0];
    if (n != columns.size()) y = slice(y, y.shape().rank() - 1, 0, columns.size());
    r.bind({id, 0}, y);
    if (notes)
      notes->push_back(fmt::format("{}: {} of {} x {} computed as {} x {}", in.scope_of(id),
                                   node.op->name, terms.size(), columns.size(), k, n));
    return true;
  });
}

}  // namespace brrr
