#pragma once
// The axes of a reduction: those that are kept, those that are folded, and the innermost run of
// contiguous elements of either.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Maps the row-major index over some axes of a tensor to the offset of its element.
struct Offsets {
  std::vector<int64_t> sizes, strides;
  int64_t count() const {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
  int64_t at(int64_t i) const {
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0; i /= sizes[d]) offset += i % sizes[d] * strides[d];
    return offset;
  }
  void add(int64_t size, int64_t stride) {
    if (!sizes.empty() && strides.back() == stride * size) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
};

/// Splits the axes of x into kept and reduced ones. If the innermost axis is contiguous, it is
/// `run`, and the group it belongs to does not contain it.
struct ReducedLayout {
  Offsets kept, reduced;
  int64_t run = 1;
  bool run_is_kept = false;

  ReducedLayout(const Shape& x, const std::vector<int64_t>& axes) {
    const auto strides = x.strides();
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.size(axis) == 1) continue;
      run_is_kept = !std::binary_search(axes.begin(), axes.end(), axis);
      (run_is_kept ? kept : reduced).add(x.size(axis), strides[static_cast<size_t>(axis)]);
    }
    Offsets& inner = run_is_kept ? kept : reduced;
    if (inner.sizes.empty() || inner.strides.back() != 1) return;
    run = inner.sizes.back();
    inner.sizes.pop_back();
    inner.strides.pop_back();
  }
};

/// sum, max, min and product of the dtypes that have no vector code of their own
/// (scalar_reductions.cpp).
std::vector<KernelEntry> scalar_reduction_kernels();

}  // namespace brrr::cpu
