// Convolutions with any number of spatial axes. y is linear in x and in w, so the three ops are
// each other's derivatives: conv_transpose is conv turned around in x, conv_weight_grad in w.

#include "ops/spatial/conv.h"
#include "ops/op.h"
#include "ops/quantized/quantized_rows.h"
#include "ops/spatial/windows.h"
#include "ops/spatial/winograd.h"

namespace brrr {
namespace {

constexpr const char* kWindowsDoc =
    "{strides}, {dilations}: one number for each spatial axis; {pads}: zeros before each axis, "
    "then zeros behind each; {groups}: G; with {channels_last} pictures are [N, spatial..., C], "
    "and "
    "weights stay as they are";

/// A convolution from pictures x by w [M, C/G, kernel...] to pictures y, whichever of the three is
/// the result.
struct ConvForm {
  ops::Pictures x, y;
  int64_t groups = 1;
  ops::WindowGrid grid;
  bool weight_matrix = false;  // w is [M, kernel... C/G]

  /// Row-major index of the weight of output channel m, input channel c and a tap.
  int64_t weight_at(int64_t m, int64_t c, int64_t tap) const {
    const int64_t taps = grid.kernel_elements();
    return weight_matrix ? (m * taps + tap) * c_in_group() + c
                         : (m * c_in_group() + c) * taps + tap;
  }
  int64_t c_in_group() const { return x.channels / groups; }
  int64_t m_in_group() const { return y.channels / groups; }
  double flops() const {
    return 2 * static_cast<double>(x.batch.size()) * static_cast<double>(y.channels) *
           static_cast<double>(c_in_group()) * static_cast<double>(grid.taps());
  }
  /// FLOPs of the products of transformed patches with transformed kernels.
  double winograd_flops(int64_t tile) const {
    const int64_t size = ops::winograd_size(tile);
    const int64_t tiles =
        ops::winograd_tiles(grid.out[0], tile) * ops::winograd_tiles(grid.out[1], tile);
    return 2 * static_cast<double>(x.batch.size() * tiles) *
           static_cast<double>(size * size * x.channels) * static_cast<double>(y.channels);
  }
};

int64_t groups_of(const InferContext& c) {
  const int64_t groups = c.attr<int64_t>("groups");
  if (groups < 1) c.fail("groups must be at least 1; got {}", groups);
  return groups;
}

void check_sizes(const InferContext& c, size_t i, const char* what, const char* form) {
  const Shape& x = c.in[i].shape;
  if (x.rank() < 3) c.fail("{} must be {}; got {}", what, form, c.in[i].str());
  for (int axis = 1; axis < x.rank(); ++axis)
    if (x[axis].is_symbol()) c.fail("{} must have sizes; got {}", what, c.in[i].str());
}

ops::Pictures checked_pictures(const InferContext& c, size_t i, const char* what) {
  const bool last = ops::has_channels_last(c.attrs);
  check_sizes(c, i, what, last ? "[N, spatial..., C]" : "[N, C, spatial...]");
  return {c.in[i].shape, last};
}

/// Sizes of the kernel: those of w, unless w is a matrix beside {kernel}.
std::vector<int64_t> kernel_of(const Attrs& attrs, const Shape& w) {
  const bool is_matrix = attrs.find("kernel") != nullptr;
  return is_matrix ? attrs.get<std::vector<int64_t>>("kernel") : ops::spatial_sizes(w);
}

void check_weight(const InferContext& c, size_t i) {
  check_sizes(c, i, "w", "[M, C/G, kernel...]");
  if (c.in[i].shape[0].is_symbol()) c.fail("w must have sizes; got {}", c.in[i].str());
}

void check_dtype(const InferContext& c) {
  const DType t = c.in[0].dtype;
  if (!is_float(t) && !(is_integer(t) && bytes_of(t) >= 4))
    c.fail("x must be a float or an integer of 32 or 64 bits; got {}", name_of(t));
  ops::expect_same_dtype(c, 0, 1);
}

std::vector<int64_t> sizes_attr(const InferContext& c, const char* name, size_t axes) {
  const auto& sizes = c.attr<std::vector<int64_t>>(name);
  if (sizes.size() != axes) c.fail("{} must have {} numbers; got {}", name, axes, sizes.size());
  for (const int64_t size : sizes)
    if (size < 1 || size >= (int64_t{1} << 31)) c.fail("a size of {} is {}", name, size);
  return sizes;
}

/// [M, kernel... C/G] -> [M, C/G, kernel...]
Value weight_of_matrix(Value w, const std::vector<int64_t>& kernel) {
  Shape shape{w.shape()[0]};
  int64_t taps = 1;
  for (const int64_t size : kernel) {
    shape.push_back(size);
    taps *= size;
  }
  shape.push_back(w.shape().size(1) / taps);
  std::vector<int64_t> permutation(kernel.size() + 2);
  std::iota(permutation.begin() + 1, permutation.end(), int64_t{0});
  permutation[0] = 0;
  permutation[1] = static_cast<int64_t>(kernel.size()) + 1;
  return transpose(reshape(w, shape), permutation);
}

/// Checks {winograd}, where given.
void check_winograd(const InferContext& c, const ops::Pictures& x, int64_t groups) {
  if (c.attrs.find("winograd") == nullptr) return;
  const auto tile = c.attr<int64_t>("winograd");
  const std::vector<int64_t> ones(2, 1), three(2, 3);
  const bool is_plain = x.spatial.size() == 2 && groups == 1 &&
                        c.attr<std::vector<int64_t>>("kernel") == three &&
                        c.attr<std::vector<int64_t>>("strides") == ones &&
                        c.attr<std::vector<int64_t>>("dilations") == ones;
  if (!ops::is_winograd_tile(tile) || !is_plain || !is_float(c.in[0].dtype) ||
      c.attrs.get_or<int64_t>("left_bits", 0) != 0)
    c.fail("winograd must be 2 or 4, for floats, a 3 x 3 kernel, steps of 1 and one group; got {}",
           tile);
}

/// Checks a weight [M, kernel... C/G], or with {winograd} [M, S S C], beside {kernel}.
void check_weight_matrix(const InferContext& c, const ops::Pictures& x, int64_t groups) {
  const Shape& w = c.in[1].shape;
  int64_t taps = 1;
  for (const int64_t size : sizes_attr(c, "kernel", x.spatial.size()))
    if (__builtin_mul_overflow(taps, size, &taps)) c.fail("a kernel of too many elements");
  if (const int64_t tile = c.attrs.get_or<int64_t>("winograd", 0); tile != 0)
    taps = ops::winograd_size(tile) * ops::winograd_size(tile);
  int64_t terms = 0;
  const bool fits = x.channels % groups == 0 &&
                    !__builtin_mul_overflow(taps, x.channels / groups, &terms) && w.rank() == 2 &&
                    w.is_static() && w.size(0) % groups == 0 && w.size(1) == terms;
  if (!x.channels_last || !fits)
    c.fail("beside {{kernel}} channels are last and w is [M, {} {}/{}], M a multiple of {}; got {}",
           taps, x.channels, groups, groups, c.in[1].str());
}

/// Checks {left_bits}, where given.
void check_left_bits(const InferContext& c) {
  const int64_t bits = c.attrs.get_or<int64_t>("left_bits", 0);
  if (bits == 0) return;
  const Quantized wanted{8, 1, 0};
  if (bits != 8 || c.attrs.find("kernel") == nullptr || c.in[1].storage.quantized != wanted)
    c.fail(
        "left_bits must be 8, beside {{kernel}} and w quantised to 8 bits along axis 1; got {} "
        "and {}",
        bits, c.in[1].str());
  if (c.in[1].shape.size(1) > ops::kMostQuantizedTerms)
    c.fail("a sum of {} products of 8 bits may not fit i32: at most {}", c.in[1].shape.size(1),
           ops::kMostQuantizedTerms);
}

/// Adds products in double, or exactly in the integers of the dtype:
/// y[at(...)] += a[at(...)] * b[at(...)] for every product of the form.
template <typename F>
void multiply_add(const RefTensor& a, const RefTensor& b, RefTensor& y, F for_each) {
  if (is_integer(y.type.dtype)) {
    std::vector<uint64_t> sums(y.size(), 0);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = y.bits(i);
    for_each([&](int64_t i, int64_t j, int64_t to) {
      sums[static_cast<size_t>(to)] +=
          a.bits(static_cast<size_t>(i)) * b.bits(static_cast<size_t>(j));
    });
    for (size_t i = 0; i < sums.size(); ++i) y.set_bits(i, sums[i]);
    return;
  }
  for_each([&](int64_t i, int64_t j, int64_t to) {
    y.data[static_cast<size_t>(to)] +=
        a.data[static_cast<size_t>(i)] * b.data[static_cast<size_t>(j)];
  });
}

/// f(element of x, element of w, element of y) for every product.
template <typename F>
void for_each_product(const ConvForm& form, F f) {
  const int64_t cg = form.c_in_group(), mg = form.m_in_group();
  for (int64_t n = 0; n < form.x.batch.size(); ++n)
    for (int64_t m = 0; m < form.y.channels; ++m)
      for (int64_t c = 0; c < cg; ++c)
        ops::for_each_tap(form.grid, [&](int64_t i, int64_t k, int64_t o) {
          f(form.x.at(n, m / mg * cg + c, i), form.weight_at(m, c, k), form.y.at(n, m, o));
        });
}

// -- the forms of the three ops
// -----------------------------------------------------------------

ConvForm form_of_conv(const Attrs& attrs, const Shape& x, const Shape& w) {
  const bool last = ops::has_channels_last(attrs);
  const ops::Pictures from(x, last);
  ops::WindowGrid grid = ops::window_grid(attrs, from.spatial, kernel_of(attrs, w));
  return {from,
          {from.batch, w.size(0), grid.out, last},
          attrs.get<int64_t>("groups"),
          grid,
          attrs.find("kernel") != nullptr};
}
ConvForm form_of_transpose(const Attrs& attrs, const Shape& y, const Shape& w) {
  const bool last = ops::has_channels_last(attrs);
  const int64_t groups = attrs.get<int64_t>("groups");
  const auto& sizes = attrs.get<std::vector<int64_t>>("sizes");
  return {{y[0], w.size(1) * groups, sizes, last},
          {y, last},
          groups,
          ops::window_grid(attrs, sizes, ops::spatial_sizes(w))};
}
ConvForm form_of_weight_grad(const Attrs& attrs, const Shape& x, const Shape& y) {
  const bool last = ops::has_channels_last(attrs);
  const ops::Pictures from(x, last);
  return {from,
          {y, last},
          attrs.get<int64_t>("groups"),
          ops::window_grid(attrs, from.spatial, attrs.get<std::vector<int64_t>>("kernel"))};
}

/// The operands of one product; integers are small, so that no sum overflows by chance.
Sample conv_sample(Shape a, Shape b, Windows windows, int64_t groups, Attrs more,
                   DType dtype = DType::f32) {
  const double most = is_float(dtype) ? 1 : 9;
  more.set("groups", groups);
  return {{ops::tensor(std::move(a), is_unsigned_integer(dtype) ? 0 : -most, most, dtype),
           ops::tensor(std::move(b), is_unsigned_integer(dtype) ? 0 : -most, most, dtype)},
          ops::window_attrs(windows, std::move(more))};
}

OpDef conv_op() {
  OpDef d;
  d.name = "conv";
  d.doc = fmt::format(
      "y[n, m, o] = the sum over c and k of x[n, c, o stride - before + k dilation] w[m, c, k], "
      "plus b[m] if {{bias}}; the channels of group g of y read those of group g of x. x: [N, C, "
      "in...], w: [M, C/G, kernel...], b: [M] of any floating dtype, y: [N, M, out...]; {}. With "
      "{{kernel}}, which then has the kernel's sizes, w is a matrix [M, kernel... C/G], channels "
      "last, too, that may lie in panels. With {{winograd}} T as well, 2 or 4, the matrix is [M, S "
      "S "
      "C], S = T + 2, of the kernels that Winograd's algorithm has transformed "
      "(ops/spatial/winograd.h), and y is what the algorithm computes, tiles of T x T windows at a "
      "time. Sums are in f32 or wider, rounded once; integers of 32 "
      "and 64 bits wrap around and have no bias. {{left_bits}} 8, where given: the matrix is "
      "quantised along its terms, and each picture of x is rounded to 255 steps of its own "
      "(ops/quantized/quantized_rows.h) before it is multiplied",
      kWindowsDoc);
  d.op_class = OpClass::contraction;
  d.autocast = Autocast::low;
  d.autocast_operands = 0b011;
  d.stored_operands = 0b010;
  d.infer = [](const InferContext& c) {
    const bool has_bias = c.attr<bool>("bias");
    ops::expect_operands(c, has_bias ? 3 : 2);
    check_dtype(c);
    const ops::Pictures x = checked_pictures(c, 0, "x");
    const Shape& w = c.in[1].shape;
    const int64_t groups = groups_of(c);
    check_winograd(c, x, groups);
    if (c.attrs.find("kernel") != nullptr) {
      check_weight_matrix(c, x, groups);
      check_left_bits(c);
    } else {
      check_weight(c, 1);
    }
    if (c.attrs.find("kernel") == nullptr &&
        (x.channels % groups != 0 || w.size(1) != x.channels / groups || w.size(0) % groups != 0))
      c.fail("w must be [M, {}/{}, kernel...], M a multiple of {}; got {}", x.channels, groups,
             groups, c.in[1].str());
    if (has_bias) {
      ops::expect_float(c, 0, "x");
      ops::expect_float(c, 2, "b");
      if (c.in[2].shape != Shape{w[0]}) c.fail("b must be [{}]; got {}", w[0].str(), c.in[2].str());
    }
    const auto grid = ops::checked_grid(c, x.spatial, kernel_of(c.attrs, w));
    const ops::Pictures y(x.batch, w.size(0), grid.out, x.channels_last);
    return std::vector<Type>{{c.in[0].dtype, y.shape()}};
  };
  d.evaluate = [](const EvalContext& c) {
    const ConvForm form = form_of_conv(c.node.attrs, c.in[0]->type.shape, c.in[1]->type.shape);
    RefTensor& y = c.out[0];
    const int64_t tile = c.node.attrs.get_or<int64_t>("winograd", 0);
    if (c.node.attrs.get<bool>("bias")) {
      for (int64_t n = 0; n < form.y.batch.size(); ++n)
        for (int64_t m = 0; m < form.y.channels; ++m)
          for (int64_t o = 0; o < form.y.elements(); ++o)
            y.data[static_cast<size_t>(form.y.at(n, m, o))] = c.in[2]->data[static_cast<size_t>(m)];
    }
    if (tile != 0) return ops::add_winograd(form.grid, tile, *c.in[0], *c.in[1], y);
    const auto multiply = [&](const RefTensor& from) {
      multiply_add(from, *c.in[1], y, [&](auto add) {
        for_each_product(form, [&](int64_t x, int64_t w, int64_t to) { add(x, w, to); });
      });
    };
    if (c.node.attrs.get_or<int64_t>("left_bits", 0) == 0) return multiply(*c.in[0]);
    RefTensor rounded = *c.in[0];
    const size_t picture = rounded.size() / static_cast<size_t>(form.x.batch.size());
    for (size_t i = 0; picture > 0 && i < rounded.size(); i += picture)
      ops::quantize_row_to_8_bits(std::span(rounded.data).subspan(i, picture));
    multiply(rounded);
  };
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0), dy = cast(c.grad(0), x.dtype());
    const Windows windows = ops::windows_of(c.attrs());
    const int64_t groups = c.attrs().get<int64_t>("groups");
    const ops::Pictures pictures(x.shape(), windows.channels_last);
    const std::vector<int64_t> kernel = kernel_of(c.attrs(), c.operand(1).shape());
    const bool is_matrix = c.attrs().find("kernel") != nullptr;
    if (c.attrs().find("winograd") != nullptr)
      user_error("[conv] with {{winograd}} is for inference: it has no derivative");
    if (c.wants(0)) {
      const Value w = is_matrix ? weight_of_matrix(c.operand(1), kernel) : c.operand(1);
      c.set(0, conv_transpose(dy, w, pictures.spatial, windows, groups));
    }
    if (c.wants(1)) {
      const Value dw = conv_weight_grad(x, dy, kernel, windows, groups);
      c.set(1, is_matrix ? weight_matrix(dw) : dw);
    }
    if (!c.attrs().get<bool>("bias") || !c.wants(2)) return;
    std::vector<int64_t> axes = pictures.spatial_axes();
    axes.insert(axes.begin(), 0);
    c.set(2, sum(cast(c.grad(0), c.operand(2).dtype()), axes));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    const double bias = n.attrs.get<bool>("bias") ? ops::elements(n.results[0]) : 0;
    const ConvForm form = form_of_conv(n.attrs, in[0].shape, in[1].shape);
    const int64_t tile = n.attrs.get_or<int64_t>("winograd", 0);
    return ops::streaming_cost(n, in,
                               (tile != 0 ? form.winograd_flops(tile) : form.flops()) + bias);
  };
  d.samples = [] {
    const auto make = [](Shape x, Shape w, Windows windows, int64_t groups, bool bias,
                         DType dtype = DType::f32) {
      const Dim m = w[0];
      Sample s = conv_sample(std::move(x), std::move(w), std::move(windows), groups,
                             {{"bias", bias}}, dtype);
      if (bias) s.in.push_back(ops::tensor({m}));
      return s;
    };
    const auto by_matrix = [](Shape x, int64_t m, std::vector<int64_t> kernel, int64_t groups,
                              bool panels, DType dtype = DType::f32, int32_t bits = 0) {
      const int64_t terms = kernel[0] * kernel[1] * x.size(-1) / groups;
      const std::vector<int64_t> pads{kernel[0] / 2, 0, 0, kernel[1] / 2};
      Sample s = conv_sample(std::move(x), {m, terms}, {{1, 1}, {1, 1}, pads, true}, groups,
                             {{"bias", true}, {"kernel", std::move(kernel)}}, dtype);
      if (panels) s.in[1] = ops::stored_right(terms, m, true, dtype);
      if (bits != 0) {
        s.in[1].type.storage.quantized = {bits, 1, 0};
        s.attrs.set("left_bits", int64_t{bits});
      }
      s.in.push_back(ops::tensor({m}));
      return s;
    };
    const auto winograd = [](Shape x, int64_t m, std::vector<int64_t> pads, int64_t tile) {
      const int64_t terms = ops::winograd_size(tile) * ops::winograd_size(tile) * x.size(-1);
      Sample s =
          conv_sample(std::move(x), {m, terms}, {{1, 1}, {1, 1}, std::move(pads), true}, 1,
                      {{"bias", true}, {"kernel", std::vector<int64_t>{3, 3}}, {"winograd", tile}});
      s.in[1] = ops::stored_right(terms, m, true, DType::f32);
      s.in.push_back(ops::tensor({m}));
      return s;
    };
    return std::vector<Sample>{
        make({2, 3, 9}, {4, 3, 3}, {{2}, {1}, {1, 0}}, 1, false),
        make({1, 4, 5, 6}, {6, 2, 3, 2}, {{1, 2}, {2, 1}, {1, 0, 2, 1}}, 2, true),
        make({2, 6, 7, 5}, {6, 1, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}}, 6, true),
        make({1, 3, 9, 40}, {3, 1, 5, 5}, {{2, 1}, {1, 1}, {2, 2, 2, 2}}, 3, false),
        make({2, 5, 4, 3}, {7, 5, 1, 1}, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1, true),
        make({1, 2, 3, 4, 3}, {3, 2, 2, 2, 2}, {{1, 2, 1}, {1, 1, 1}, {0, 1, 0, 1, 0, 1}}, 1,
             false),
        make({1, 8, 6, 6}, {5, 8, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}}, 1, true, DType::bf16),
        // A few windows, and axes with nothing but one element.
        make({2, 12, 6}, {21, 12, 3}, {{2}, {2}, {2, 1}}, 1, true),
        make({1, 8, 3, 3}, {10, 4, 3, 3}, {{1, 2}, {1, 1}, {1, 0, 0, 1}}, 2, false, DType::bf16),
        make({3, 40, 1, 1}, {19, 40, 1, 1}, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1, true, DType::f16),
        make({1, 3, 20, 1}, {4, 3, 5, 1}, {{1, 1}, {1, 1}, {2, 0, 2, 0}}, 1, true),
        make({1, 1, 70}, {9, 1, 9}, {{2}, {1}, {0, 0}}, 1, false),
        make({1, 3, 4, 4}, {3, 3, 2, 2}, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1, false, DType::i32),
        // Channels last: a row of windows, strides, groups, one element, a depthwise kernel.
        make({2, 6, 7, 3}, {20, 3, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1, true),
        make({2, 9, 8, 3}, {17, 3, 5, 5}, {{2, 2}, {1, 1}, {2, 2, 2, 1}, true}, 1, false),
        make({1, 5, 6, 4}, {6, 2, 3, 2}, {{1, 2}, {2, 1}, {1, 0, 2, 1}, true}, 2, true),
        make({2, 4, 3, 5}, {33, 5, 1, 1}, {{1, 1}, {1, 1}, {0, 0, 0, 0}, true}, 1, true),
        make({1, 5, 5, 18}, {18, 1, 3, 3}, {{2, 1}, {1, 1}, {1, 1, 1, 1}, true}, 18, true),
        make({2, 9, 4}, {3, 4, 3}, {{2}, {1}, {1, 0}, true}, 1, true),
        make({1, 4, 4, 6}, {5, 6, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1, true,
             DType::bf16),
        by_matrix({2, 5, 6, 3}, 7, {3, 3}, 1, false), by_matrix({1, 5, 4, 4}, 6, {1, 3}, 2, false),
        by_matrix({2, 4, 5, 6}, 37, {3, 3}, 1, true), by_matrix({1, 6, 4, 5}, 32, {1, 1}, 1, true),
        // Panels of 16 bits and of integers.
        by_matrix({2, 4, 5, 6}, 37, {3, 3}, 1, true, DType::bf16),
        by_matrix({1, 4, 5, 6}, 64, {1, 3}, 2, true, DType::f16),
        by_matrix({2, 5, 4, 8}, 37, {3, 3}, 1, true, DType::f32, 8),
        by_matrix({2, 4, 4, 8}, 64, {3, 1}, 2, true, DType::bf16, 8),
        winograd({2, 5, 6, 5}, 37, {1, 1, 1, 1}, 4), winograd({1, 7, 4, 6}, 32, {0, 1, 2, 0}, 2)};
  };
  return d;
}

