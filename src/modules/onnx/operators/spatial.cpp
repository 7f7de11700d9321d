// Convolutions and pools.

#include "modules/onnx/operators/spatial.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace brrr::onnx {
namespace {

std::vector<int64_t> sizes_behind(const Shape& shape, int axis) {
  std::vector<int64_t> sizes;
  for (; axis < shape.rank(); ++axis) sizes.push_back(shape.size(axis));
  return sizes;
}

Shape with_axes(const Shape& x, const std::vector<int64_t>& spatial) {
  Shape shape{x[0], x[1]};
  for (const int64_t size : spatial) shape.push_back(size);
  return shape;
}

/// The kernel of a convolution lies behind the channels of its weights.
std::vector<int64_t> kernel_of(Call& c, const Value& w, size_t axes) {
  std::vector<int64_t> kernel = sizes_behind(w.shape(), 2);
  if (kernel.size() != axes) c.fail("weights {} for {} spatial axes", w.type().str(), axes);
  if (const auto named = c.integer_list("kernel_shape"); named && *named != kernel)
    c.fail("kernel_shape is not that of the weights {}", w.type().str());
  return kernel;
}

// -- convolutions
// --------------------------------------------------------------------------------

void convolve(Call& c) {
  const std::vector<int64_t> in = spatial_axes(c, 0);
  const Value x = c.in(0), w = c.in(1);
  const PlacedWindows p = placed_windows(c, in, kernel_of(c, w, in.size()));
  c.out(conv(x, w, c.optional(2), p.windows, c.integer("group", 1)));
}

/// Where the result of ConvTranspose lies along an axis, of which `whole` elements are touched: it
/// begins `before` elements behind their first and has `size` elements.
struct TransposedAxis {
  int64_t whole = 0, before = 0, size = 0;
};

std::vector<TransposedAxis> transposed_axes(Call& c, const std::vector<int64_t>& in,
                                            const std::vector<int64_t>& kernel,
                                            const Windows& windows) {
  const size_t axes = in.size();
  const std::string automatic = c.text("auto_pad", "NOTSET");
  const std::vector<int64_t> more = size_list(c, "output_padding", axes, 0, 0);
  std::optional<std::vector<int64_t>> wanted = c.integer_list("output_shape");
  if (wanted && wanted->size() == axes + 2) wanted->erase(wanted->begin(), wanted->begin() + 2);
  if (wanted && wanted->size() != axes) c.fail("output_shape has {} numbers", wanted->size());
  std::vector<TransposedAxis> result;
  for (size_t a = 0; a < axes; ++a) {
    TransposedAxis axis;
    if (in[a] == 0) c.fail("a spatial axis is empty");
    axis.whole = windows.strides[a] * (in[a] - 1) + windows.dilations[a] * (kernel[a] - 1) + 1;
    const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (wanted || same) {
      axis.size = wanted ? (*wanted)[a] : in[a] * windows.strides[a];
      const int64_t total = axis.whole + more[a] - axis.size;
      axis.before = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      // What is missing is added behind.
      if (total < 0) axis.before = 0;
    } else {
      axis.before = windows.pads[a];
      axis.size = axis.whole + more[a] - axis.before - windows.pads[a + axes];
    }
    if (axis.size < 1) c.fail("the result has {} elements along spatial axis {}", axis.size, a);
    result.push_back(axis);
  }
  return result;
}

void convolve_transposed(Call& c) {
  const std::vector<int64_t> in = spatial_axes(c, 0);
  const Value x = c.in(0), w = c.in(1);
  const size_t axes = in.size();
  const std::vector<int64_t> kernel = kernel_of(c, w, axes);
  Windows windows{size_list(c, "strides", axes, 1, 1), size_list(c, "dilations", axes, 1, 1),
                  size_list(c, "pads", 2 * axes, 0, 0)};
  const auto placed = transposed_axes(c, in, kernel, windows);
  std::vector<int64_t> sizes;
  for (size_t a = 0; a < axes; ++a) {
    const int64_t behind = placed[a].whole - placed[a].before;
    if (behind < 1) c.fail("the padding of spatial axis {} leaves nothing", a);
    sizes.push_back(std::min(placed[a].size, behind));
    windows.pads[a] = placed[a].before;
    windows.pads[a + axes] = behind - sizes[a];
  }
  Value y = conv_transpose(x, w, sizes, windows, c.integer("group", 1));
  // Nothing reaches the elements behind.
  for (size_t a = 0; a < axes; ++a)
    if (placed[a].size > sizes[a])
      y = pad(y, static_cast<int>(a) + 2, 0, placed[a].size - sizes[a]);
  c.out(c.has(2) ? y + per_channel(c.in(2), y) : y);
}

/// An operand of 8 bits less its zero point, as i32; `rows`: a zero point for each leading row.
Value from_zero_point(Call& c, size_t i, size_t zero_point) {
  const Value x = cast(c.in(i), DType::i32);
  if (!c.has(zero_point)) return x;
  Value zero = cast(c.in(zero_point), DType::i32);
  if (zero.shape().elements() == 1) return x - reshape(zero, {});
  Shape column{zero.shape()[0]};
  for (int axis = 1; axis < x.shape().rank(); ++axis) column.push_back(Dim(1));
  return x - reshape(zero, column);
}

/// Exact products of integers.
Value convolved_integers(Call& c, Value x, Value w) {
  const std::vector<int64_t> in = spatial_axes(c, 0);
  const PlacedWindows p = placed_windows(c, in, kernel_of(c, w, in.size()));
  return conv(x, w, std::nullopt, p.windows, c.integer("group", 1));
}

void convolve_integers(Call& c) {
  c.out(convolved_integers(c, from_zero_point(c, 0, 2), from_zero_point(c, 1, 3)));
}

void convolve_quantized(Call& c) {
  Value sums = convolved_integers(c, from_zero_point(c, 0, 2), from_zero_point(c, 3, 5));
  if (c.has(8)) sums = sums + per_channel(c.in(8), sums);
  const auto scale = [&](size_t i) {
    const Value s = cast(c.in(i), DType::f32);
    return s.shape().elements() == 1 ? reshape(s, {}) : per_channel(s, sums);
  };
  const Value y = cast(sums, DType::f32) * (scale(1) * scale(4) / scale(6));
  const Value zero = c.in(7);
  c.out(cast(round(y) + reshape(cast(zero, DType::f32), {}), zero.dtype()));
}

void causal_convolution(Call& c) {
  const Value x = c.in(0), w = c.in(1);
  if (spatial_axes(c, 0).size() != 1 || w.shape().rank() != 3)
    c.fail("expected [batch, channels, length] and weights [channels, 1, k]; got {} and {}",
           x.type().str(), w.type().str());
  const int64_t before = w.shape().size(2) - 1;
  Value padded = x;
  if (c.has(3)) {
    const Value parts[] = {c.in(3), x};
    padded = concat(parts, 2);
  } else if (before > 0) {
    padded = pad(x, 2, before, 0);
  }
  Value y = conv(padded, w, c.optional(2), {{1}, {1}, {0, 0}}, x.shape().size(1));
  const std::string activation = c.text("activation", "none");
  if (activation == "silu" || activation == "swish")
    y = cast(silu(cast(y, sum_dtype(y.dtype()))), y.dtype());
  else if (activation != "none")
    c.refuse("activation = {}", activation);
  c.out(y);
  c.out(1, slice(padded, 2, padded.shape().size(2) - before, before));
}

/// Columns [N, C kernel, windows] are added to where their windows stand: a transposed convolution
/// whose weights pick an element of the kernel each.
void columns_to_image(Call& c) {
  const DType dtype = c.in(0).dtype();
  // A double holds sums of what columns of integers hold.
  const Value x = is_float(dtype) ? c.in(0) : cast(c.in(0), DType::f64);
  const std::vector<int64_t> image = c.integers(1), block = c.integers(2);
  const size_t axes = image.size();
  if (x.shape().rank() != 3 || block.size() != axes)
    c.fail("expected columns [N, C block, windows]; got {}", x.type().str());
  const Windows windows{size_list(c, "strides", axes, 1, 1), size_list(c, "dilations", axes, 1, 1),
                        size_list(c, "pads", 2 * axes, 0, 0)};
  int64_t taps = 1;
  Shape columns{x.shape()[0], x.shape()[1]}, weights{x.shape()[1], Dim(1)};
  for (size_t a = 0; a < axes; ++a) {
    if (block[a] < 1 || block[a] >= (int64_t{1} << 31)) c.fail("a block's size is {}", block[a]);
    const int64_t padded = image[a] + windows.pads[a] + windows.pads[a + axes];
    const int64_t rest = padded - windows.dilations[a] * (block[a] - 1) - 1;
    if (image[a] < 1 || image[a] >= (int64_t{1} << 31) || rest < 0)
      c.fail("a block of {} does not fit an axis of {}", block[a], image[a]);
    columns.push_back(rest / windows.strides[a] + 1);
    weights.push_back(block[a]);
    if (__builtin_mul_overflow(taps, block[a], &taps)) c.fail("a block is too large");
  }
  const int64_t channels = x.shape().size(1) / taps;
  if (x.shape().size(1) % taps != 0 || columns.elements() != x.shape().elements())
    c.fail("{} does not hold columns {}", x.type().str(), columns.str());
  const Value row = iota(c.graph(), {channels, taps, taps}, 1),
              tap = iota(c.graph(), {channels, taps, taps}, 2);
  const Value picks = reshape(cast(equal(row, tap), x.dtype()), weights);
  c.out(cast(conv_transpose(reshape(x, columns), picks, image, windows, channels), dtype));
}

// -- pools
// ---------------------------------------------------------------------------------------

/// Where the windows stand; nothing where there are none, and the results are empty: so ONNX's
/// formula has it for a window that is larger than its axis with the padding by up to a stride.
std::optional<PlacedWindows> pool_windows(Call& c) {
  const auto kernel = c.integer_list("kernel_shape");
  if (!kernel) c.fail("needs the attribute 'kernel_shape'");
  const std::vector<int64_t> in = spatial_axes(c, 0);
  PlacedWindows p = placed_windows(c, in, *kernel, true);
  if (std::ranges::find(p.out, 0) == p.out.end()) return p;
  const Value x = c.in(0);
  const Shape shape = with_axes(x.shape(), p.out);
  c.out(full(c.graph(), shape, 0, x.dtype()));
  c.out(1, full(c.graph(), shape, 0, DType::i64));
  return std::nullopt;
}

/// Row-major indices into x as ONNX counts them with storage_order = 1: columns first.
Value column_major(Call& c, Value index, const Shape& x) {
  const auto number = [&](int64_t n) { return c.scalar(n, DType::i64); };
  int64_t plane = 1, stride = 1;
  for (int axis = 2; axis < x.rank(); ++axis) plane *= x.size(axis);
  Value rest = fmod(index, number(plane));
  Value result = index - rest;
  std::vector<int64_t> strides(static_cast<size_t>(x.rank()), 1);
  for (int axis = 2; axis < x.rank(); ++axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= x.size(axis);
  }
  for (int axis = x.rank() - 1; axis >= 2; --axis) {
    const Value at = fmod(rest, number(x.size(axis)));
    result = result + at * number(strides[static_cast<size_t>(axis)]);
    rest = div(rest - at, number(x.size(axis)));
  }
  return result;
}

void pool_max(Call& c) {
  const Value x = c.in(0);
  const auto p = pool_windows(c);
  if (!p) return;
  const MaxPool pooled = max_pool(x, p->kernel, p->windows);
  c.out(pooled.values);
  if (!c.wants(1)) return;
  const bool by_columns = c.integer("storage_order", 0) != 0;
  c.out(1, by_columns ? column_major(c, pooled.indices, x.shape()) : pooled.indices);
}

/// How many elements each window averages, [out...]: those of x, and those of the padding that the
/// file asks for where it counts.
Value window_counts(Call& c, const PlacedWindows& p, const std::vector<int64_t>& in,
                    bool with_padding, DType dtype) {
  const size_t axes = in.size();
  std::vector<double> counts{1};
  for (size_t a = 0; a < axes; ++a) {
    const int64_t low = with_padding ? -p.file_pads[a] : 0,
                  high = in[a] + (with_padding ? p.file_pads[a + axes] : 0);
    std::vector<double> next;
    for (const double outer : counts)
      for (int64_t o = 0; o < p.out[a]; ++o) {
        int64_t inside = 0;
        for (int64_t k = 0; k < p.kernel[a]; ++k) {
          const int64_t at =
              o * p.windows.strides[a] - p.windows.pads[a] + k * p.windows.dilations[a];
          inside += at >= low && at < high;
        }
        next.push_back(outer * static_cast<double>(inside));
      }
    counts = std::move(next);
  }
  if (std::ranges::adjacent_find(counts, std::not_equal_to()) == counts.end() && !counts.empty())
    return c.scalar(counts[0], dtype);
  return literal(c.graph(), Shape(p.out), std::vector<Number>(counts.begin(), counts.end()), dtype);
}

void pool_average(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Value x = cast(c.in(0), sum_dtype(dtype));
  const auto p = pool_windows(c);
  if (!p) return;
  const bool with_padding = c.integer("count_include_pad", 0) != 0;
  const Value counts = window_counts(c, *p, spatial_axes(c, 0), with_padding, x.dtype());
  c.out(cast(sum_pool(x, p->kernel, p->windows) / counts, dtype));
}

/// Opset 1 has a float.
double exponent_of(Call& c) {
  const AttributeProto* p = c.find("p");
  if (p == nullptr) return 2;
  return p->kind == AttributeProto::Kind::number ? c.number("p")
                                                 : static_cast<double>(c.integer("p"));
}

Value powers_of(Value x, double p) {
  if (p == 1) return abs(x);
  return p == 2 ? x * x : pow(abs(x), scalar(*x.graph, p, x.dtype()));
}
Value roots_of(Value x, double p) {
  if (p == 1) return x;
  return p == 2 ? sqrt(x) : pow(x, scalar(*x.graph, 1 / p, x.dtype()));
}

void pool_norm(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Value x = cast(c.in(0), sum_dtype(dtype));
  const auto p = pool_windows(c);
  if (!p) return;
  const double exponent = exponent_of(c);
  c.out(cast(roots_of(sum_pool(powers_of(x, exponent), p->kernel, p->windows), exponent), dtype));
}

template <typename F>
void pool_all(Call& c, F f) {
  const DType dtype = c.in(0).dtype();
  const std::vector<int64_t> in = spatial_axes(c, 0);
  std::vector<int64_t> axes;
  for (size_t a = 0; a < in.size(); ++a) axes.push_back(static_cast<int64_t>(a) + 2);
  c.out(cast(f(cast(c.in(0), sum_dtype(dtype)), axes), dtype));
}

void pool_all_average(Call& c) {
  pool_all(c, [](Value x, const std::vector<int64_t>& axes) { return mean(x, axes, true); });
}
void pool_all_max(Call& c) {
  pool_all(c, [](Value x, const std::vector<int64_t>& axes) { return brrr::max(x, axes, true); });
}
void pool_all_norm(Call& c) {
  const double p = exponent_of(c);
  pool_all(c, [p](Value x, const std::vector<int64_t>& axes) {
    return roots_of(sum(powers_of(x, p), axes, true), p);
  });
}

void unpool_max(Call& c) {
  const Value x = c.in(0), ids = c.in(1);
  const std::vector<int64_t> in = spatial_axes(c, 0);
  const size_t axes = in.size();
  const auto kernel = size_list(c, "kernel_shape", axes, 1, 1),
             strides = size_list(c, "strides", axes, 1, 1),
             pads = size_list(c, "pads", 2 * axes, 0, 0);
  std::vector<int64_t> sizes;
  for (size_t a = 0; a < axes; ++a) {
    sizes.push_back((in[a] - 1) * strides[a] + kernel[a] - pads[a] - pads[a + axes]);
    if (sizes[a] < 1) c.fail("the result has {} elements along spatial axis {}", sizes[a], a);
  }
  const Shape shape = with_axes(x.shape(), sizes);
  const int64_t n = shape.elements(), m = x.shape().elements();
  const Value zeros = full(c.graph(), {n, 1}, 0, x.dtype());
  Value y = reshape(
      scatter(zeros, reshape(cast(ids, DType::i64), {m}), reshape(x, {m, 1}), ScatterMode::set),
      shape);
  if (c.has(2)) {  // a larger result, which is zero behind
    const std::vector<int64_t> wanted = c.integers(2);
    if (std::ssize(wanted) != shape.rank()) c.fail("output_shape has {} numbers", wanted.size());
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const int64_t more = wanted[static_cast<size_t>(axis)] - shape.size(axis);
      if (more < 0) c.fail("output_shape is smaller than {}", shape.str());
      if (more > 0) y = pad(y, axis, 0, more);
    }
  }
  c.out(y);
}

