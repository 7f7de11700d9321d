#pragma once
// A matmul or linear node as products of matrices.

#include <string>
#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

/// Row-major products C = op(A) op(B) of one size. Offsets count elements.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  bool panels = false;  // B, which has no batch (ops/panels.h)
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;

  int64_t lda() const { return ta ? m : k; }
  int64_t ldb() const { return tb ? k : n; }
};

/// One batched product with constant strides; returns why the node is none.
std::string as_product(const NodeView& view, Product& p);

/// Any batch: product i has its A at a[i], B at b[i] and C at i * stride_c.
struct ScatteredProducts {
  Product each;
  std::vector<int64_t> a, b;
};
ScatteredProducts as_scattered_products(const NodeView& view);

}  // namespace brrr::cpu
