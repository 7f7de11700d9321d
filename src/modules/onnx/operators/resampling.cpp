// Resize and Upsample: separable, so each axis is taken by itself. Its elements are copied where
// the mode is nearest; otherwise the axis is multiplied by a matrix of weights.

#include <algorithm>
#include <cmath>

#include "modules/onnx/operators/spatial.h"

namespace brrr::onnx {
namespace {

struct ResizeMode {
  std::string mode = "nearest", nearest = "round_prefer_floor", coordinates = "half_pixel";
  double cubic = -0.75, extrapolation = 0;
  bool excludes_outside = false, antialias = false;
};

/// How one axis is resized.
struct ResizedAxis {
  int64_t in = 0, out = 0;
  double scale = 1;  // of the size of the result
  double begin = 0, end = 1;
  /// The place in x that element i of the result is taken from.
  double place(const ResizeMode& m, int64_t i) const {
    const auto at = static_cast<double>(i), size = static_cast<double>(in);
    const double exact = scale * size;  // the size of the result before it is rounded
    if (m.coordinates == "align_corners") return exact == 1 ? 0 : at * (size - 1) / (exact - 1);
    if (m.coordinates == "asymmetric") return at / scale;
    if (m.coordinates == "tf_half_pixel_for_nn") return (at + 0.5) / scale;
    if (m.coordinates == "pytorch_half_pixel" && exact == 1) return -0.5;
    if (m.coordinates == "half_pixel_symmetric")
      return size / 2 * (1 - static_cast<double>(out) / exact) + (at + 0.5) / scale - 0.5;
    if (m.coordinates == "tf_crop_and_resize")
      return (size - 1) * (out > 1 ? begin + at * (end - begin) / (static_cast<double>(out) - 1)
                                   : (begin + end) / 2);
    return (at + 0.5) / scale - 0.5;
  }
  bool is_outside(const ResizeMode& m, int64_t i) const {
    const double at = place(m, i);
    return m.coordinates == "tf_crop_and_resize" && (at < 0 || at > static_cast<double>(in - 1));
  }
  bool changes(const ResizeMode& m) const {
    return in != out || scale != 1 ||
           (m.coordinates == "tf_crop_and_resize" && (begin != 0 || end != 1));
  }
};

int64_t nearest_element(const ResizeMode& m, const ResizedAxis& axis, int64_t i) {
  const double at = axis.place(m, i);
  const bool down = m.nearest == "ceil" || (m.nearest == "by_scale" && axis.scale < 1);
  const double rounded = down                               ? std::ceil(at)
                         : m.nearest == "by_scale"          ? std::floor(at)
                         : m.nearest == "floor"             ? std::floor(at)
                         : m.nearest == "round_prefer_ceil" ? std::floor(at + 0.5)
                                                            : std::ceil(at - 0.5);
  return static_cast<int64_t>(std::clamp(rounded, 0.0, static_cast<double>(axis.in - 1)));
}

/// The weight of an element at a distance, which counts elements of the smaller size.
double weight_at(const ResizeMode& m, double distance) {
  const double d = std::fabs(distance), a = m.cubic;
  if (m.mode == "linear") return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((d - 5) * d + 8) * d * a - 4 * a : 0;
}

/// [out, in]: the weights of each element of the result.
std::vector<double> weight_matrix(const ResizeMode& m, const ResizedAxis& axis) {
  std::vector<double> matrix(static_cast<size_t>(axis.in * axis.out), 0);
  const double narrow = m.antialias ? std::min(axis.scale, 1.0) : 1;
  const double reach = (m.mode == "linear" ? 1 : 2) / narrow;
  for (int64_t o = 0; o < axis.out; ++o) {
    if (axis.is_outside(m, o)) continue;
    const double at = axis.place(m, o);
    double total = 0;
    double* const row = matrix.data() + o * axis.in;
    for (auto i = static_cast<int64_t>(std::ceil(at - reach));
         i <= static_cast<int64_t>(std::floor(at + reach)); ++i) {
      const bool outside = i < 0 || i >= axis.in;
      if (outside && m.excludes_outside) continue;
      const double weight = weight_at(m, (static_cast<double>(i) - at) * narrow);
      row[std::clamp<int64_t>(i, 0, axis.in - 1)] += weight;
      total += weight;
    }
    if ((m.antialias || m.excludes_outside) && total != 0)
      for (int64_t i = 0; i < axis.in; ++i) row[i] /= total;
  }
  return matrix;
}

Shape around(const Shape& x, int axis, std::initializer_list<Dim> middle) {
  const AxisSplit split = split_at(x, axis);
  Shape shape{split.outer};
  for (const Dim& d : middle) shape.push_back(d);
  shape.push_back(split.inner);
  return shape;
}

Value copied_axis(Call& c, Value x, int axis, const ResizeMode& m, const ResizedAxis& r) {
  std::vector<Number> ids;
  const int64_t times = r.in == 0 ? 0 : r.out / r.in;
  bool repeats = times >= 1 && r.out == r.in * times;
  for (int64_t o = 0; o < r.out; ++o) {
    const int64_t id = nearest_element(m, r, o);
    repeats = repeats && id == o / times;
    ids.emplace_back(id);
  }
  Shape shape = x.shape();
  shape[axis] = Dim(r.out);
  if (!repeats) return gather(x, literal(c.graph(), {r.out}, ids, DType::i64), axis);
  return reshape(broadcast_to(reshape(x, around(x.shape(), axis, {r.in, 1})),
                              around(x.shape(), axis, {r.in, times})),
                 shape);
}

Value weighted_axis(Call& c, Value x, int axis, const ResizeMode& m, const ResizedAxis& r) {
  constexpr int64_t kMostWeights = int64_t{1} << 24;
  if (r.out * r.in > kMostWeights) c.refuse("an axis of {} resized to {}", r.in, r.out);
  const std::vector<double> weights = weight_matrix(m, r);
  const Value matrix = literal(c.graph(), {r.out, r.in},
                               std::vector<Number>(weights.begin(), weights.end()), x.dtype());
  Shape shape = x.shape();
  shape[axis] = Dim(r.out);
  if (axis == x.shape().rank() - 1) {
    const int64_t rows = r.in == 0 ? 0 : x.shape().elements() / r.in;
    return reshape(matmul(reshape(x, {rows, r.in}), matrix, false, true), shape);
  }
  return reshape(matmul(matrix, reshape(x, around(x.shape(), axis, {r.in}))), shape);
}

/// Elements beyond the region take the value of the file.
Value extrapolated(Call& c, Value x, int axis, const ResizeMode& m, const ResizedAxis& r) {
  std::vector<Number> outside;
  bool any = false;
  for (int64_t o = 0; o < r.out; ++o) {
    any = any || r.is_outside(m, o);
    outside.emplace_back(r.is_outside(m, o) ? 1 : 0);
  }
  if (!any) return x;
  Shape column{r.out};
  for (int a = axis + 1; a < x.shape().rank(); ++a) column.push_back(Dim(1));
  const Value mask = cast(literal(c.graph(), column, outside, DType::i32), DType::boolean);
  return where(mask, c.scalar_like(m.extrapolation, x), x);
}

Value resized(Call& c, Value x, const std::vector<ResizedAxis>& axes, const ResizeMode& m) {
  const DType dtype = x.dtype();
  if (m.mode != "nearest") {
    x = cast(x, dtype == DType::f64 ? dtype : DType::f32);
  }
  // From the last axis on: what repeats elements one by one then works on fewer.
  for (int axis = x.shape().rank() - 1; axis >= 0; --axis) {
    const ResizedAxis& r = axes[static_cast<size_t>(axis)];
    if (!r.changes(m)) continue;
    if (r.in == 0 && r.out > 0) c.fail("an empty axis is resized to {}", r.out);
    x = m.mode == "nearest" ? copied_axis(c, x, axis, m, r) : weighted_axis(c, x, axis, m, r);
  }
  // Where one axis lies outside, the others do not count.
  if (m.coordinates == "tf_crop_and_resize")
    for (int axis = 0; axis < x.shape().rank(); ++axis)
      x = extrapolated(c, x, axis, m, axes[static_cast<size_t>(axis)]);
  if (!is_float(dtype) && is_float(x.dtype())) {
    // Weights of cubic curves can leave the range of the dtype; a cast takes its nearest end.
    x = round(x);
  }
  return cast(x, dtype);
}

std::vector<double> numbers_of(Call& c, size_t i) {
  std::vector<double> list;
  if (!c.has(i)) return list;
  const RefTensor& t = c.known(i);
  for (size_t k = 0; k < t.size(); ++k) list.push_back(t.number(k));
  return list;
}

std::vector<ResizedAxis> axes_by_scale(Call& c, const Shape& x, const std::vector<int64_t>& named,
                                       const std::vector<double>& scales) {
  if (scales.size() != named.size()) c.fail("{} scales for {} axes", scales.size(), named.size());
  std::vector<ResizedAxis> axes;
  for (int a = 0; a < x.rank(); ++a) axes.push_back({x.size(a), x.size(a)});
  for (size_t k = 0; k < named.size(); ++k) {
    ResizedAxis& axis = axes[static_cast<size_t>(named[k])];
    if (!(scales[k] > 0)) c.fail("a scale is {}", scales[k]);
    axis.scale = scales[k];
    const double size = std::floor(static_cast<double>(axis.in) * scales[k]);
    if (!(size < static_cast<double>(int64_t{1} << 31))) c.fail("a scale is {}", scales[k]);
    axis.out = static_cast<int64_t>(size);
  }
  return axes;
}

std::vector<ResizedAxis> axes_by_size(Call& c, const Shape& x, const std::vector<int64_t>& named,
                                      const std::vector<int64_t>& sizes) {
  if (sizes.size() != named.size()) c.fail("{} sizes for {} axes", sizes.size(), named.size());
  const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
  const bool smallest = policy == "not_larger", largest = policy == "not_smaller";
  if (!smallest && !largest && policy != "stretch") c.fail("keep_aspect_ratio_policy = {}", policy);
  std::vector<ResizedAxis> axes;
  for (int a = 0; a < x.rank(); ++a) axes.push_back({x.size(a), x.size(a)});
  std::optional<double> common;
  for (size_t k = 0; k < named.size(); ++k) {
    ResizedAxis& axis = axes[static_cast<size_t>(named[k])];
    if (sizes[k] < 0 || sizes[k] >= (int64_t{1} << 31)) c.fail("a size is {}", sizes[k]);
    if (axis.in == 0) c.fail("an empty axis is resized to {}", sizes[k]);
    axis.out = sizes[k];
    axis.scale = static_cast<double>(sizes[k]) / static_cast<double>(axis.in);
    if (!common || (smallest ? axis.scale < *common : axis.scale > *common)) common = axis.scale;
  }
  if (smallest || largest)
    for (const int64_t a : named) {
      ResizedAxis& axis = axes[static_cast<size_t>(a)];
      axis.scale = *common;
      axis.out = static_cast<int64_t>(*common * static_cast<double>(axis.in) + 0.5);
    }
  return axes;
}

ResizeMode mode_of_resize(Call& c) {
  ResizeMode m;
  m.mode = c.text("mode", "nearest");
  m.nearest = c.text("nearest_mode", m.nearest);
  m.coordinates = c.text("coordinate_transformation_mode", m.coordinates);
  m.cubic = c.number("cubic_coeff_a", m.cubic);
  m.extrapolation = c.number("extrapolation_value", 0.0);
  m.excludes_outside = c.integer("exclude_outside", 0) != 0;
  m.antialias = c.integer("antialias", 0) != 0;
  constexpr const char* kModes[] = {"nearest", "linear", "cubic"};
  constexpr const char* kNearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
  constexpr const char* kCoordinates[] = {
      "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
      "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
  if (std::ranges::find(kModes, m.mode) == std::end(kModes)) c.refuse("mode = {}", m.mode);
  if (std::ranges::find(kNearest, m.nearest) == std::end(kNearest))
    c.refuse("nearest_mode = {}", m.nearest);
  if (std::ranges::find(kCoordinates, m.coordinates) == std::end(kCoordinates))
    c.refuse("coordinate_transformation_mode = {}", m.coordinates);
  return m;
}

void resize(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  const ResizeMode m = mode_of_resize(c);
  std::vector<int64_t> named;
  if (const auto list = c.integer_list("axes"))
    named = c.axes(*list, rank);
  else
    for (int a = 0; a < rank; ++a) named.push_back(a);
  const std::vector<double> scales = numbers_of(c, 2);
  if (scales.empty() && !c.has(3)) c.fail("needs scales or sizes");
  std::vector<ResizedAxis> axes = scales.empty() ? axes_by_size(c, x.shape(), named, c.integers(3))
                                                 : axes_by_scale(c, x.shape(), named, scales);
  if (m.coordinates == "tf_crop_and_resize") {
    const std::vector<double> region = numbers_of(c, 1);
    if (region.size() != 2 * named.size())
      c.fail("a roi of {} numbers for {} axes", region.size(), named.size());
    for (size_t k = 0; k < named.size(); ++k) {
      axes[static_cast<size_t>(named[k])].begin = region[k];
      axes[static_cast<size_t>(named[k])].end = region[k + named.size()];
    }
  }
  c.out(resized(c, x, axes, m));
}

/// Upsample, and Resize before opset 11: places are i / scale; the nearest lies before them, or
/// behind them where the axis becomes shorter.
void resize_by_scales(Call& c) {
  const Value x = c.in(0);
  ResizeMode m;
  m.mode = c.text("mode", "nearest");
  if (m.mode == "bilinear") m.mode = "linear";
  if (m.mode != "nearest" && m.mode != "linear") c.refuse("mode = {}", m.mode);
  m.nearest = "by_scale";
  m.coordinates = "asymmetric";
  std::vector<int64_t> named;
  for (int a = 0; a < x.shape().rank(); ++a) named.push_back(a);
  std::vector<double> scales = numbers_of(c, 1);
  if (const auto list = c.number_list("scales")) scales.assign(list->begin(), list->end());
  if (c.has_attribute("height_scale"))  // opset 1
    scales = {1, 1, c.number("height_scale"), c.number("width_scale")};
  c.out(resized(c, x, axes_by_scale(c, x.shape(), named, scales), m));
}

const OperatorRow kResamplingRows[] = {
    {"", "Resize", resize_by_scales, 10},
    {"", "Resize", resize, 11},
    {"", "Upsample", resize_by_scales},
};

}  // namespace

std::span<const OperatorRow> resampling_operators() { return kResamplingRows; }

}  // namespace brrr::onnx
