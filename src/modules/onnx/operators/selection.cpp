// Operators whose result has a size that only data knows. They are lowered as graphs in which one
// number must be known, the count: the program that computes it ends there, and the next one
// continues with it.

#include <algorithm>
#include <limits>
#include <numeric>

#include "modules/onnx/call.h"
#include "modules/onnx/operators/kept_items.h"

namespace brrr::onnx {
namespace {

/// The value of a count, of one element, that `compute` gives. It outlasts the end of the graph
/// under a name of this node's own; `compute` is not called where an earlier graph computed it.
template <typename F>
int64_t known_count(Call& c, F compute) {
  constexpr std::string_view kCount = "count";
  Lowering& lowering = c.lowering();
  KeptItems kept(c, part_of(c));
  if (const Item* given = kept.find(kCount, 0, 0))
    return lowering.known_or_null(given->value)->integer<int64_t>(0);
  const Value count = compute();
  if (const RefTensor* known = lowering.known_or_null(count)) return known->integer<int64_t>(0);
  kept.keep(kCount, 0, 0, count);
  const int64_t known = lowering.known(count, kept.qualified(kCount, 0, 0)).integer<int64_t>(0);
  kept.take(kCount, 0, 0);
  return known;
}

/// Integers that count up to `n`.
DType index_dtype(int64_t n) {
  return n < std::numeric_limits<int32_t>::max() ? DType::i32 : DType::i64;
}

Value last_of(Value x) { return slice(x, 0, x.shape().size(0) - 1, 1); }

/// The indices, ascending, of the true elements of mask: bool [N].
Value true_places(Call& c, Value mask) {
  const int64_t n = mask.shape().size(0);
  if (n == 0) return full(c.graph(), {0}, 0, DType::i64);
  const DType dtype = index_dtype(n);
  const auto numbered = [&] { return running_sum(cast(mask, dtype), 0); };  // from 1
  const int64_t count = known_count(c, [&] { return last_of(numbered()); });
  if (count == 0) return full(c.graph(), {0}, 0, DType::i64);
  // Each index goes to the place that its number gives; those of false elements go behind the last.
  const Value place = where(mask, numbered() - c.scalar(1, dtype), c.scalar(count, dtype));
  const Value places = scatter(full(c.graph(), {count + 1, 1}, 0, dtype), place,
                               iota(c.graph(), {n, 1}, 0, dtype), ScatterMode::set);
  return cast(reshape(slice(places, 0, 0, count), {count}), DType::i64);
}

void non_zero(Call& c) {
  Value x = c.in(0);
  const Shape shape = x.shape().rank() == 0 ? Shape{1} : x.shape();
  x = reshape(x, {shape.elements()});
  const Value mask = x.dtype() == DType::boolean ? x : not_equal(x, c.scalar_like(0, x));
  const Value found = true_places(c, mask);
  const int64_t count = found.shape().size(0);
  std::vector<Value> rows;
  // A scalar has no axis: [0, count].
  for (int axis = 0; axis < c.in(0).shape().rank(); ++axis) {
    Value row = found;
    const int64_t stride = shape.strides()[static_cast<size_t>(axis)];
    if (stride > 1) row = row / c.scalar(stride, DType::i64);
    if (axis > 0) row = fmod(row, c.scalar(std::max<int64_t>(shape.size(axis), 1), DType::i64));
    rows.push_back(reshape(row, {1, count}));
  }
  if (rows.empty()) return c.out(full(c.graph(), {0, count}, 0, DType::i64));
  c.out(rows.size() == 1 ? rows[0] : concat(rows, 0));
}

void compress(Call& c) {
  Value x = c.in(0), condition = c.in(1);
  int axis = 0;
  if (c.has_attribute("axis"))
    axis = static_cast<int>(c.axis(c.integer("axis"), x.shape().rank()));
  else
    x = reshape(x, {x.shape().elements()});
  if (condition.dtype() != DType::boolean)
    c.fail("the condition must be bool; got {}", condition.type().str());
  // What is beyond x must be false: gather refuses an index that lies outside.
  c.out(gather(x, true_places(c, condition), axis));
}

// -- Unique
// ---------------------------------------------------------------------------------------

/// What Unique gives of N elements: where each distinct one comes first, which of them each element
/// is, and how often each comes. All i64.
struct Distinct {
  Value first, number, counts;
};

/// NaN differs from every number and, as in NumPy, not from another NaN.
Value differ(Value a, Value b) {
  if (!is_float(a.dtype())) return not_equal(a, b);
  return logical_and(not_equal(a, b), logical_not(logical_and(not_equal(a, a), not_equal(b, b))));
}

/// x: [N], N > 0. In the order of values, or in that in which they come.
Distinct distinct_elements(Call& c, Value x, bool in_order_of_values) {
  Graph& g = c.graph();
  const int64_t n = x.shape().size(0);
  if (x.dtype() == DType::boolean) x = cast(x, DType::i32);
  const Sorted sorted = sort(x, 0, false);
  // The group of each sorted element: one more wherever the value changes.
  Value group = full(g, {n}, 0, DType::i64);
  if (n > 1) {
    const Value changes =
        differ(slice(sorted.values, 0, 1, n - 1), slice(sorted.values, 0, 0, n - 1));
    group = concat(
        std::vector<Value>{full(g, {1}, 0, DType::i64), running_sum(cast(changes, DType::i64), 0)},
        0);
  }
  const int64_t count = known_count(c, [&] { return last_of(group); }) + 1;
  const auto put = [&](Value into, Value at, Value values, ScatterMode mode) {
    const Value y = scatter(reshape(into, {into.shape().size(0), 1}), at,
                            reshape(values, {values.shape().size(0), 1}), mode);
    return reshape(y, into.shape());
  };
  Distinct d;
  d.first = put(full(g, {count}, n, DType::i64), group, sorted.indices, ScatterMode::min);
  d.number = put(full(g, {n}, 0, DType::i64), sorted.indices, group, ScatterMode::set);
  d.counts =
      put(full(g, {count}, 0, DType::i64), group, full(g, {n}, 1, DType::i64), ScatterMode::add);
  if (in_order_of_values) return d;
  const Sorted by_place = sort(d.first, 0, false);
  const Value rank = put(full(g, {count}, 0, DType::i64), by_place.indices,
                         iota(g, {count}, 0, DType::i64), ScatterMode::set);
  return {by_place.values, gather(rank, d.number, 0), gather(d.counts, by_place.indices, 0)};
}

/// The same of the slices along an axis, which are compared element by element: their values must
/// be known.
Distinct distinct_slices(Call& c, int64_t axis, bool in_order_of_values) {
  const RefTensor& x = c.known(0);
  const AxisSplit around = split_at(x.type.shape, axis);
  const int64_t outer = around.outer, count = around.count, inner = around.inner;
  const auto element = [&](int64_t k, int64_t o, int64_t i) {
    return static_cast<size_t>((o * count + k) * inner + i);
  };
  const auto compare = [&](int64_t a, int64_t b) {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        const size_t p = element(a, o, i), q = element(b, o, i);
        // 64-bit integers are more than a double holds. NaN is the largest.
        const int order = x.visit([&](const auto& values) {
          const bool no_p = values[p] != values[p], no_q = values[q] != values[q];
          if (no_p || no_q) return no_p == no_q ? 0 : no_q ? -1 : 1;
          return values[p] == values[q] ? 0 : values[p] < values[q] ? -1 : 1;
        });
        if (order != 0) return order;
      }
    return 0;
  };
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
  std::vector<int64_t> first, number(static_cast<size_t>(count)), counts;
  for (size_t k = 0; k < order.size(); ++k) {
    if (k == 0 || compare(order[k - 1], order[k]) != 0) {
      first.push_back(order[k]);
      counts.push_back(0);
    }
    ++counts.back();
    number[static_cast<size_t>(order[k])] = std::ssize(first) - 1;
  }
  if (!in_order_of_values) {
    std::vector<int64_t> by_first(first.size()), place(first.size());
    std::iota(by_first.begin(), by_first.end(), 0);
    std::ranges::sort(by_first, {}, [&](int64_t k) { return first[static_cast<size_t>(k)]; });
    std::vector<int64_t> sorted_first, sorted_counts;
    for (size_t k = 0; k < by_first.size(); ++k) {
      const auto from = static_cast<size_t>(by_first[k]);
      place[from] = static_cast<int64_t>(k);
      sorted_first.push_back(first[from]);
      sorted_counts.push_back(counts[from]);
    }
    for (int64_t& n : number) n = place[static_cast<size_t>(n)];
    first = sorted_first;
    counts = sorted_counts;
  }
  return {c.vector(first), c.vector(number), c.vector(counts)};
}

void unique(Call& c) {
  const Value x = c.in(0);
  const bool has_axis = c.has_attribute("axis"), sorted = c.integer("sorted", 1) != 0;
  const int64_t axis = has_axis ? c.axis(c.integer("axis"), x.shape().rank()) : 0;
  const Value flat = has_axis ? x : reshape(x, {x.shape().elements()});
  const bool is_vector = flat.shape().rank() == 1 && flat.shape().elements() > 0;
  const Distinct d =
      is_vector ? distinct_elements(c, flat, sorted) : distinct_slices(c, axis, sorted);
  c.out(gather(flat, d.first, static_cast<int>(axis)));
  c.out(1, d.first);
  c.out(2, d.number);
  c.out(3, d.counts);
}

const OperatorRow kSelectionRows[] = {
    {"", "NonZero", non_zero},
    {"", "Compress", compress},
    {"", "Unique", unique},
};

}  // namespace

std::span<const OperatorRow> selection_operators() { return kSelectionRows; }

}  // namespace brrr::onnx
