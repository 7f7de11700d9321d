// Pools: the largest element of each window with its derivative, and the sum of each window.

#include "ops/op.h"
#include "ops/spatial/windows.h"

namespace brrr {
namespace {

constexpr const char* kPoolDoc =
    "{kernel}, {strides}, {dilations}: one number for each spatial axis; {pads}: what lies before "
    "each axis, then behind each; with {channels_last} pictures are [N, spatial..., C]";

/// Pictures x and the windows of a pool over each of their channels.
struct PoolForm {
  ops::Pictures x;
  ops::WindowGrid grid;

  ops::Pictures y() const { return {x.batch, x.channels, grid.out, x.channels_last}; }
};

PoolForm checked_pool(const InferContext& c) {
  const Shape& x = c.in[0].shape;
  const bool last = ops::has_channels_last(c.attrs);
  if (x.rank() < 3)
    c.fail("x must be {}; got {}", last ? "[N, spatial..., C]" : "[N, C, spatial...]",
           c.in[0].str());
  for (int axis = 0; axis < x.rank(); ++axis)
    if (x[axis].is_symbol()) c.fail("x must have sizes; got {}", c.in[0].str());
  const ops::Pictures pictures(x, last);
  return {pictures, ops::checked_grid(c, pictures.spatial, c.attr<std::vector<int64_t>>("kernel"))};
}

/// Fails for a window of padding alone, which has no largest element.
void check_windows_read(const InferContext& c, const ops::WindowGrid& grid) {
  for (size_t a = 0; a < grid.axes(); ++a)
    for (int64_t o = 0; o < grid.out[a]; ++o) {
      bool reads = false;
      for (int64_t k = 0; k < grid.kernel[a] && !reads; ++k)
        reads = grid.at(a, o, k) >= 0 && grid.at(a, o, k) < grid.in[a];
      if (!reads) c.fail("window {} of spatial axis {} reads padding alone", o, a);
    }
}

PoolForm form_of(const Node& node, const Shape& x) {
  const ops::Pictures pictures(x, ops::has_channels_last(node.attrs));
  return {pictures, ops::window_grid(node.attrs, pictures.spatial,
                                     node.attrs.get<std::vector<int64_t>>("kernel"))};
}

/// f(element of x, element of y) for each pair of an element and a window that reads it. The
/// elements of a window come in row-major order.
template <typename F>
void for_each_pair(const PoolForm& form, F f) {
  const ops::Pictures y = form.y();
  for (int64_t n = 0; n < form.x.batch.size(); ++n)
    for (int64_t c = 0; c < form.x.channels; ++c)
      ops::for_each_tap(form.grid, [&](int64_t i, int64_t, int64_t o) {
        f(static_cast<size_t>(form.x.at(n, c, i)), static_cast<size_t>(y.at(n, c, o)));
      });
}

/// For each window, the index in x of the largest element, of equal ones the first; NaN counts as
/// the largest.
template <typename T>
std::vector<int64_t> largest_of_windows(const PoolForm& form, const std::vector<T>& x,
                                        size_t windows) {
  std::vector<int64_t> largest(windows, -1);
  for_each_pair(form, [&](size_t from, size_t to) {
    const auto best = static_cast<size_t>(std::max<int64_t>(largest[to], 0));
    bool beats = largest[to] < 0 || x[from] > x[best];
    if constexpr (std::is_same_v<T, double>)
      beats = beats || (std::isnan(x[from]) && !std::isnan(x[best]));
    if (beats) largest[to] = static_cast<int64_t>(from);
  });
  return largest;
}

Cost pool_cost(const Node& n, std::span<const Type> in) {
  const PoolForm form = form_of(n, in[0].shape);
  const double planes =
      static_cast<double>(form.x.batch.size()) * static_cast<double>(form.x.channels);
  return ops::streaming_cost(n, in, planes * static_cast<double>(form.grid.taps()));
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
  add({2, 6, 7, 19}, {3, 3}, {{2, 2}, {1, 1}, {1, 1, 1, 1}, true});
  add({1, 5, 3}, {2}, {{1}, {2}, {0, 1}, true});
  if (with_integers) {
    add({1, 2, 4, 4}, {2, 2}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, DType::u8);
    add({1, 2, 4, 4}, {2, 2}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, DType::i64);
  }
  return out;
}

OpDef max_pool_op() {
  OpDef d;
  d.name = "max_pool";
  d.doc = fmt::format(
      "values = the largest element of each window, of equal ones the first; NaN counts as the "
      "largest. indices: where it stands in x, as a row-major index, i64. x: [N, C, in...]; "
      "values, indices: [N, C, out...]; {}. Padding is never the largest, and every window reads "
      "an element",
      kPoolDoc);
  d.op_class = OpClass::normalisation;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const PoolForm form = checked_pool(c);
    if (c.in[0].dtype == DType::boolean) c.fail("x must be a number; got {}", c.in[0].str());
    check_windows_read(c, form.grid);
    const Shape y = form.y().shape();
    return std::vector<Type>{{c.in[0].dtype, y}, {DType::i64, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const PoolForm form = form_of(c.node, c.in[0]->type.shape);
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& x = c.in[0]->of<T>();
      std::vector<int64_t>& indices = c.out[1].signed_data;
      indices = largest_of_windows(form, x, y.size());
      for (size_t o = 0; o < y.size(); ++o) y[o] = x[static_cast<size_t>(indices[o])];
    });
  };
  d.vjp = [](VjpContext& c) {
    if (!c.has_grad(0)) return;
    c.set(0,
          max_pool_grad(c.operand(0), cast(c.grad(0), c.operand(0).dtype()),
                        c.attrs().get<std::vector<int64_t>>("kernel"), ops::windows_of(c.attrs())));
  };
  d.cost = pool_cost;
  d.samples = [] { return pool_samples(true); };
  return d;
}

OpDef max_pool_grad_op() {
  OpDef d;
  d.name = "max_pool_grad";
  d.doc = fmt::format(
      "The derivative of max_pool: each dy is added to the largest element of its window, of equal "
      "ones the first. x, dx: [N, C, in...], dy: [N, C, out...]; {}",
      kPoolDoc);
  d.op_class = OpClass::normalisation;
  d.is_gradient = true;
  d.no_gradient = "second derivatives of max_pool are not implemented";
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 2);
    ops::expect_float(c, 0, "x");
    ops::expect_same_dtype(c, 0, 1);
    const PoolForm form = checked_pool(c);
    check_windows_read(c, form.grid);
    const Shape y = form.y().shape();
    if (c.in[1].shape != y) c.fail("dy must be {}; got {}", y.str(), c.in[1].str());
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [](const EvalContext& c) {
    const PoolForm form = form_of(c.node, c.in[0]->type.shape);
    const std::vector<double>& dy = c.in[1]->data;
    const auto largest = largest_of_windows(form, c.in[0]->data, dy.size());
    for (size_t o = 0; o < dy.size(); ++o) c.out[0].data[static_cast<size_t>(largest[o])] += dy[o];
  };
  d.cost = pool_cost;
  d.samples = [] {
    std::vector<Sample> samples = pool_samples(false);
    for (Sample& s : samples) {
      const Shape& x = s.in[0].type.shape;
      const ops::Pictures pictures(x, ops::has_channels_last(s.attrs));
      const PoolForm form{pictures, ops::window_grid(s.attrs, pictures.spatial,
                                                     s.attrs.get<std::vector<int64_t>>("kernel"))};
      s.in.push_back(ops::tensor(form.y().shape()));
    }
    return samples;
  };
  return d;
}

