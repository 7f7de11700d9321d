#include "ops/spatial/windows.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace brrr::ops {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;

const std::vector<int64_t>& checked_list(const InferContext& c, const char* name, size_t count,
                                         int64_t low) {
  const auto& list = c.attr<std::vector<int64_t>>(name);
  if (list.size() != count) c.fail("{} must have {} numbers; got {}", name, count, list.size());
  for (const int64_t x : list)
    if (x < low || x >= kMost)
      c.fail("{} must be at least {} and below 2^31; got {}", name, low, x);
  return list;
}

/// How many windows fit an axis; none or fewer: 0 or less.
int64_t windows_along(const Windows& w, size_t axis, int64_t in, int64_t kernel) {
  const int64_t padded = in + w.pads[axis] + w.pads[axis + w.strides.size()];
  const int64_t rest = padded - w.dilations[axis] * (kernel - 1) - 1;
  return rest < 0 ? 0 : rest / w.strides[axis] + 1;
}

}  // namespace

int64_t WindowGrid::product_of(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

int64_t WindowGrid::taps() const {
  int64_t all = 1;
  for (size_t a = 0; a < axes(); ++a) {
    int64_t inside = 0;
    for (int64_t k = 0; k < kernel[a]; ++k) {
      // Windows o with 0 <= o * stride + first < in.
      const int64_t first = at(a, 0, k), stride = windows.strides[a];
      const int64_t low = first >= 0 ? 0 : (-first + stride - 1) / stride;
      const int64_t high = in[a] <= first ? 0 : (in[a] - first - 1) / stride + 1;
      inside += std::max<int64_t>(0, std::min(high, out[a]) - low);
    }
    all *= inside;
  }
  return all;
}

WindowGrid WindowGrid::without_single_elements() const {
  WindowGrid kept;
  std::vector<int64_t> behind;
  for (size_t a = 0; a < axes(); ++a) {
    const bool is_single = in[a] == 1 && kernel[a] == 1 && out[a] == 1 && before(a) == 0;
    if (is_single && !(a + 1 == axes() && kept.in.empty())) continue;
    kept.windows.strides.push_back(windows.strides[a]);
    kept.windows.dilations.push_back(windows.dilations[a]);
    kept.windows.pads.push_back(windows.pads[a]);
    behind.push_back(windows.pads[a + axes()]);
    kept.in.push_back(in[a]);
    kept.kernel.push_back(kernel[a]);
    kept.out.push_back(out[a]);
  }
  kept.windows.pads.insert(kept.windows.pads.end(), behind.begin(), behind.end());
  return kept;
}

std::vector<int64_t> spatial_sizes(const Shape& x) {
  std::vector<int64_t> sizes;
  for (int axis = 2; axis < x.rank(); ++axis) sizes.push_back(x.size(axis));
  return sizes;
}

WindowGrid window_grid(const Attrs& attrs, std::vector<int64_t> in, std::vector<int64_t> kernel) {
  WindowGrid grid;
  grid.windows = {attrs.get<std::vector<int64_t>>("strides"),
                  attrs.get<std::vector<int64_t>>("dilations"),
                  attrs.get<std::vector<int64_t>>("pads")};
  grid.in = std::move(in);
  grid.kernel = std::move(kernel);
  for (size_t a = 0; a < grid.in.size(); ++a)
    grid.out.push_back(windows_along(grid.windows, a, grid.in[a], grid.kernel[a]));
  return grid;
}

WindowGrid checked_grid(const InferContext& c, std::vector<int64_t> in,
                        std::vector<int64_t> kernel) {
  const size_t axes = in.size();
  if (kernel.size() != axes)
    c.fail("a kernel of {} axes over {} spatial axes", kernel.size(), axes);
  checked_list(c, "strides", axes, 1);
  checked_list(c, "dilations", axes, 1);
  checked_list(c, "pads", 2 * axes, 0);
  for (const int64_t size : kernel)
    if (size < 1 || size >= kMost) c.fail("a kernel's size must be at least 1; got {}", size);
  WindowGrid grid = window_grid(c.attrs, std::move(in), std::move(kernel));
  for (size_t a = 0; a < axes; ++a)
    if (grid.out[a] < 1)
      c.fail("a kernel of {} does not fit spatial axis {} of {}", grid.kernel[a], a, grid.in[a]);
  return grid;
}

bool has_channels_last(const Attrs& attrs) { return attrs.get_or("channels_last", false); }

Windows windows_of(const Attrs& attrs) {
  return {attrs.get<std::vector<int64_t>>("strides"), attrs.get<std::vector<int64_t>>("dilations"),
          attrs.get<std::vector<int64_t>>("pads"), has_channels_last(attrs)};
}

Pictures::Pictures(const Shape& shape, bool last)
    : batch(shape[0]), channels(shape.size(last ? -1 : 1)), channels_last(last) {
  for (int axis = 2; axis < shape.rank(); ++axis) spatial.push_back(shape.size(axis - last));
  for (const int64_t size : spatial) elements_ *= size;
}

Pictures::Pictures(Dim count, int64_t planes, std::vector<int64_t> sizes, bool last)
    : batch(count), channels(planes), spatial(std::move(sizes)), channels_last(last) {
  for (const int64_t size : spatial) elements_ *= size;
}

Shape Pictures::shape() const {
  Shape shape{batch};
  if (!channels_last) shape.push_back(channels);
  for (const int64_t size : spatial) shape.push_back(size);
  if (channels_last) shape.push_back(channels);
  return shape;
}

std::vector<int64_t> Pictures::spatial_axes() const {
  std::vector<int64_t> axes(spatial.size());
  std::iota(axes.begin(), axes.end(), channels_last ? 1 : 2);
  return axes;
}

Attrs window_attrs(const Windows& windows, Attrs more) {
  more.set("strides", windows.strides);
  more.set("dilations", windows.dilations);
  more.set("pads", windows.pads);
  if (windows.channels_last) more.set("channels_last", true);
  return more;
}

}  // namespace brrr::ops