void decode_image(Call& c) { c.refuse("image files are not decoded; give the graph their pixels"); }

const OperatorRow kSpatialRows[] = {
    {"", "Conv", convolve},
    {"", "ConvTranspose", convolve_transposed},
    {"", "ConvInteger", convolve_integers},
    {"", "QLinearConv", convolve_quantized},
    {"", "CausalConvWithState", causal_convolution},
    {"", "Col2Im", columns_to_image},
    {"", "MaxPool", pool_max},
    {"", "AveragePool", pool_average},
    {"", "LpPool", pool_norm},
    {"", "GlobalAveragePool", pool_all_average},
    {"", "GlobalMaxPool", pool_all_max},
    {"", "GlobalLpPool", pool_all_norm},
    {"", "MaxUnpool", unpool_max},
    {"", "ImageDecoder", decode_image},
};

}  // namespace

DType sum_dtype(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
}

std::vector<int64_t> spatial_axes(Call& c, size_t i) {
  const Value x = c.in(i);
  if (x.shape().rank() < 3)
    c.fail("operand {} must be [N, C, spatial...]; got {}", i, x.type().str());
  return sizes_behind(x.shape(), 2);
}

Value per_channel(Value v, const Value& x) {
  if (v.shape() != Shape{x.shape()[1]})
    user_error("a parameter of each channel of {} must be [{}]; got {}", x.type().str(),
               x.shape()[1].str(), v.type().str());
  Shape shape{v.shape()[0]};
  for (int axis = 2; axis < x.shape().rank(); ++axis) shape.push_back(Dim(1));
  return reshape(v, shape);
}

