// Pools: the largest element of each window, and the sum of each window.

#include "ops/op.h"
#include "ops/spatial/windows.h"

namespace brrr {
namespace {

ops::WindowGrid checked_pool(const InferContext& c) {
  ops::expect_operands(c, 1);
  const Shape& x = c.in[0].shape;
  if (x.rank() < 3) c.fail("x must be [N, C, spatial...]; got {}", c.in[0].str());
  for (int axis = 0; axis < x.rank(); ++axis)
    if (x[axis].is_symbol()) c.fail("x must have sizes; got {}", c.in[0].str());
  return ops::checked_grid(c, ops::spatial_sizes(x), c.attr<std::vector<int64_t>>("kernel"));
}

Shape pooled(const Shape& x, const ops::WindowGrid& grid) {
  Shape y{x[0], x[1]};
  for (const int64_t size : grid.out) y.push_back(size);
  return y;
}

ops::WindowGrid grid_of(const Node& node, const Shape& x) {
  return ops::window_grid(node.attrs, ops::spatial_sizes(x),
                          node.attrs.get<std::vector<int64_t>>("kernel"));
}

int64_t planes_of(const Shape& x) { return x.size(0) * x.size(1); }

Cost pool_cost(const Node& n, std::span<const Type> in) {
  const double taps = static_cast<double>(grid_of(n, in[0].shape).taps());
  return ops::streaming_cost(n, in, static_cast<double>(planes_of(in[0].shape)) * taps);
}

std::vector<Sample> pool_samples(bool with_integers) {
  std::vector<Sample> out;
  const auto add = [&](Shape x, std::vector<int64_t> kernel, Windows windows,
                       DType dtype = DType::f32) {
    const double most = is_float(dtype) ? 1 : 99;
    out.push_back({{ops::tensor(std::move(x), is_unsigned_integer(dtype) ? 0 : -most, most, dtype)},
                   ops::window_attrs(windows, {{"kernel", std::move(kernel)}})});
  };
  add({2, 3, 9}, {3}, {{2}, {1}, {1, 0}});
  add({1, 4, 5, 6}, {3, 2}, {{1, 2}, {2, 1}, {1, 0, 1, 0}});
  add({2, 3, 6, 38}, {3, 3}, {{1, 1}, {1, 1}, {1, 1, 1, 1}});
  add({1, 2, 3, 4, 3}, {2, 2, 2}, {{1, 2, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}});
  if (with_integers) {
    add({1, 2, 4, 4}, {2, 2}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, DType::u8);
    add({1, 2, 4, 4}, {2, 2}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, DType::i64);
  }
  return out;
}

OpDef max_pool_op() {
  OpDef d;
  d.name = "max_pool";
  d.doc =
      "values = the largest element of each window, of equal ones the first; NaN counts as the "
      "largest. indices: where it stands in x, as a row-major index, i64. x: [N, C, in...]; "
      "values, "
      "indices: [N, C, out...]; {kernel}, {strides}, {dilations}: one number for each spatial "
      "axis; "
      "{pads}: what lies before each axis, then behind each; padding is never the largest, and "
      "every window reads an element";
  d.op_class = OpClass::normalisation;
  d.infer = [](const InferContext& c) {
    const ops::WindowGrid grid = checked_pool(c);
    if (c.in[0].dtype == DType::boolean) c.fail("x must be a number; got {}", c.in[0].str());
    for (size_t a = 0; a < grid.axes(); ++a)
      for (int64_t o = 0; o < grid.out[a]; ++o) {
        bool reads = false;
        for (int64_t k = 0; k < grid.kernel[a] && !reads; ++k)
          reads = grid.at(a, o, k) >= 0 && grid.at(a, o, k) < grid.in[a];
        if (!reads) c.fail("window {} of spatial axis {} reads padding alone", o, a);
      }
    const Shape y = pooled(c.in[0].shape, grid);
    return std::vector<Type>{{c.in[0].dtype, y}, {DType::i64, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const Shape& shape = c.in[0]->type.shape;
    const ops::WindowGrid grid = grid_of(c.node, shape);
    const int64_t in = grid.in_elements(), out = grid.out_elements();
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& x = c.in[0]->of<T>();
      std::vector<int64_t>& indices = c.out[1].signed_data;
      std::ranges::fill(indices, -1);
      for (int64_t p = 0; p < planes_of(shape); ++p)
        ops::for_each_tap(grid, [&](int64_t i, int64_t, int64_t o) {
          const auto from = static_cast<size_t>(p * in + i), to = static_cast<size_t>(p * out + o);
          bool beats = indices[to] < 0 || x[from] > y[to];
          if constexpr (std::is_same_v<T, double>)
            beats = beats || (std::isnan(x[from]) && !std::isnan(y[to]));
          if (!beats) return;
          y[to] = x[from];
          indices[to] = static_cast<int64_t>(from);
        });
    });
  };
  d.vjp = [](VjpContext& c) {
    if (!c.has_grad(0)) return;
    const Value x = c.operand(0), dy = c.grad(0);
    const int64_t n = x.shape().elements(), m = dy.shape().elements();
    const Value sums = scatter(full(c.graph, {n, 1}, 0, x.dtype()), reshape(c.result(1), {m}),
                               reshape(dy, {m, 1}), ScatterMode::add);
    c.set(0, reshape(sums, x.shape()));
  };
  d.cost = pool_cost;
  d.samples = [] { return pool_samples(true); };
  return d;
}

OpDef sum_pool_op() {
  OpDef d;
  d.name = "sum_pool";
  d.doc =
      "y = the sum of each window, in f32 or wider. x: [N, C, in...], y: [N, C, out...]; {kernel}, "
      "{strides}, {dilations}: one number for each spatial axis; {pads}: zeros before each axis, "
      "then behind each";
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    const ops::WindowGrid grid = checked_pool(c);
    ops::expect_float(c, 0, "x");
    return std::vector<Type>{{c.in[0].dtype, pooled(c.in[0].shape, grid)}};
  };
  d.evaluate = [](const EvalContext& c) {
    const Shape& shape = c.in[0]->type.shape;
    const ops::WindowGrid grid = grid_of(c.node, shape);
    const int64_t in = grid.in_elements(), out = grid.out_elements();
    for (int64_t p = 0; p < planes_of(shape); ++p)
      ops::for_each_tap(grid, [&](int64_t i, int64_t, int64_t o) {
        c.out[0].data[static_cast<size_t>(p * out + o)] +=
            c.in[0]->data[static_cast<size_t>(p * in + i)];
      });
  };
  // Each element takes the gradients of its windows: a convolution of each channel by ones.
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0);
    const Attrs& attrs = c.attrs();
    const auto& kernel = attrs.get<std::vector<int64_t>>("kernel");
    Shape ones{x.shape()[1], Dim(1)};
    for (const int64_t size : kernel) ones.push_back(size);
    const Windows windows{attrs.get<std::vector<int64_t>>("strides"),
                          attrs.get<std::vector<int64_t>>("dilations"),
                          attrs.get<std::vector<int64_t>>("pads")};
    c.set(0, conv_transpose(c.grad(0), full(c.graph, ones, 1, x.dtype()),
                            ops::spatial_sizes(x.shape()), windows, x.shape().size(1)));
  };
  d.cost = pool_cost;
  d.samples = [] { return pool_samples(false); };
  return d;
}

}  // namespace

MaxPool max_pool(Value x, std::vector<int64_t> kernel, const Windows& windows) {
  const auto out = call(Op::max_pool, std::span(&x, 1),
                        ops::window_attrs(windows, {{"kernel", std::move(kernel)}}));
  return {out[0], out[1]};
}

Value sum_pool(Value x, std::vector<int64_t> kernel, const Windows& windows) {
  return call1(Op::sum_pool, {x}, ops::window_attrs(windows, {{"kernel", std::move(kernel)}}));
}

namespace ops {

std::vector<OpDef> pool_ops() { return {max_pool_op(), sum_pool_op()}; }

}  // namespace ops
}  // namespace brrr