OpDef sum_pool_op() {
  OpDef d;
  d.name = "sum_pool";
  d.doc = fmt::format(
      "y = the sum of each window, in f32 or wider; padding counts as zero. x: [N, C, in...], y: "
      "[N, C, out...]; {}",
      kPoolDoc);
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const PoolForm form = checked_pool(c);
    ops::expect_float(c, 0, "x");
    return std::vector<Type>{{c.in[0].dtype, form.y().shape()}};
  };
  d.evaluate = [](const EvalContext& c) {
    for_each_pair(form_of(c.node, c.in[0]->type.shape),
                  [&](size_t from, size_t to) { c.out[0].data[to] += c.in[0]->data[from]; });
  };
  // Each element takes the gradients of its windows: a convolution of each channel by ones.
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0);
    const auto& kernel = c.attrs().get<std::vector<int64_t>>("kernel");
    const Windows windows = ops::windows_of(c.attrs());
    const ops::Pictures pictures(x.shape(), windows.channels_last);
    Shape ones{pictures.channels, Dim(1)};
    for (const int64_t size : kernel) ones.push_back(size);
    c.set(0, conv_transpose(c.grad(0), full(c.graph, ones, 1, x.dtype()), pictures.spatial, windows,
                            pictures.channels));
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

Value max_pool_grad(Value x, Value dy, std::vector<int64_t> kernel, const Windows& windows) {
  return call1(Op::max_pool_grad, {x, dy},
               ops::window_attrs(windows, {{"kernel", std::move(kernel)}}));
}

Value sum_pool(Value x, std::vector<int64_t> kernel, const Windows& windows) {
  return call1(Op::sum_pool, {x}, ops::window_attrs(windows, {{"kernel", std::move(kernel)}}));
}

namespace ops {

std::vector<OpDef> pool_ops() { return {max_pool_op(), max_pool_grad_op(), sum_pool_op()}; }

}  // namespace ops
}  // namespace brrr
