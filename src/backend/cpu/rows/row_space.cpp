#include "backend/cpu/rows/row_space.h"

#include "base/errors.h"

namespace brrr::cpu {

RowSpace::RowSpace(const Shape& out, std::span<const Type> in) : elements(out.elements()) {
  BRRR_CHECK(in.size() <= kMaxOperands, "{} operands", in.size());
  for (int axis = 0; axis < out.rank(); ++axis) {
    const int64_t size = out.size(axis);
    if (size == 1) continue;
    Offsets stride{};
    for (size_t k = 0; k < in.size(); ++k) {
      const Shape& shape = in[k].shape;
      const int own = axis - (out.rank() - shape.rank());
      if (own < 0 || shape.size(own) == 1) continue;
      stride[k] = 1;
      for (int inner = own + 1; inner < shape.rank(); ++inner) stride[k] *= shape.size(inner);
    }
    bool merges = !sizes.empty();
    for (size_t k = 0; merges && k < in.size(); ++k) merges = strides.back()[k] == stride[k] * size;
    if (merges) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
  if (sizes.empty()) return;  // one element
  row = sizes.back();
  for (size_t k = 0; k < in.size(); ++k) repeated[k] = strides.back()[k] == 0;
  sizes.pop_back();
  strides.pop_back();
}

}  // namespace brrr::cpu
