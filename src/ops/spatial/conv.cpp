// Convolutions with any number of spatial axes. y is linear in x and in w, so the three ops are
// each other's derivatives: conv_transpose is conv turned around in x, conv_weight_grad in w.

#include "ops/op.h"
#include "ops/spatial/windows.h"

namespace brrr {
namespace {

constexpr const char* kWindowsDoc =
    "{strides}, {dilations}: one number for each spatial axis; {pads}: zeros before each axis, "
    "then zeros behind each; {groups}: G";

/// A convolution from x [N, C, in...] by w [M, C/G, kernel...] to y [N, M, out...], whichever of
/// the three is the result.
struct ConvForm {
  Dim batch;
  int64_t groups = 1, c = 0, m = 0;  // channels of x and of y
  ops::WindowGrid grid;

  int64_t c_in_group() const { return c / groups; }
  int64_t m_in_group() const { return m / groups; }
  double flops() const {
    return 2 * static_cast<double>(batch.size()) * static_cast<double>(m) *
           static_cast<double>(c_in_group()) * static_cast<double>(grid.taps());
  }
};

int64_t groups_of(const InferContext& c) {
  const int64_t groups = c.attr<int64_t>("groups");
  if (groups < 1) c.fail("groups must be at least 1; got {}", groups);
  return groups;
}

void check_images(const InferContext& c, size_t i, const char* what) {
  const Shape& x = c.in[i].shape;
  if (x.rank() < 3) c.fail("{} must be [N, C, spatial...]; got {}", what, c.in[i].str());
  for (int axis = 1; axis < x.rank(); ++axis)
    if (x[axis].is_symbol()) c.fail("{} must have sizes; got {}", what, c.in[i].str());
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

Type with_spatial(DType dtype, Dim first, int64_t second, const std::vector<int64_t>& spatial) {
  Shape shape{first, second};
  for (const int64_t size : spatial) shape.push_back(size);
  return {dtype, shape};
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
  const int64_t in = form.grid.in_elements(), kernel = form.grid.kernel_elements(),
                out = form.grid.out_elements();
  const int64_t cg = form.c_in_group(), mg = form.m_in_group();
  for (int64_t n = 0; n < form.batch.size(); ++n)
    for (int64_t m = 0; m < form.m; ++m)
      for (int64_t c = 0; c < cg; ++c) {
        const int64_t x = (n * form.c + m / mg * cg + c) * in, w = (m * cg + c) * kernel,
                      y = (n * form.m + m) * out;
        ops::for_each_tap(form.grid,
                          [&](int64_t i, int64_t k, int64_t o) { f(x + i, w + k, y + o); });
      }
}

// -- the forms of the three ops
// -----------------------------------------------------------------

ConvForm form_of_conv(const Attrs& attrs, const Shape& x, const Shape& w) {
  return {x[0], attrs.get<int64_t>("groups"), x.size(1), w.size(0),
          ops::window_grid(attrs, ops::spatial_sizes(x), ops::spatial_sizes(w))};
}
ConvForm form_of_transpose(const Attrs& attrs, const Shape& y, const Shape& w) {
  const int64_t groups = attrs.get<int64_t>("groups");
  return {y[0], groups, w.size(1) * groups, w.size(0),
          ops::window_grid(attrs, attrs.get<std::vector<int64_t>>("sizes"), ops::spatial_sizes(w))};
}
ConvForm form_of_weight_grad(const Attrs& attrs, const Shape& x, const Shape& y) {
  return {
      x[0], attrs.get<int64_t>("groups"), x.size(1), y.size(1),
      ops::window_grid(attrs, ops::spatial_sizes(x), attrs.get<std::vector<int64_t>>("kernel"))};
}

Windows windows_of(const Attrs& attrs) {
  return {attrs.get<std::vector<int64_t>>("strides"), attrs.get<std::vector<int64_t>>("dilations"),
          attrs.get<std::vector<int64_t>>("pads")};
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
      "in...], w: [M, C/G, kernel...], b: [M] of any floating dtype, y: [N, M, out...]; {}. Sums "
      "are in f32 or wider, rounded once; integers of 32 and 64 bits wrap around and have no bias",
      kWindowsDoc);
  d.op_class = OpClass::contraction;
  d.autocast = Autocast::low;
  d.autocast_operands = 0b011;
  d.infer = [](const InferContext& c) {
    const bool has_bias = c.attr<bool>("bias");
    ops::expect_operands(c, has_bias ? 3 : 2);
    check_dtype(c);
    check_images(c, 0, "x");
    check_images(c, 1, "w");
    const Shape &x = c.in[0].shape, &w = c.in[1].shape;
    const int64_t groups = groups_of(c);
    if (x.size(1) % groups != 0 || w.size(1) != x.size(1) / groups || w[0].is_symbol() ||
        w.size(0) % groups != 0)
      c.fail("w must be [M, {}/{}, kernel...], M a multiple of {}; got {}", x.size(1), groups,
             groups, c.in[1].str());
    if (has_bias) {
      ops::expect_float(c, 0, "x");
      ops::expect_float(c, 2, "b");
      if (c.in[2].shape != Shape{w[0]}) c.fail("b must be [{}]; got {}", w[0].str(), c.in[2].str());
    }
    const auto grid = ops::checked_grid(c, ops::spatial_sizes(x), ops::spatial_sizes(w));
    return std::vector<Type>{with_spatial(c.in[0].dtype, x[0], w.size(0), grid.out)};
  };
  d.evaluate = [](const EvalContext& c) {
    const ConvForm form = form_of_conv(c.node.attrs, c.in[0]->type.shape, c.in[1]->type.shape);
    RefTensor& y = c.out[0];
    if (c.node.attrs.get<bool>("bias")) {
      const int64_t out = form.grid.out_elements();
      for (size_t i = 0; i < y.size(); ++i)
        y.data[i] = c.in[2]->data[static_cast<size_t>(static_cast<int64_t>(i) / out % form.m)];
    }
    multiply_add(*c.in[0], *c.in[1], y, [&](auto add) {
      for_each_product(form, [&](int64_t x, int64_t w, int64_t to) { add(x, w, to); });
    });
  };
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0), w = c.operand(1), dy = cast(c.grad(0), x.dtype());
    const Windows windows = windows_of(c.attrs());
    const int64_t groups = c.attrs().get<int64_t>("groups");
    if (c.wants(0)) c.set(0, conv_transpose(dy, w, ops::spatial_sizes(x.shape()), windows, groups));
    if (c.wants(1))
      c.set(1, conv_weight_grad(x, dy, ops::spatial_sizes(w.shape()), windows, groups));
    if (!c.attrs().get<bool>("bias") || !c.wants(2)) return;
    std::vector<int64_t> axes{0};
    for (int64_t axis = 2; axis < dy.shape().rank(); ++axis) axes.push_back(axis);
    c.set(2, sum(cast(c.grad(0), c.operand(2).dtype()), axes));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    const double bias = n.attrs.get<bool>("bias") ? ops::elements(n.results[0]) : 0;
    return ops::streaming_cost(n, in,
                               form_of_conv(n.attrs, in[0].shape, in[1].shape).flops() + bias);
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
        make({1, 3, 4, 4}, {3, 3, 2, 2}, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1, false, DType::i32)};
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
    check_images(c, 0, "y");
    check_images(c, 1, "w");
    const Shape &y = c.in[0].shape, &w = c.in[1].shape;
    const int64_t groups = groups_of(c);
    if (w[0] != y[1] || y.size(1) % groups != 0)
      c.fail("w must be [{}, C/G, kernel...] and {} a multiple of G; got {}, G = {}", y.size(1),
             y.size(1), c.in[1].str(), groups);
    const auto sizes = sizes_attr(c, "sizes", static_cast<size_t>(y.rank() - 2));
    const auto grid = ops::checked_grid(c, sizes, ops::spatial_sizes(w));
    if (grid.out != ops::spatial_sizes(y))
      c.fail("a convolution to {} has no result of the shape of y {}", Shape(sizes).str(), y.str());
    int64_t channels = 0;
    if (__builtin_mul_overflow(w.size(1), groups, &channels))
      c.fail("{} groups of {} channels", groups, w.size(1));
    return std::vector<Type>{with_spatial(c.in[0].dtype, y[0], channels, sizes)};
  };
  d.evaluate = [](const EvalContext& c) {
    const ConvForm form = form_of_transpose(c.node.attrs, c.in[0]->type.shape, c.in[1]->type.shape);
    multiply_add(*c.in[0], *c.in[1], c.out[0], [&](auto add) {
      for_each_product(form, [&](int64_t x, int64_t w, int64_t y) { add(y, w, x); });
    });
  };
  d.vjp = [](VjpContext& c) {
    const Value y = c.operand(0), w = c.operand(1), dx = c.grad(0);
    const Windows windows = windows_of(c.attrs());
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
             {3, 4, 3})};
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
    check_images(c, 0, "x");
    check_images(c, 1, "dy");
    const Shape &x = c.in[0].shape, &dy = c.in[1].shape;
    const int64_t groups = groups_of(c);
    if (dy[0] != x[0] || x.size(1) % groups != 0 || dy.size(1) % groups != 0)
      c.fail("x and dy must have as many images and multiples of {} channels; got {} and {}",
             groups, c.in[0].str(), c.in[1].str());
    const auto kernel = sizes_attr(c, "kernel", static_cast<size_t>(x.rank() - 2));
    const auto grid = ops::checked_grid(c, ops::spatial_sizes(x), kernel);
    if (grid.out != ops::spatial_sizes(dy))
      c.fail("a convolution of {} has no result of the shape of dy {}", x.str(), dy.str());
    return std::vector<Type>{with_spatial(c.in[0].dtype, dy[1], x.size(1) / groups, kernel)};
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
    const Windows windows = windows_of(c.attrs());
    const int64_t groups = c.attrs().get<int64_t>("groups");
    if (c.wants(0))
      c.set(0, conv_transpose(dy, ddw, ops::spatial_sizes(x.shape()), windows, groups));
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
        make({2, 3, 4, 4}, {2, 3, 4, 4}, {{1, 1}, {1, 1}, {1, 1, 1, 1}}, 3, {3, 3})};
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

std::vector<OpDef> conv_ops() { return {conv_op(), conv_transpose_op(), conv_weight_grad_op()}; }

}  // namespace ops
}  // namespace brrr
