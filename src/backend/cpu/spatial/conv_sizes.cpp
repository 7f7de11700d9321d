#include "backend/cpu/spatial/conv_sizes.h"

#include <algorithm>

#include "backend/cpu/spatial/columns.h"
#include "backend/cpu/spatial/window_rows.h"

namespace brrr::cpu {
namespace {

/// The windows of a node. Axes of one element with one window are left out.
ops::WindowGrid conv_grid(const NodeView& v, std::vector<int64_t> in, std::vector<int64_t> kernel) {
  return ops::window_grid(v.attrs(), std::move(in), std::move(kernel)).without_single_elements();
}

}  // namespace

int64_t ConvSizes::rows_at_a_time() const {
  // The column matrix of a part should stay in a cache. It should not be much smaller than the
  // weights either, which are packed again for each part.
  constexpr int64_t kColumnBytes = int64_t{1} << 19, kMostColumnBytes = int64_t{1} << 23;
  const int64_t bytes = std::max<int64_t>(1, terms() * grid.out.back() * element());
  const int64_t part = std::clamp(mg() * terms() * element(), kColumnBytes, kMostColumnBytes);
  return std::clamp<int64_t>(part / bytes, 1, window_row_count(grid));
}

ConvSizes sizes_of_conv(const NodeView& v) {
  const Shape &x = v.in[0].shape, &w = v.in[1].shape;
  return {x.size(0),
          v.attrs().get<int64_t>("groups"),
          x.size(1),
          w.size(0),
          conv_grid(v, ops::spatial_sizes(x), ops::spatial_sizes(w)),
          v.in[0].dtype};
}
ConvSizes sizes_of_conv_transpose(const NodeView& v) {
  const Shape &y = v.in[0].shape, &w = v.in[1].shape, &x = v.out()[0].shape;
  return {y.size(0),
          v.attrs().get<int64_t>("groups"),
          x.size(1),
          w.size(0),
          conv_grid(v, ops::spatial_sizes(x), ops::spatial_sizes(w)),
          v.in[0].dtype};
}
ConvSizes sizes_of_conv_weight_grad(const NodeView& v) {
  const Shape &x = v.in[0].shape, &dy = v.in[1].shape;
  return {x.size(0),
          v.attrs().get<int64_t>("groups"),
          x.size(1),
          dy.size(1),
          conv_grid(v, ops::spatial_sizes(x), v.attrs().get<std::vector<int64_t>>("kernel")),
          v.in[0].dtype};
}

std::string conv_float_refusal(const NodeView& v) {
  for (const std::span<const Type> types : {std::span<const Type>(v.in), v.out()})
    for (const Type& t : types) {
      if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)
        return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t.dtype));
      if (t.shape.elements() == 0) return "an operand has no elements";
    }
  return "";
}

ConvBias::ConvBias(const NodeView& v) {
  if (!v.attrs().get<bool>("bias")) return;
  dtype_ = v.in[2].dtype;
  count_ = v.in[2].shape.size(0);
  exists_ = true;
}

const float* ConvBias::read(const void* const* in, std::byte* wide) const {
  if (!exists_) return nullptr;
  if (dtype_ == DType::f32) return static_cast<const float*>(in[2]);
  auto* to = reinterpret_cast<float*>(wide);
  window_rows().read(dtype_, in[2], count_, to);
  return to;
}

}  // namespace brrr::cpu
