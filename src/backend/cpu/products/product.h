#pragma once
// A matmul or linear node as products of matrices.

#include <vector>

#include "runtime/backend.h"

namespace brrr::cpu {

/// Row-major products C = op(A) op(B) of one size. Offsets count elements.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  bool panels = false;  // B, which has no batch (base/panels.h)
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  /// Where the operands of each product begin, if a batch is broadcast in part; empty: the strides
  /// say it.
  std::vector<int64_t> starts_a = {}, starts_b = {};

  int64_t lda() const { return ta ? m : k; }
  int64_t ldb() const { return tb ? k : n; }
};
Product as_product(const NodeView& view);

}  // namespace brrr::cpu
