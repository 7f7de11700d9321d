#include "ops/spatial/winograd.h"

#include <cmath>

#include "base/errors.h"
#include "ops/op.h"
#include "ops/spatial/conv.h"

namespace brrr::ops {
namespace {

std::vector<double> finite_points(int64_t tile) {
  if (tile == 2) return {0, 1, -1};
  return {0, kWinogradNear, -kWinogradNear, kWinogradFar, -kWinogradFar};
}

/// The coefficients, lowest first, of the product of (x - p) over the points other than `except`.
std::vector<double> product_without(const std::vector<double>& points, size_t except) {
  std::vector<double> product{1};
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == except) continue;
    product.push_back(0);
    for (size_t k = product.size() - 1; k > 0; --k)
      product[k] = product[k - 1] - points[i] * product[k];
    product[0] *= -points[i];
  }
  return product;
}

/// to = m [rows, columns] times from [columns, count] along the outer axis, or with `inner` from
/// [count, columns] along the inner one, then [count, rows].
void apply(const std::vector<double>& m, size_t rows, size_t columns, const double* from,
           size_t count, bool inner, double* to) {
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < count; ++j) {
      double sum = 0;
      for (size_t k = 0; k < columns; ++k)
        sum += m[i * columns + k] * from[inner ? j * columns + k : k * count + j];
      to[inner ? j * rows + i : i * count + j] = sum;
    }
}

}  // namespace

WinogradMatrices winograd_matrices(int64_t tile) {
  BRRR_CHECK(is_winograd_tile(tile), "a tile of {}", tile);
  const auto size = static_cast<size_t>(winograd_size(tile)), results = static_cast<size_t>(tile);
  const std::vector<double> points = finite_points(tile);
  WinogradMatrices all{std::vector<double>(size * size), std::vector<double>(size * 3),
                       std::vector<double>(results * size)};
  for (size_t i = 0; i < points.size(); ++i) {
    const std::vector<double> others = product_without(points, i);
    double value = 0;
    for (size_t k = 0; k < others.size(); ++k)
      value += others[k] * std::pow(points[i], static_cast<double>(k));
    for (size_t k = 0; k < others.size(); ++k) all.input[i * size + k] = others[k];
    for (size_t k = 0; k < 3; ++k)
      all.weight[i * 3 + k] = std::pow(points[i], static_cast<double>(k)) / value;
    for (size_t k = 0; k < results; ++k)
      all.output[k * size + i] = std::pow(points[i], static_cast<double>(k));
  }
  // Infinity: the leading coefficients.
  const std::vector<double> whole = product_without(points, points.size());
  std::copy(whole.begin(), whole.end(),
            all.input.begin() + static_cast<int64_t>((size - 1) * size));
  all.weight.back() = 1;
  all.output.back() = 1;
  return all;
}

void add_winograd(const WindowGrid& grid, int64_t tile, const RefTensor& x, const RefTensor& w,
                  RefTensor& y) {
  const WinogradMatrices m = winograd_matrices(tile);
  const int64_t size = winograd_size(tile), places = size * size;
  const auto s = static_cast<size_t>(size), t = static_cast<size_t>(tile);
  const Pictures from(x.type.shape, true), to(y.type.shape, true);
  const int64_t high = grid.out[0], wide = grid.out[1];
  std::vector<double> patch(s * s), half(s * s),
      patches(s * s * static_cast<size_t>(from.channels));
  for (int64_t n = 0; n < from.batch.size(); ++n)
    for (int64_t top = 0; top < high; top += tile)
      for (int64_t left = 0; left < wide; left += tile) {
        for (int64_t c = 0; c < from.channels; ++c) {
          for (int64_t place = 0; place < places; ++place) {
            const int64_t row = top + place / size - grid.before(0),
                          column = left + place % size - grid.before(1);
            const bool exists = row >= 0 && row < grid.in[0] && column >= 0 && column < grid.in[1];
            patch[static_cast<size_t>(place)] =
                exists ? x.data[static_cast<size_t>(from.at(n, c, row * grid.in[1] + column))] : 0;
          }
          apply(m.input, s, s, patch.data(), s, false, half.data());
          apply(m.input, s, s, half.data(), s, true,
                patches.data() + static_cast<size_t>(c) * s * s);
        }
        for (int64_t channel = 0; channel < to.channels; ++channel) {
          std::fill(patch.begin(), patch.end(), 0.0);
          for (int64_t place = 0; place < places; ++place)
            for (int64_t c = 0; c < from.channels; ++c)
              patch[static_cast<size_t>(place)] +=
                  w.data[static_cast<size_t>((channel * places + place) * from.channels + c)] *
                  patches[static_cast<size_t>(c * places + place)];
          apply(m.output, t, s, patch.data(), s, false, half.data());
          apply(m.output, t, s, half.data(), t, true, patch.data());
          for (int64_t i = 0; i < std::min(tile, high - top); ++i)
            for (int64_t j = 0; j < std::min(tile, wide - left); ++j)
              y.data[static_cast<size_t>(to.at(n, channel, (top + i) * wide + left + j))] +=
                  patch[static_cast<size_t>(i * tile + j)];
        }
      }
}

