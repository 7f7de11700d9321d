// Operators that read images at places between their elements: GridSample, RoiAlign, DeformConv;
// and AffineGrid, which makes such places. Elements are gathered as rows of channels.

#include <algorithm>
#include <array>
#include <cmath>

#include "modules/onnx/operators/spatial.h"

namespace brrr::onnx {
namespace {

/// What a place takes along one axis: elements, each with a weight. All of them are [Q].
struct AxisTap {
  Value id;      // i64, in range
  Value weight;  // 0 where the element lies outside
};
using AxisTaps = std::vector<AxisTap>;

enum class Beyond { zeros, border, reflection };

/// Reflected at both ends as often as needed.
Value reflected(Value p, double low, double high) {
  const double range = high - low;
  const Value from = scalar(*p.graph, range, p.dtype());
  if (range <= 0) return p * 0.0 + low;
  const Value there = fmod(abs(p - low), scalar(*p.graph, 2 * range, p.dtype()));
  return where(less_equal(there, from), there, 2 * range - there) + low;
}

class AxisSampler {
 public:
  AxisSampler(Call& c, int64_t size, Beyond beyond, bool align_corners)
      : c_(c), size_(size), beyond_(beyond) {
    low_ = align_corners ? 0 : -0.5;
    high_ = static_cast<double>(size) + (align_corners ? -1 : -0.5);
  }

  /// A place inside, before elements are chosen.
  Value inside(Value p) const {
    if (beyond_ == Beyond::border) return limited_to(p, 0, static_cast<double>(size_ - 1));
    return beyond_ == Beyond::reflection ? reflected(p, low_, high_) : p;
  }
  /// The element at a whole number `at`, with a weight.
  AxisTap tap(Value at, Value weight) const {
    if (beyond_ == Beyond::zeros) {
      const double last = static_cast<double>(size_ - 1);
      const Value is_in = logical_and(greater_equal(at, c_.scalar_like(0, at)),
                                      less_equal(at, c_.scalar_like(last, at)));
      weight = where(is_in, weight, c_.scalar_like(0, weight));
    } else if (beyond_ == Beyond::reflection) {
      at = reflected(at, low_, high_);
    }
    // Integers last, so that no place, a NaN not either, names an element that is not there.
    const Value id = cast(limited_to(at, 0, static_cast<double>(size_ - 1)), DType::i64);
    return {minimum(maximum(id, c_.scalar(0, DType::i64)), c_.scalar(size_ - 1, DType::i64)),
            weight};
  }
  AxisTaps nearest(Value p) const {
    const Value at = inside(round(p));
    return {tap(at, c_.scalar_like(1, p) + p * 0.0)};
  }
  AxisTaps linear(Value p) const {
    p = inside(p);
    const Value first = floor(p), part = p - first;
    return {tap(first, 1 - part), tap(first + 1, part)};
  }
  AxisTaps cubic(Value p) const {
    // As PyTorch and ONNX Runtime do: at the border each element is brought inside, not the place.
    if (beyond_ != Beyond::border) p = inside(p);
    const Value first = floor(p), part = p - first;
    return {tap(first - 1, far(part + 1)), tap(first, near(part)), tap(first + 1, near(1 - part)),
            tap(first + 2, far(2 - part))};
  }

 private:
  static constexpr double kCubic = -0.75;
  static Value limited_to(Value p, double low, double high) {
    return minimum(maximum(p, scalar(*p.graph, low, p.dtype())), scalar(*p.graph, high, p.dtype()));
  }
  /// Keys' curve, up to a distance of 1 and from there to 2.
  static Value near(Value d) { return ((kCubic + 2) * d - (kCubic + 3)) * d * d + 1; }
  static Value far(Value d) { return (((d - 5) * d + 8) * d - 4) * kCubic; }

