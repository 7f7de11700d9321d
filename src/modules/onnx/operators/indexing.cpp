// Operators that read and write parts of tensors by index.

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

// -- by index
// -------------------------------------------------------------------------------------

/// As i64.
Value index_of(Value ids) { return cast(ids, DType::i64); }

void gather_axis(Call& c) {
  const Value x = c.in(0), ids = c.in(1);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), x.shape().rank()));
  c.out(gather(x, ids, axis));
}

/// Indices along an axis as those in [0, size): below 0 they count from the end. What lies outside
/// becomes `outside`, which no tensor has, so that gather and scatter refuse it.
struct AxisIndex {
  Value index, is_inside;
};
AxisIndex along_axis(Call& c, Value ids, int64_t size) {
  const Value n = c.scalar(size, DType::i64), zero = c.scalar(0, DType::i64);
  const Value wrapped = where(less(ids, zero), ids + n, ids);
  return {wrapped, logical_and(less_equal(zero, wrapped), less(wrapped, n))};
}
Value outside(Call& c) { return c.scalar(int64_t{1} << 60, DType::i64); }

/// Throws UserError unless the indices have the rank of x and no more elements than x along the
/// axes but `axis`: those name elements of x by their own place.
void check_places(Call& c, const Shape& x, const Shape& ids, int axis) {
  bool fits = ids.rank() == x.rank();
  for (int a = 0; fits && a < x.rank(); ++a) fits = a == axis || ids.size(a) <= x.size(a);
  if (!fits)
    c.fail("indices {} must have the rank of {}, and at most its sizes beside axis {}", ids.str(),
           x.str(), axis);
}

void gather_elements(Call& c) {
  const Value x = c.in(0), ids = c.in(1);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), x.shape().rank()));
  check_places(c, x.shape(), ids.shape(), axis);
  c.out(gather_elements(x, ids, axis));
}

ScatterMode mode_of(Call& c) {
  const std::string mode = c.text("reduction", "none");
  if (mode == "none") return ScatterMode::set;
  if (mode == "add") return ScatterMode::add;
  if (mode == "mul") return ScatterMode::mul;
  if (mode == "max") return ScatterMode::max;
  if (mode == "min") return ScatterMode::min;
  c.refuse("reduction = {}", mode);
}

void scatter_elements(Call& c) {
  const Value x = c.in(0), ids = c.in(1), updates = c.in(2);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), x.shape().rank()));
  const int64_t n = x.shape().elements(), m = ids.shape().elements();
  check_places(c, x.shape(), ids.shape(), axis);
  if (updates.shape() != ids.shape())
    c.fail("updates {} must have the shape of the indices {}", updates.shape().str(),
           ids.shape().str());
  const Value flat = element_index(x.shape(), ids, axis);
  const Value y =
      scatter(reshape(x, {n, 1}), reshape(flat, {m}), reshape(updates, {m, 1}), mode_of(c));
  c.out(reshape(y, x.shape()));
}

/// The flat index [...] that indices [..., K] mean: into the first K axes behind `batch` ones.
Value flat_rows(Call& c, const Shape& x, Value ids, int batch) {
  ids = index_of(ids);
  const int rank = ids.shape().rank();
  const int64_t depth = ids.shape().size(-1);
  if (batch + depth > x.rank()) c.fail("indices of {} axes into {}", depth, x.str());
  for (int a = 0; a < batch; ++a)
    if (ids.shape().size(a) != x.size(a))
      c.fail("batch axis {} has {} elements in {} and {} in the indices {}", a, x.size(a), x.str(),
             ids.shape().size(a), ids.shape().str());
  Shape rows = ids.shape().without_last(1);
  Value flat = full(c.graph(), rows, 0, DType::i64);
  // Batch axes come first.
  for (int a = 0; a < batch; ++a)
    flat = flat * c.scalar(x.size(a), DType::i64) + iota(c.graph(), rows, a, DType::i64);
  Value inside = full(c.graph(), rows, 1, DType::boolean);
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t size = x.size(batch + static_cast<int>(k));
    const AxisIndex own = along_axis(c, reshape(slice(ids, rank - 1, k, 1), rows), size);
    flat = flat * c.scalar(size, DType::i64) + own.index;
    inside = logical_and(inside, own.is_inside);
  }
  return where(inside, flat, outside(c));
}

void gather_nd(Call& c) {
  const Value x = c.in(0), ids = c.in(1);
  const auto batch = static_cast<int>(c.integer("batch_dims", 0));
  if (batch < 0 || batch >= ids.shape().rank()) c.fail("batch_dims = {}", batch);
  const Value flat = flat_rows(c, x.shape(), ids, batch);
  const auto depth = batch + static_cast<int>(ids.shape().size(-1));
  int64_t rows = 1;
  Shape table, y = flat.shape();
  for (int a = 0; a < depth; ++a) rows *= x.shape().size(a);
  table.push_back(rows);
  for (int a = depth; a < x.shape().rank(); ++a) {
    table.push_back(x.shape()[a]);
    y.push_back(x.shape()[a]);
  }
  c.out(reshape(gather(reshape(x, table), flat, 0), y));
}