std::vector<int64_t> size_list(Call& c, std::string_view name, size_t count, int64_t fallback,
                               int64_t low) {
  const auto list = c.integer_list(name);
  if (!list || list->empty()) return std::vector<int64_t>(count, fallback);
  if (list->size() != count) c.fail("'{}' has {} numbers instead of {}", name, list->size(), count);
  for (const int64_t x : *list)
    if (x < low || x >= (int64_t{1} << 31))
      c.fail("'{}' must be at least {} and below 2^31; got {}", name, low, x);
  return *list;
}

PlacedWindows placed_windows(Call& c, const std::vector<int64_t>& in, std::vector<int64_t> kernel,
                             bool may_be_none) {
  const size_t axes = in.size();
  if (kernel.size() != axes) c.fail("a kernel of {} axes over {}", kernel.size(), axes);
  PlacedWindows p;
  p.windows = {size_list(c, "strides", axes, 1, 1), size_list(c, "dilations", axes, 1, 1),
               size_list(c, "pads", 2 * axes, 0, 0)};
  const std::string automatic = c.text("auto_pad", "NOTSET");
  const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
  if (!same && automatic != "NOTSET" && automatic != "VALID" && !automatic.empty())
    c.fail("auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID; got {}", automatic);
  if (automatic == "VALID") std::ranges::fill(p.windows.pads, 0);
  const bool rounds_up = c.integer("ceil_mode", 0) != 0 && !same;
  p.file_pads = p.windows.pads;
  for (size_t a = 0; a < axes; ++a) {
    if (kernel[a] < 1 || kernel[a] >= (int64_t{1} << 31))
      c.fail("a kernel's size is {}", kernel[a]);
    const int64_t stride = p.windows.strides[a],
                  width = p.windows.dilations[a] * (kernel[a] - 1) + 1;
    int64_t &before = p.windows.pads[a], &after = p.windows.pads[a + axes];
    if (same) {
      const int64_t count = (in[a] + stride - 1) / stride;
      const int64_t total = std::max<int64_t>(0, (count - 1) * stride + width - in[a]);
      before = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      after = total - before;
      p.file_pads[a] = before;
      p.file_pads[a + axes] = after;
    }
    const int64_t rest = in[a] + before + after - width;
    // How many there are is rounded towards fewer: none.
    const bool is_none =
        rest < 0 && (rounds_up ? rest + stride <= 0 && rest + 2 * stride > 0 : rest + stride >= 0);
    if (is_none && may_be_none) {
      p.out.push_back(0);
      continue;
    }
    if (rest < 0 && !(rounds_up && rest + stride > 0))
      c.fail("a kernel of {} does not fit spatial axis {} of {}", kernel[a], a, in[a]);
    int64_t count = (rounds_up ? rest + stride - 1 : rest) / stride + 1;
    // A window that begins in the padding behind is left out.
    if (rounds_up && (count - 1) * stride >= in[a] + before) --count;
    after = std::max(rounds_up ? int64_t{0} : after, (count - 1) * stride + width - in[a] - before);
    p.out.push_back(count);
  }
  p.kernel = std::move(kernel);
  return p;
}

std::span<const OperatorRow> spatial_operators() { return kSpatialRows; }

}  // namespace brrr::onnx
