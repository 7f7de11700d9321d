// sort, argmax and running sums: ops for which the order of an axis counts.

#include <algorithm>
#include <numeric>

#include "ops/support.h"

namespace brrr {
namespace {

/// Calls row(offset, stride, count) for every line of a tensor along an axis.
template <typename F>
void for_each_line(const Shape& x, int64_t axis, F row) {
  const auto [outer, count, inner] = split_at(x, axis);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) row(o * count * inner + i, inner, count);
}

void check_axis_of(const InferContext& c) {
  const int64_t axis = c.attr<int64_t>("axis");
  if (axis < 0 || axis >= c.in[0].shape.rank())
    c.fail("axis must be in [0, {}); got {}", c.in[0].shape.rank(), axis);
}

/// NaN stands behind every number in ascending order, as in NumPy.
template <typename T>
bool is_before(T a, T b, bool descending) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(a) || std::isnan(b))
      return descending ? std::isnan(a) && !std::isnan(b) : std::isnan(b) && !std::isnan(a);
  }
  return descending ? b < a : a < b;
}

OpDef sort_op() {
  OpDef d;
  d.name = "sort";
  d.doc =
      "values = the first {count} of x in ascending order along {axis}, or in descending order if "
      "{descending}; equal ones keep their order, NaN counts as the largest. indices: where they "
      "stood, i64. x: [...]; values, indices: [...] with {count} along the axis";
  d.op_class = OpClass::movement;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    check_axis_of(c);
    c.attr<bool>("descending");
    Shape y = c.in[0].shape;
    Dim& size = y[static_cast<int>(c.attr<int64_t>("axis"))];
    const int64_t count = c.attr<int64_t>("count");
    if (count < 0 || (!size.is_symbol() && count > size.size()))
      c.fail("count must be from 0 to the {} elements along the axis; got {}", size.str(), count);
    size = Dim(count);
    return std::vector<Type>{{c.in[0].dtype, y}, {DType::i64, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const bool descending = c.node.attrs.get<bool>("descending");
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& x = c.in[0]->of<T>();
      const int64_t wanted = c.node.attrs.get<int64_t>("count");
      size_t line = 0;
      for_each_line(c.in[0]->type.shape, c.node.attrs.get<int64_t>("axis"),
                    [&](int64_t at, int64_t stride, int64_t count) {
                      std::vector<int64_t> order(static_cast<size_t>(count));
                      std::iota(order.begin(), order.end(), 0);
                      const auto element = [&](int64_t k) {
                        return x[static_cast<size_t>(at + k * stride)];
                      };
                      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
                        return is_before(element(a), element(b), descending);
                      });
                      const auto first =
                          static_cast<int64_t>(line++) / stride * wanted * stride + at % stride;
                      for (int64_t k = 0; k < wanted; ++k) {
                        const auto to = static_cast<size_t>(first + k * stride);
                        y[to] = element(order[static_cast<size_t>(k)]);
                        c.out[1].signed_data[to] = order[static_cast<size_t>(k)];
                      }
                    });
    });
  };
  d.no_gradient = "its order is not differentiated";
  d.cost = [](const Node& n, std::span<const Type> in) {
    const auto count = static_cast<double>(in[0].shape.elements());
    return ops::streaming_cost(n, in, count * std::log2(count + 1));
  };
  d.samples = [] {
    auto make = [](Shape x, int64_t axis, bool descending, int64_t count,
                   DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(x), -9, 9, dtype)},
                    {{"axis", axis}, {"descending", descending}, {"count", count}}};
    };
    return std::vector<Sample>{make({3, 7}, 1, false, 7), make({5, 2, 3}, 0, true, 5),
                               make({9}, 0, true, 9, DType::i64),
                               make({4, 6}, 1, false, 2, DType::i32), make({2, 40, 3}, 1, true, 4)};
  };
  return d;
}

OpDef argmax_op() {
  OpDef d;
  d.name = "argmax";
  d.doc =
      "y = where the largest x stands along {axis}, or the smallest if {smallest}; of equal ones "
      "the "
      "first, or the last if {last}. The axis is left out. NaN counts as the largest and as the "
      "smallest. x: [...]; y: [...] i64";
  d.op_class = OpClass::normalisation;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    check_axis_of(c);
    c.attr<bool>("smallest");
    c.attr<bool>("last");
    const auto axis = static_cast<int>(c.attr<int64_t>("axis"));
    Shape y = c.in[0].shape;
    if (!y[axis].is_symbol() && y.size(axis) == 0) c.fail("axis {} of x has no element", axis);
    y.erase(axis);
    return std::vector<Type>{{DType::i64, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const bool smallest = c.node.attrs.get<bool>("smallest"), last = c.node.attrs.get<bool>("last");
    c.in[0]->visit([&](const auto& x) {
      size_t out = 0;
      for_each_line(c.in[0]->type.shape, c.node.attrs.get<int64_t>("axis"),
                    [&](int64_t at, int64_t stride, int64_t count) {
                      int64_t best = 0;
                      const auto element = [&](int64_t k) {
                        return x[static_cast<size_t>(at + k * stride)];
                      };
                      const auto beats = [&](int64_t a, int64_t b) {  // a wins over b
                        if constexpr (std::is_same_v<std::decay_t<decltype(x[0])>, double>) {
                          if (std::isnan(element(b))) return false;
                          if (std::isnan(element(a))) return true;
                        }
                        return smallest ? element(a) < element(b) : element(a) > element(b);
                      };
                      for (int64_t k = 1; k < count; ++k)
                        if (beats(k, best) || (last && !beats(best, k))) best = k;
                      c.out[0].signed_data[out++] = best;
                    });
    });
  };
  d.no_gradient = "its result is an index";
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[0]));
  };
  d.samples = [] {
    auto make = [](Shape x, int64_t axis, bool smallest, bool last, DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(x), -9, 9, dtype)},
                    {{"axis", axis}, {"smallest", smallest}, {"last", last}}};
    };
    return std::vector<Sample>{make({3, 37}, 1, false, false), make({5, 2, 3}, 0, true, false),
                               make({9}, 0, false, true, DType::i32),
                               make({4, 6}, 0, true, true, DType::i64)};
  };
  return d;
}