OpDef conv_transpose_op() {
  OpDef d;
  d.name = "conv_transpose";
  d.doc = fmt::format(
      "x is what conv's derivative in its x makes of y: each y[n, m, o] w[m, c, k] is added to "
      "x[n, c, o stride - before + k dilation], and what lies outside {{sizes}} is left out. y: "
      "[N, M, out...], w: [M, C/G, kernel...], x: [N, C, sizes...], where a conv of x by w has the "
      "shape of y; {}. Sums are in f32 or wider",
      kWindowsDoc);
  d.op_class = OpClass::contraction;
  d.autocast = Autocast::low;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 2);
    ops::expect_float(c, 0, "y");
    ops::expect_same_dtype(c, 0, 1);
    const ops::Pictures y = checked_pictures(c, 0, "y");
    check_weight(c, 1);
    const Shape& w = c.in[1].shape;
    const int64_t groups = groups_of(c);
    if (w.size(0) != y.channels || y.channels % groups != 0)
      c.fail("w must be [{}, C/G, kernel...] and {} a multiple of G; got {}, G = {}", y.channels,
             y.channels, c.in[1].str(), groups);
    const auto sizes = sizes_attr(c, "sizes", y.spatial.size());
    const auto grid = ops::checked_grid(c, sizes, ops::spatial_sizes(w));
    if (grid.out != y.spatial)
      c.fail("a convolution to {} has no result of the shape of y {}", Shape(sizes).str(),
             c.in[0].shape.str());
    int64_t channels = 0;
    if (__builtin_mul_overflow(w.size(1), groups, &channels))
      c.fail("{} groups of {} channels", groups, w.size(1));
    const ops::Pictures x(y.batch, channels, sizes, y.channels_last);
    return std::vector<Type>{{c.in[0].dtype, x.shape()}};
  };
  d.evaluate = [](const EvalContext& c) {
    const ConvForm form = form_of_transpose(c.node.attrs, c.in[0]->type.shape, c.in[1]->type.shape);
    multiply_add(*c.in[0], *c.in[1], c.out[0], [&](auto add) {
      for_each_product(form, [&](int64_t x, int64_t w, int64_t y) { add(y, w, x); });
    });
  };
  d.vjp = [](VjpContext& c) {
    const Value y = c.operand(0), w = c.operand(1), dx = c.grad(0);
    const Windows windows = ops::windows_of(c.attrs());
    const int64_t groups = c.attrs().get<int64_t>("groups");
    if (c.wants(0)) c.set(0, conv(dx, w, std::nullopt, windows, groups));
    if (c.wants(1))
      c.set(1, conv_weight_grad(dx, y, ops::spatial_sizes(w.shape()), windows, groups));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, form_of_transpose(n.attrs, in[0].shape, in[1].shape).flops());
  };
  d.samples = [] {
    const auto make = [](Shape y, Shape w, Windows windows, int64_t groups,
                         std::vector<int64_t> sizes) {
      return conv_sample(std::move(y), std::move(w), std::move(windows), groups,
                         {{"sizes", std::move(sizes)}});
    };
    return std::vector<Sample>{
        make({2, 4, 5}, {4, 3, 3}, {{2}, {1}, {1, 0}}, 1, {10}),
        make({1, 6, 3, 4}, {6, 2, 3, 2}, {{1, 2}, {2, 1}, {1, 0, 2, 1}}, 2, {4, 7}),
        make({2, 5, 4, 3}, {5, 1, 2, 2}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, 5, {8, 6}),
        make({1, 3, 2, 2, 2}, {3, 2, 2, 2, 2}, {{1, 2, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}}, 1,
             {3, 4, 3}),
        make({2, 4, 5, 7}, {7, 5, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1, {4, 5}),
        make({1, 3, 4, 6}, {6, 2, 3, 2}, {{2, 2}, {1, 1}, {1, 0, 1, 1}, true}, 2, {6, 7}),
        make({2, 3, 2, 9}, {9, 4, 1, 1}, {{2, 2}, {1, 1}, {0, 0, 0, 0}, true}, 1, {5, 4}),
        make({1, 3, 3, 5}, {5, 1, 3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 5, {3, 3})};
  };
  return d;
}

OpDef conv_weight_grad_op() {
  OpDef d;
  d.name = "conv_weight_grad";
  d.doc = fmt::format(
      "dw is the derivative of conv in its w: the sum over n and o of x[n, c, o stride - before + "
      "k dilation] dy[n, m, o]. x: [N, C, in...], dy: [N, M, out...], dw: [M, C/G, kernel...], "
      "kernel as {{kernel}} says; {}. Sums are in f32 or wider",
      kWindowsDoc);
  d.op_class = OpClass::contraction;
  d.autocast = Autocast::low;
  d.is_gradient = true;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 2);
    ops::expect_float(c, 0, "x");
    ops::expect_same_dtype(c, 0, 1);
    const ops::Pictures x = checked_pictures(c, 0, "x"), dy = checked_pictures(c, 1, "dy");
    const int64_t groups = groups_of(c);
    if (dy.batch != x.batch || x.channels % groups != 0 || dy.channels % groups != 0)
      c.fail("x and dy must have as many images and multiples of {} channels; got {} and {}",
             groups, c.in[0].str(), c.in[1].str());
    const auto kernel = sizes_attr(c, "kernel", x.spatial.size());
    const auto grid = ops::checked_grid(c, x.spatial, kernel);
    if (grid.out != dy.spatial)
      c.fail("a convolution of {} has no result of the shape of dy {}", c.in[0].shape.str(),
             c.in[1].shape.str());
    Shape dw{dy.channels, x.channels / groups};
    for (const int64_t size : kernel) dw.push_back(size);
    return std::vector<Type>{{c.in[0].dtype, dw}};
  };
  d.evaluate = [](const EvalContext& c) {
    const ConvForm form =
        form_of_weight_grad(c.node.attrs, c.in[0]->type.shape, c.in[1]->type.shape);
    multiply_add(*c.in[0], *c.in[1], c.out[0], [&](auto add) {
      for_each_product(form, [&](int64_t x, int64_t w, int64_t y) { add(x, y, w); });
    });
  };
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0), dy = c.operand(1), ddw = c.grad(0);
    const Windows windows = ops::windows_of(c.attrs());
    const int64_t groups = c.attrs().get<int64_t>("groups");
    if (c.wants(0))
      c.set(0, conv_transpose(dy, ddw, ops::Pictures(x.shape(), windows.channels_last).spatial,
                              windows, groups));
    if (c.wants(1)) c.set(1, conv(x, ddw, std::nullopt, windows, groups));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in,
                               form_of_weight_grad(n.attrs, in[0].shape, in[1].shape).flops());
  };
  d.samples = [] {
    const auto make = [](Shape x, Shape dy, Windows windows, int64_t groups,
                         std::vector<int64_t> kernel) {
      return conv_sample(std::move(x), std::move(dy), std::move(windows), groups,
                         {{"kernel", std::move(kernel)}});
    };
    return std::vector<Sample>{
        make({2, 3, 9}, {2, 4, 4}, {{2}, {1}, {1, 0}}, 1, {3}),
        make({1, 4, 5, 6}, {1, 6, 4, 3}, {{1, 2}, {2, 1}, {1, 0, 2, 1}}, 2, {3, 2}),
        make({2, 3, 4, 4}, {2, 3, 4, 4}, {{1, 1}, {1, 1}, {1, 1, 1, 1}}, 3, {3, 3}),
        make({3, 4, 5, 6}, {3, 4, 5, 7}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1, {3, 3}),
        make({2, 6, 7, 4}, {2, 3, 4, 6}, {{2, 2}, {1, 1}, {1, 0, 1, 1}, true}, 2, {3, 2}),
        make({2, 5, 4, 3}, {2, 3, 2, 9}, {{2, 2}, {1, 1}, {0, 0, 0, 0}, true}, 1, {1, 1}),
        make({1, 3, 3, 5}, {1, 3, 3, 5}, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 5, {3, 3})};
  };
  return d;
}

}  // namespace