OpDef winograd_weight_op() {
  OpDef d;
  d.name = "winograd_weight";
  d.derives_weights = true;
  d.doc =
      "y[m, p, c] = (G w[m, c] G')[p], the kernels as Winograd's algorithm multiplies them in "
      "tiles "
      "of {tile} T, 2 or 4 (ops/spatial/winograd.h), for conv with {winograd}. Computed in double, "
      "rounded once. w: [M, C, 3, 3], y: [M, S S C], S = T + 2";
  d.op_class = OpClass::movement;
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    expect_float(c, 0, "w");
    const int64_t tile = c.attr<int64_t>("tile");
    if (!is_winograd_tile(tile)) c.fail("tile must be 2 or 4; got {}", tile);
    const Shape& w = c.in[0].shape;
    if (w.rank() != 4 || !w.is_static() || w.size(2) != 3 || w.size(3) != 3)
      c.fail("w must be [M, C, 3, 3]; got {}", c.in[0].str());
    int64_t terms = 0;
    if (__builtin_mul_overflow(winograd_size(tile) * winograd_size(tile), w.size(1), &terms))
      c.fail("{} has too many channels", c.in[0].str());
    return std::vector<Type>{{c.in[0].dtype, {w[0], terms}}};
  };
  d.evaluate = [](const EvalContext& c) {
    const int64_t tile = c.node.attrs.get<int64_t>("tile");
    const std::vector<double> g = winograd_matrices(tile).weight;
    const auto places = static_cast<size_t>(winograd_size(tile) * winograd_size(tile));
    const auto channels = static_cast<size_t>(c.in[0]->type.shape.size(1));
    std::vector<double> kernel(places);
    for (size_t i = 0; i < c.in[0]->size() / 9; ++i) {
      transform_winograd_kernel(g, c.in[0]->data.data() + i * 9, kernel.data());
      for (size_t p = 0; p < places; ++p)
        c.out[0].data[(i / channels * places + p) * channels + i % channels] = kernel[p];
    }
  };
  d.vjp = [](VjpContext& c) {
    // dw = G' dy G: the products of G's columns, for each of the nine elements.
    const Shape w = c.operand(0).shape();
    const std::vector<double> g = winograd_matrices(c.attrs().get<int64_t>("tile")).weight;
    const size_t size = g.size() / 3;
    std::vector<Number> map;
    for (size_t p = 0; p < size * size; ++p)
      for (size_t tap = 0; tap < 9; ++tap)
        map.emplace_back(g[p / size * 3 + tap / 3] * g[p % size * 3 + tap % 3]);
    const auto places = static_cast<int64_t>(size * size);
    const Value dy = transpose(reshape(c.grad(0), {w[0], places, w[1]}), {0, 2, 1});
    const Value numbers = literal(c.graph, {places, 9}, map, dy.dtype());
    c.set(0, reshape(matmul(reshape(dy, {w.size(0) * w.size(1), places}), numbers), w));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    // Each element is a sum of three products of sums of three.
    const int64_t size = winograd_size(n.attrs.get<int64_t>("tile"));
    const double kernels = elements(in[0]) / 9;
    return streaming_cost(n, in, kernels * static_cast<double>(15 * size + 5 * size * size));
  };
  d.samples = [] {
    const auto make = [](int64_t m, int64_t c, int64_t tile) {
      return Sample{{tensor({m, c, 3, 3})}, {{"tile", tile}}};
    };
    return std::vector<Sample>{make(3, 5, 4), make(2, 1, 2), make(35, 4, 2)};
  };
  return d;
}

}  // namespace brrr::ops

namespace brrr {

Value winograd_weight(Value w, int64_t tile) {
  return call1(Op::winograd_weight, {w}, {{"tile", tile}});
}

}  // namespace brrr
