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
  const ops::Pictures x(v.in[0].shape, ops::has_channels_last(v.attrs()));
  const Shape& w = v.in[1].shape;
  const bool is_matrix = v.attrs().find("kernel") != nullptr;
  return {
      x.batch.size(),
      v.attrs().get<int64_t>("groups"),
      x.channels,
      w.size(0),
      conv_grid(v, x.spatial,
                is_matrix ? v.attrs().get<std::vector<int64_t>>("kernel") : ops::spatial_sizes(w)),
      v.in[0].dtype};
}
ConvSizes sizes_of_conv_transpose(const NodeView& v) {
  const ops::Pictures x(v.out()[0].shape, ops::has_channels_last(v.attrs()));
  const Shape& w = v.in[1].shape;
  return {x.batch.size(),
          v.attrs().get<int64_t>("groups"),
          x.channels,
          w.size(0),
          conv_grid(v, x.spatial, ops::spatial_sizes(w)),
          v.in[0].dtype};
}
ConvSizes sizes_of_conv_weight_grad(const NodeView& v) {
  const bool last = ops::has_channels_last(v.attrs());
  const ops::Pictures x(v.in[0].shape, last), dy(v.in[1].shape, last);
  return {x.batch.size(),
          v.attrs().get<int64_t>("groups"),
          x.channels,
          dy.channels,
          conv_grid(v, x.spatial, v.attrs().get<std::vector<int64_t>>("kernel")),
          v.in[0].dtype};
}

std::string picture_float_refusal(const NodeView& v) {
  for (const std::span<const Type> types : {std::span<const Type>(v.in), v.out()})
    for (const Type& t : types) {
      if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)
        return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t.dtype));
      if (t.shape.elements() == 0) return "an operand has no elements";
    }
  return "";
}

std::string conv_float_refusal(const NodeView& v) {
  return ops::has_channels_last(v.attrs()) ? "channels last" : picture_float_refusal(v);
}

ConvBias::ConvBias(const NodeView& v) {
  if (!v.attrs().get_or("bias", false)) return;
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