Value conv(Value x, Value w, std::optional<Value> bias, const Windows& windows, int64_t groups) {
  std::vector<Value> operands{x, w};
  if (bias) operands.push_back(*bias);
  return call(Op::conv, operands,
              ops::window_attrs(windows, {{"groups", groups}, {"bias", bias.has_value()}}))[0];
}

Value conv_by_matrix(Value x, Value w, std::vector<int64_t> kernel, std::optional<Value> bias,
                     const Windows& windows, int64_t groups, int64_t winograd) {
  std::vector<Value> operands{x, w};
  if (bias) operands.push_back(*bias);
  Attrs attrs{{"groups", groups}, {"bias", bias.has_value()}, {"kernel", std::move(kernel)}};
  if (w.type().storage.is_quantized()) attrs.set("left_bits", int64_t{8});
  if (winograd != 0) attrs.set("winograd", winograd);
  return call(Op::conv, operands, ops::window_attrs(windows, std::move(attrs)))[0];
}

Value weight_matrix(Value w) {
  std::vector<int64_t> permutation(static_cast<size_t>(w.shape().rank()));
  std::iota(permutation.begin(), permutation.end(), int64_t{1});
  permutation.front() = 0;
  permutation.back() = 1;
  const int64_t rows = w.shape().size(0);
  return reshape(transpose(w, permutation),
                 {rows, w.shape().elements() / std::max<int64_t>(rows, 1)});
}

Value conv_transpose(Value y, Value w, std::vector<int64_t> sizes, const Windows& windows,
                     int64_t groups) {
  return call1(Op::conv_transpose, {y, w},
               ops::window_attrs(windows, {{"groups", groups}, {"sizes", std::move(sizes)}}));
}

Value conv_weight_grad(Value x, Value dy, std::vector<int64_t> kernel, const Windows& windows,
                       int64_t groups) {
  return call1(Op::conv_weight_grad, {x, dy},
               ops::window_attrs(windows, {{"groups", groups}, {"kernel", std::move(kernel)}}));
}

namespace ops {

std::vector<OpDef> conv_ops() {
  return {conv_op(), conv_transpose_op(), conv_weight_grad_op(), winograd_weight_op()};
}

}  // namespace ops
}  // namespace brrr
