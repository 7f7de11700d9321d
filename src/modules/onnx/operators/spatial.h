#pragma once
// What the operators over [N, C, spatial...] share.

#include <vector>

#include "modules/onnx/call.h"
#include "ops/ops.h"

namespace brrr::onnx {

/// The dtype that sums of x are in: f32 for 16-bit floats.
DType sum_dtype(DType dtype);
/// The sizes of the spatial axes of operand i; UserError where it has none.
std::vector<int64_t> spatial_axes(Call& c, size_t i);
/// [C] as [C, 1, ...], which broadcasts against x: [N, C, spatial...].
Value per_channel(Value v, const Value& x);

/// The windows that attributes describe over axes of size `in`.
struct PlacedWindows {
  std::vector<int64_t> kernel, out;
  Windows windows;  // pads as they are needed: ceil_mode reads beyond those asked for
  std::vector<int64_t> file_pads;  // those asked for
};
/// With `may_be_none`, an axis may have no window: `out` is 0 there.
PlacedWindows placed_windows(Call& c, const std::vector<int64_t>& in, std::vector<int64_t> kernel,
                             bool may_be_none = false);
/// A list attribute of so many integers in [low, 2^31), or the fallback for each.
std::vector<int64_t> size_list(Call& c, std::string_view name, size_t count, int64_t fallback,
                               int64_t low);

}  // namespace brrr::onnx