OpDef running_op(const char* name, bool multiplies) {
  OpDef d;
  d.name = name;
  d.doc = fmt::format(
      "y[k] = the {} of x[0] to x[k] along {{axis}}; without x[k] itself if {{exclusive}}; from "
      "the "
      "end if {{reverse}}. x, y: [...]; accumulates in f32 or wider, integers wrap around",
      multiplies ? "product" : "sum");
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    if (c.in[0].dtype == DType::boolean) c.fail("x must be a number; got {}", c.in[0].str());
    check_axis_of(c);
    c.attr<bool>("exclusive");
    c.attr<bool>("reverse");
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [multiplies](const EvalContext& c) {
    const bool exclusive = c.node.attrs.get<bool>("exclusive"),
               reverse = c.node.attrs.get<bool>("reverse");
    const RefTensor& x = *c.in[0];
    RefTensor& y = c.out[0];
    const auto run = [&]<typename T>(T first, auto read, auto write) {
      for_each_line(x.type.shape, c.node.attrs.get<int64_t>("axis"),
                    [&](int64_t at, int64_t stride, int64_t count) {
                      T total = first;
                      for (int64_t k = 0; k < count; ++k) {
                        const auto i =
                            static_cast<size_t>(at + (reverse ? count - 1 - k : k) * stride);
                        if (exclusive) write(i, total);
                        total = multiplies ? total * read(i) : total + read(i);
                        if (!exclusive) write(i, total);
                      }
                    });
    };
    if (is_integer(x.type.dtype))
      run(
          uint64_t{multiplies ? 1u : 0u}, [&](size_t i) { return x.bits(i); },
          [&](size_t i, uint64_t bits) { y.set_bits(i, bits); });
    else
      run(
          multiplies ? 1.0 : 0.0, [&](size_t i) { return x.data[i]; },
          [&](size_t i, double value) { y.data[i] = value; });
  };
  if (multiplies) {
    d.no_gradient = "products of many factors have no stable derivative";
  } else {
    // The sum of what comes behind.
    d.vjp = [](VjpContext& c) {
      const Attrs& attrs = c.attrs();
      c.set(0, running_sum(c.grad(0), static_cast<int>(attrs.get<int64_t>("axis")),
                           attrs.get<bool>("exclusive"), !attrs.get<bool>("reverse")));
    };
  }
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[0]));
  };
  d.samples = [multiplies] {
    // Factors of which long products neither vanish nor grow.
    auto make = [=](Shape x, int64_t axis, bool exclusive, bool reverse, DType dtype = DType::f32) {
      const double low = multiplies ? (is_float(dtype) ? 0.9 : 1) : -4,
                   high = multiplies ? (is_float(dtype) ? 1.1 : 3) : 4;
      return Sample{{ops::tensor(std::move(x), low, high, dtype)},
                    {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}}};
    };
    return std::vector<Sample>{make({3, 7}, 1, false, false), make({50, 2, 3}, 0, true, false),
                               make({9}, 0, false, true, DType::i32),
                               make({4, 60}, 1, true, true, DType::i64)};
  };
  return d;
}

}  // namespace

Sorted sort(Value x, int axis, bool descending, std::optional<int64_t> count) {
  const int64_t at = ops::normal_axis(axis, x.shape().rank());
  const auto out = call(Op::sort, std::span(&x, 1),
                        {{"axis", at},
                         {"descending", descending},
                         {"count", count ? *count : x.shape().size(static_cast<int>(at))}});
  return {out[0], out[1]};
}

Value argmax(Value x, int axis, bool smallest, bool last) {
  return call1(
      Op::argmax, {x},
      {{"axis", ops::normal_axis(axis, x.shape().rank())}, {"smallest", smallest}, {"last", last}});
}

Value running_sum(Value x, int axis, bool exclusive, bool reverse) {
  return call1(Op::cumsum, {x},
               {{"axis", ops::normal_axis(axis, x.shape().rank())},
                {"exclusive", exclusive},
                {"reverse", reverse}});
}

Value running_product(Value x, int axis, bool exclusive, bool reverse) {
  return call1(Op::cumprod, {x},
               {{"axis", ops::normal_axis(axis, x.shape().rank())},
                {"exclusive", exclusive},
                {"reverse", reverse}});
}

namespace ops {

std::vector<OpDef> sorting_ops() {
  return {sort_op(), argmax_op(), running_op("cumsum", false), running_op("cumprod", true)};
}

}  // namespace ops
}  // namespace brrr
