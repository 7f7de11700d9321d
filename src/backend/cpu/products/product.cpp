#include "backend/cpu/products/product.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

int64_t batch_elements(const Shape& s) {
  int64_t n = 1;
  for (int axis = 0; axis + 2 < s.rank(); ++axis) n *= s.size(axis);
  return n;
}

Product sizes_of(const NodeView& view) {
  const bool is_matmul = is(view.node(), Op::matmul);
  const Shape &a = view.in[0].shape, &b = view.in[1].shape;
  Product p;
  p.ta = is_matmul && view.attrs().get<bool>("transpose_a");
  p.tb = is_matmul && view.attrs().get<bool>("transpose_b");
  p.m = a.size(p.ta ? -1 : -2);
  p.k = a.size(p.ta ? -2 : -1);
  p.n = b.size(p.tb ? -2 : -1);
  p.panels = !view.in[1].storage.is_plain();
  if (p.panels) p.tb = false;
  return p;
}

/// For each index of the result's batch, the operand's matrix that it broadcasts from.
std::vector<int64_t> broadcast_batch(const Shape& operand, const Shape& result) {
  std::vector<int64_t> matrices(static_cast<size_t>(batch_elements(result)));
  const int axes = result.rank() - 2, missing = result.rank() - operand.rank();
  for (size_t i = 0; i < matrices.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), stride = 1;
    for (int axis = axes - 1; axis >= missing; --axis) {
      const int64_t size = operand.size(axis - missing);
      if (size != 1) matrices[i] += rest % result.size(axis) * stride;
      rest /= result.size(axis);
      stride *= size;
    }
  }
  return matrices;
}

}  // namespace

Product as_product(const NodeView& view) {
  Product p = sizes_of(view);
  const Shape &a = view.in[0].shape, &b = view.in[1].shape, &y = view.out()[0].shape;
  const int64_t batch_a = batch_elements(a), batch_b = batch_elements(b);
  const int64_t batch = batch_elements(y);
  if (batch_b == 1 && !p.ta) {  // the rows of all batches are rows of one product
    p.m *= batch;
    return p;
  }
  p.batch = batch;
  p.stride_a = batch_a == 1 ? 0 : p.m * p.k;
  p.stride_b = batch_b == 1 ? 0 : p.k * p.n;
  p.stride_c = p.m * p.n;
  const bool plain_a = batch_a == batch || batch_a == 1, plain_b = batch_b == batch || batch_b == 1;
  if (plain_a && plain_b) return p;
  p.starts_a = broadcast_batch(a, y);
  p.starts_b = broadcast_batch(b, y);
  for (int64_t& i : p.starts_a) i *= p.m * p.k;
  for (int64_t& i : p.starts_b) i *= p.k * p.n;
  return p;
}

}  // namespace brrr::cpu