  Call& c_;
  int64_t size_;
  Beyond beyond_;
  double low_, high_;
};

/// [N, C, spatial...] as rows [N spatial, C].
Value pixel_rows(Value x) {
  const int64_t n = x.shape().size(0), channels = x.shape().size(1);
  const int64_t plane = n * channels == 0 ? 0 : x.shape().elements() / (n * channels);
  return reshape(transpose(reshape(x, {n, channels, plane}), {0, 2, 1}), {n * plane, channels});
}

/// The weighted sums [Q, C] of rows, an axis of the image after the other; `base`: [Q], the first
/// row of the image that each place is in.
Value sampled_rows(Call& c, Value rows, Value base, const std::vector<AxisTaps>& axes,
                   const std::vector<int64_t>& sizes) {
  struct Corner {
    Value row;
    std::optional<Value> weight;
  };
  std::vector<Corner> corners;
  for (size_t a = 0; a < axes.size(); ++a) {
    std::vector<Corner> next;
    for (const AxisTap& tap : axes[a]) {
      if (a == 0) {
        next.push_back({tap.id, tap.weight});
        continue;
      }
      for (const Corner& corner : corners)
        next.push_back(
            {corner.row * c.scalar(sizes[a], DType::i64) + tap.id, *corner.weight * tap.weight});
    }
    corners = std::move(next);
  }
  std::optional<Value> sum;
  for (const Corner& corner : corners) {
    const int64_t count = corner.row.shape().elements();
    const Value part = gather(rows, corner.row + base, 0) *
                       reshape(cast(*corner.weight, rows.dtype()), {count, 1});
    sum = sum ? *sum + part : part;
  }
  return *sum;
}

int64_t product_of_sizes(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

Value batch_base(Call& c, int64_t batch, int64_t places, int64_t rows_of_image) {
  return reshape(
      iota(c.graph(), {batch, places}, 0, DType::i64) * c.scalar(rows_of_image, DType::i64),
      {batch * places});
}

void grid_sample(Call& c) {
  const DType dtype = c.in(0).dtype();
  const std::vector<int64_t> in = spatial_axes(c, 0);
  const Value x = cast(c.in(0), sum_dtype(dtype));
  Value grid = c.in(1);
  grid = cast(grid, sum_dtype(grid.dtype()));
  const auto axes = static_cast<int>(in.size());
  const Shape& g = grid.shape();
  if (g.rank() != axes + 2 || g.size(-1) != axes || g[0] != x.shape()[0])
    c.fail("expected a grid [{}, ..., {}]; got {}", x.shape()[0].str(), axes, grid.type().str());
  if (product_of_sizes(in) == 0) c.fail("an image without elements");
  const std::string mode = c.text("mode", c.opset() >= 20 ? "linear" : "bilinear"),
                    padding = c.text("padding_mode", "zeros");
  const bool align = c.integer("align_corners", 0) != 0;
  const bool nearest = mode == "nearest", cubic = mode == "cubic" || mode == "bicubic";
  if (!nearest && !cubic && mode != "linear" && mode != "bilinear") c.refuse("mode = {}", mode);
  if (padding != "zeros" && padding != "border" && padding != "reflection")
    c.refuse("padding_mode = {}", padding);
  const Beyond beyond = padding == "zeros"    ? Beyond::zeros
                        : padding == "border" ? Beyond::border
                                              : Beyond::reflection;
  const int64_t n = x.shape().size(0), channels = x.shape().size(1);
  const int64_t count = g.elements() / axes;
  std::vector<AxisTaps> taps;
  for (int a = 0; a < axes; ++a) {
    // A place is written from the last axis on.
    const Value at = reshape(slice(grid, g.rank() - 1, axes - 1 - a, 1), {count});
    const auto size = static_cast<double>(in[static_cast<size_t>(a)]);
    const Value p = align ? (at + 1) * ((size - 1) / 2) : ((at + 1) * size - 1) * 0.5;
    const AxisSampler sampler(c, in[static_cast<size_t>(a)], beyond, align);
    taps.push_back(nearest ? sampler.nearest(p) : cubic ? sampler.cubic(p) : sampler.linear(p));
  }
  const int64_t places = n == 0 ? 0 : count / n;
  const Value y =
      sampled_rows(c, pixel_rows(x), batch_base(c, n, places, product_of_sizes(in)), taps, in);
  Shape shape{n, channels};
  for (int a = 1; a <= axes; ++a) shape.push_back(g[a]);
  c.out(cast(reshape(transpose(reshape(y, {n, places, channels}), {0, 2, 1}), shape), dtype));
}

void affine_grid(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Value theta = cast(c.in(0), sum_dtype(dtype));
  const std::vector<int64_t> size = c.integers(1);
  const auto axes = static_cast<int>(size.size()) - 2;
  if (axes < 1 || theta.shape().rank() != 3 || theta.shape().size(1) != axes ||
      theta.shape().size(2) != axes + 1)
    c.fail("theta {} for {} spatial axes", theta.type().str(), axes);
  const bool align = c.integer("align_corners", 0) != 0;
  Shape spatial(std::vector<int64_t>(size.begin() + 2, size.end()));
  const int64_t places = spatial.elements();
  std::vector<Value> columns;
  for (int a = axes - 1; a >= 0; --a) {
    const Value i = iota(c.graph(), spatial, a, theta.dtype());
    const auto d = static_cast<double>(spatial.size(a));
    const Value at = !align ? (i * 2.0 + 1) * (1 / d) - 1 : d > 1 ? i * (2 / (d - 1)) - 1 : i;
    columns.push_back(reshape(at, {places, 1}));
  }
  columns.push_back(full(c.graph(), {places, 1}, 1, theta.dtype()));
  const Value grid = matmul(concat(columns, 1), theta, false, true);
  Shape shape{theta.shape()[0]};
  for (const Dim& dim : spatial.dims()) shape.push_back(dim);
  shape.push_back(axes);
  c.out(cast(reshape(grid, shape), dtype));
}

// -- regions
// -------------------------------------------------------------------------------------

/// An element of an image and its weight.
struct Pixel {
  int64_t row = 0;
  double weight = 0;
};

/// The four elements around a place; all weights are 0 where it lies outside.
std::array<Pixel, 4> pixels_around(double y, double x, int64_t height, int64_t width) {
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  if (!(y >= -1 && y <= h && x >= -1 && x <= w)) return {};
  const auto split = [](double at, int64_t size, int64_t& low, int64_t& high) {
    at = std::max(at, 0.0);
    low = std::min(static_cast<int64_t>(at), size - 1);
    high = std::min(low + 1, size - 1);
    return low >= size - 1 ? 0 : at - static_cast<double>(low);
  };
  int64_t top = 0, bottom = 0, left = 0, right = 0;
  const double down = split(y, height, top, bottom), across = split(x, width, left, right);
  return {{{top * width + left, (1 - down) * (1 - across)},
           {top * width + right, (1 - down) * across},
           {bottom * width + left, down * (1 - across)},
           {bottom * width + right, down * across}}};
}

/// How RoiAlign samples: what its attributes say.
struct RegionForm {
  int64_t height = 1, width = 1, ratio = 0;  // of the result
  double scale = 1, offset = 0;
  bool takes_max = false;
};

/// For each bin of each region, row by row, the places that it samples.
std::vector<std::vector<Pixel>> region_pixels(Call& c, const RegionForm& form,
                                              const RefTensor& rois,
                                              const std::vector<int64_t>& batch, const Shape& x) {
  constexpr double kMostSamples = 1 << 12;
  std::vector<std::vector<Pixel>> bins;
  for (size_t r = 0; r < batch.size(); ++r) {
    double edge[4];
    for (size_t k = 0; k < 4; ++k) edge[k] = rois.number(4 * r + k) * form.scale - form.offset;
    double wide = edge[2] - edge[0], high = edge[3] - edge[1];
    if (form.offset == 0) {
      wide = std::max(wide, 1.0);
      high = std::max(high, 1.0);
    }
    const double bin_h = high / static_cast<double>(form.height),
                 bin_w = wide / static_cast<double>(form.width);
    const double ratio = static_cast<double>(form.ratio);
    const double down = form.ratio > 0 ? ratio : std::max(0.0, std::ceil(bin_h)),
                 across = form.ratio > 0 ? ratio : std::max(0.0, std::ceil(bin_w));
    if (!(down * across <= kMostSamples)) c.fail("region {} is too large: {} x {}", r, high, wide);
    if (batch[r] < 0 || batch[r] >= x.size(0)) c.fail("region {} is of image {}", r, batch[r]);
    const double share = form.takes_max ? 1 : 1 / std::max(1.0, down * across);
    for (int64_t i = 0; i < form.height * form.width; ++i) {
      std::vector<Pixel> bin;
      for (double u = 0; u < down; ++u)
        for (double v = 0; v < across; ++v) {
          const double at_y = edge[1] + static_cast<double>(i / form.width) * bin_h +
                              (u + 0.5) * bin_h / down,
                       at_x = edge[0] + static_cast<double>(i % form.width) * bin_w +
                              (v + 0.5) * bin_w / across;
          for (Pixel p : pixels_around(at_y, at_x, x.size(2), x.size(3)))
            bin.push_back({batch[r] * x.size(2) * x.size(3) + p.row, p.weight * share});
        }
      bins.push_back(std::move(bin));
    }
  }
  return bins;
}

void roi_align(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Value x = cast(c.in(0), sum_dtype(dtype));
  if (x.shape().rank() != 4 || x.shape().elements() == 0)
    c.fail("expected images [N, C, H, W]; got {}", x.type().str());
  // How often a region is sampled depends on its size.
  const RefTensor& rois = c.known(1);
  const std::vector<int64_t> batch = c.integers(2);
  const auto regions = static_cast<int64_t>(batch.size());
  if (rois.type.shape != Shape{regions, 4})
    c.fail("expected regions [{}, 4]; got {}", regions, rois.type.str());
  RegionForm form{c.integer("output_height", 1), c.integer("output_width", 1),
                  c.integer("sampling_ratio", 0), c.number("spatial_scale", 1.0)};
  if (form.height < 1 || form.width < 1 || form.height > 4096 || form.width > 4096)
    c.fail("a result of {} x {}", form.height, form.width);
  const bool half =
      c.opset() >= 16 && c.text("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  form.offset = half ? 0.5 : 0;
  form.takes_max = c.text("mode", "avg") == "max";
  const auto bins = region_pixels(c, form, rois, batch, x.shape());
  const int64_t channels = x.shape().size(1), count = std::ssize(bins);
  size_t most = 0;
  for (const auto& bin : bins) most = std::max(most, bin.size());
  const Value rows = pixel_rows(x);
  Value y = full(c.graph(), {count, channels}, 0, x.dtype());
  for (size_t k = 0; k < most; ++k) {
    std::vector<Number> ids, weights;
    for (const auto& bin : bins) {
      // Bins with fewer samples take their first again, or nothing.
      const Pixel p = k < bin.size() ? bin[k] : form.takes_max && !bin.empty() ? bin[0] : Pixel{};
      ids.emplace_back(p.row);
      weights.emplace_back(p.weight);
    }
    const Value part = gather(rows, literal(c.graph(), {count}, ids, DType::i64), 0) *
                       literal(c.graph(), {count, 1}, weights, x.dtype());
    y = k == 0 ? part : form.takes_max ? maximum(y, part) : y + part;
  }
  const Value moved =
      transpose(reshape(y, {regions, form.height * form.width, channels}), {0, 2, 1});
  c.out(cast(reshape(moved, {regions, channels, form.height, form.width}), dtype));
}

// -- deformed convolutions
// -----------------------------------------------------------------------

/// The places that the taps of a deformed convolution read along axis `a`: [n, groups, taps, out].
Value deformed_places(Call& c, const PlacedWindows& p, Value offsets, int a) {
  const Shape& all = offsets.shape();  // [n, groups, kh, kw, 2, oh, ow]
  const Value moved =
      reshape(slice(offsets, 4, a, 1), {all[0], all[1], all[2], all[3], all[5], all[6]});
  const auto axis = static_cast<size_t>(a);
  const Value window = iota(c.graph(), moved.shape(), 4 + a, offsets.dtype()),
              tap = iota(c.graph(), moved.shape(), 2 + a, offsets.dtype());
  const Value at = window * static_cast<double>(p.windows.strides[axis]) +
                   tap * static_cast<double>(p.windows.dilations[axis]) -
                   static_cast<double>(p.windows.pads[axis]);
  return reshape(at + moved, {moved.shape().elements()});
}

void deformed_convolution(Call& c) {
  const DType dtype = c.in(0).dtype();
  const std::vector<int64_t> in = spatial_axes(c, 0);
  if (in.size() != 2) c.refuse("{} spatial axes", in.size());
  const Value x = cast(c.in(0), sum_dtype(dtype)), w = cast(c.in(1), x.dtype());
  if (w.shape().rank() != 4) c.fail("weights {}", w.type().str());
  const int64_t kh = w.shape().size(2), kw = w.shape().size(3), taps = kh * kw;
  const PlacedWindows p = placed_windows(c, in, {kh, kw});
  const int64_t n = x.shape().size(0), channels = x.shape().size(1), oh = p.out[0], ow = p.out[1];
  const int64_t groups = c.integer("group", 1), placed = c.integer("offset_group", 1),
                out = w.shape().size(0), plane = in[0] * in[1];
  if (groups < 1 || placed < 1 || channels % groups != 0 || channels % placed != 0 ||
      out % groups != 0 || w.shape().size(1) != channels / groups || plane == 0)
    c.fail("weights {} in {} groups for {}", w.type().str(), groups, x.type().str());
  Value offsets = cast(c.in(2), x.dtype());
  if (offsets.shape() != Shape{n, placed * taps * 2, oh, ow})
    c.fail("expected offsets [{}, {}, {}, {}]; got {}", n, placed * taps * 2, oh, ow,
           offsets.type().str());
  offsets = reshape(offsets, {n, placed, kh, kw, 2, oh, ow});
  std::vector<AxisTaps> axes;
  for (int a = 0; a < 2; ++a)
    axes.push_back(AxisSampler(c, in[static_cast<size_t>(a)], Beyond::zeros, true)
                       .linear(deformed_places(c, p, offsets, a)));
  // The channels of an offset group are moved alike: rows are [n placed plane, channels / placed].
  const int64_t width = channels / placed, places = taps * oh * ow;
  const Value rows = pixel_rows(reshape(x, {n * placed, width, in[0], in[1]}));
  Value columns = sampled_rows(c, rows, batch_base(c, n * placed, places, plane), axes, in);
  if (c.has(4)) columns = columns * reshape(cast(c.in(4), x.dtype()), {n * placed * places, 1});
  columns = transpose(reshape(columns, {n * placed, places, width}), {0, 2, 1});
  columns = reshape(columns, {n, groups, channels / groups * taps, oh * ow});
  const Value weights = reshape(w, {groups, out / groups, channels / groups * taps});
  Value y = reshape(matmul(weights, columns), {n, out, oh, ow});
  if (c.has(3)) y = y + per_channel(cast(c.in(3), x.dtype()), y);
  c.out(cast(y, dtype));
}

const OperatorRow kSamplingRows[] = {
    {"", "GridSample", grid_sample},
    {"", "AffineGrid", affine_grid},
    {"", "RoiAlign", roi_align},
    {"", "DeformConv", deformed_convolution},
};

}  // namespace

std::span<const OperatorRow> sampling_operators() { return kSamplingRows; }

}  // namespace brrr::onnx