void scatter_nd(Call& c) {
  const Value x = c.in(0), ids = c.in(1), updates = c.in(2);
  const Value flat = flat_rows(c, x.shape(), ids, 0);
  const auto depth = static_cast<int>(ids.shape().size(-1));
  int64_t rows = 1, width = 1;
  for (int a = 0; a < x.shape().rank(); ++a) (a < depth ? rows : width) *= x.shape().size(a);
  const int64_t m = flat.shape().elements();
  Shape wanted = flat.shape();
  for (int a = depth; a < x.shape().rank(); ++a) wanted.push_back(x.shape()[a]);
  if (updates.shape() != wanted)
    c.fail("updates must be {}; got {}", wanted.str(), updates.shape().str());
  const Value y = scatter(reshape(x, {rows, width}), reshape(flat, {m}),
                          reshape(updates, {m, width}), mode_of(c));
  c.out(reshape(y, x.shape()));
}

void one_hot(Call& c) {
  const Value ids = c.in(0), values = c.in(2);
  const auto depth = static_cast<int64_t>(c.known_number(1));
  if (depth < 0) c.fail("a depth of {}", depth);
  if (values.shape().elements() != 2)
    c.fail("expected two values, for off and on; got {}", values.type().str());
  const int rank = ids.shape().rank() + 1;
  const auto axis = static_cast<int>(c.axis(c.integer("axis", -1), rank));
  Shape column = ids.shape(), shape = ids.shape();
  column.insert(axis, Dim(1));
  shape.insert(axis, Dim(depth));
  const Value index = reshape(cast(ids, DType::i64), column), n = c.scalar(depth, DType::i64);
  const Value wrapped = where(less(index, c.scalar(0, DType::i64)), index + n, index);
  const Value hot = equal(wrapped, iota(c.graph(), shape, axis, DType::i64));
  const Value off = reshape(slice(values, 0, 0, 1), {}), on = reshape(slice(values, 0, 1, 1), {});
  c.out(where(hot, on, off));
}

void trilu(Call& c) {
  const Value x = c.in(0);
  const int64_t k = c.has(1) ? c.known_integer(1) : 0;
  const bool upper = c.integer("upper", 1) != 0;
  const Shape square{x.shape()[-2], x.shape()[-1]};
  const Value row = iota(c.graph(), square, 0, DType::i64) + c.scalar(k, DType::i64),
              column = iota(c.graph(), square, 1, DType::i64);
  const Value keep = upper ? less_equal(row, column) : less_equal(column, row);
  c.out(where(keep, x, c.scalar_like(0, x)));
}

void depth_to_space(Call& c) {
  const Value x = c.in(0);
  const int64_t b = c.integer("blocksize"), n = x.shape().size(0), ch = x.shape().size(1),
                h = x.shape().size(2), w = x.shape().size(3);
  if (b < 1 || ch % (b * b) != 0) c.fail("{} channels in blocks of {}", ch, b);
  const int64_t out = ch / (b * b);
  const bool crd = c.text("mode", "DCR") == "CRD";
  const Value parts = crd ? reshape(x, {n, out, b, b, h, w}) : reshape(x, {n, b, b, out, h, w});
  const Value moved =
      crd ? transpose(parts, {0, 1, 4, 2, 5, 3}) : transpose(parts, {0, 3, 4, 1, 5, 2});
  c.out(reshape(moved, {n, out, h * b, w * b}));
}

void space_to_depth(Call& c) {
  const Value x = c.in(0);
  const int64_t b = c.integer("blocksize"), n = x.shape().size(0), ch = x.shape().size(1),
                h = x.shape().size(2), w = x.shape().size(3);
  if (b < 1 || h % b != 0 || w % b != 0) c.fail("{} in blocks of {}", x.type().str(), b);
  const Value parts = reshape(x, {n, ch, h / b, b, w / b, b});
  c.out(reshape(transpose(parts, {0, 3, 5, 1, 2, 4}), {n, ch * b * b, h / b, w / b}));
}

const OperatorRow kIndexingRows[] = {
    {"", "Gather", gather_axis},
    {"", "GatherElements", gather_elements},
    {"", "GatherND", gather_nd},
    {"", "Scatter", scatter_elements},
    {"", "ScatterElements", scatter_elements},
    {"", "ScatterND", scatter_nd},
    {"", "OneHot", one_hot},
    {"", "Trilu", trilu},
    {"", "DepthToSpace", depth_to_space},
    {"", "SpaceToDepth", space_to_depth},
};

}  // namespace

std::span<const OperatorRow> indexing_operators() { return kIndexingRows; }

}  // namespace brrr::onnx
