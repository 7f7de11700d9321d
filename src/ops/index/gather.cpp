// gather, gather_elements and scatter: parts of a tensor by index, of any dtype.

#include "ops/support.h"

namespace brrr {
namespace {

/// Index i of the operand; those below 0 count from the end.
int64_t index_at(const char* op, const RefTensor& ids, int64_t i, int64_t count) {
  const auto id = ids.integer<int64_t>(static_cast<size_t>(i));
  if (id < -count || id >= count)
    user_error("[{}] index {} lies outside an axis of {}", op, id, count);
  return id < 0 ? id + count : id;
}

/// Checks the operands x and ids and returns {axis}.
int64_t gathered_axis(const InferContext& c) {
  ops::expect_operands(c, 2);
  ops::expect_integer(c, 1, "ids");
  const int64_t axis = c.attr<int64_t>("axis"), rank = c.in[0].shape.rank();
  if (axis < 0 || axis >= rank) c.fail("axis must be in [0, {}); got {}", rank, axis);
  return axis;
}

/// Only the gathered part of x is read.
Cost gather_cost(const Node& n, std::span<const Type> in) {
  const double bytes = static_cast<double>(n.results[0].bytes());
  return {0, bytes + static_cast<double>(in[1].bytes()), bytes};
}

Sample gather_sample(Shape x, Shape ids, int64_t axis, DType dtype = DType::f32,
                     DType index = DType::i64) {
  const auto n = static_cast<double>(x.size(static_cast<int>(axis)));
  return {{ops::tensor(std::move(x), -9, 9, dtype), ops::tensor(std::move(ids), -n, n, index)},
          {{"axis", axis}}};
}

OpDef gather_op() {
  OpDef d;
  d.name = "gather";
  d.doc =
      "y = x with {axis} replaced by the axes of ids: y[o..., i..., r...] = x[o..., ids[i...], "
      "r...]. x: [O..., N, R...] of any dtype; ids: [I...] i32 or i64 in [-N, N), below 0 from the "
      "end; y: [O..., I..., R...]";
  d.op_class = OpClass::movement;
  d.infer = [](const InferContext& c) {
    const int64_t axis = gathered_axis(c);
    const Shape &x = c.in[0].shape, &ids = c.in[1].shape;
    Shape y;
    for (int a = 0; a < axis; ++a) y.push_back(x[a]);
    for (const Dim& dim : ids.dims()) y.push_back(dim);
    for (int a = static_cast<int>(axis) + 1; a < x.rank(); ++a) y.push_back(x[a]);
    return std::vector<Type>{{c.in[0].dtype, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const AxisSplit x = split_at(c.in[0]->type.shape, c.node.attrs.get<int64_t>("axis"));
    const RefTensor& ids = *c.in[1];
    const auto n = static_cast<int64_t>(ids.size());
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& from = c.in[0]->of<T>();
      for (int64_t i = 0; i < n; ++i) {
        const int64_t id = index_at("gather", ids, i, x.count);
        for (int64_t o = 0; o < x.outer; ++o)
          std::copy_n(from.begin() + (o * x.count + id) * x.inner, x.inner,
                      y.begin() + (o * n + i) * x.inner);
      }
    });
  };
  d.vjp = [](VjpContext& c) {
    if (!c.wants(0)) return;
    // The gradient is added into zeros, the axis first.
    const Value x = c.operand(0), ids = c.operand(1), dy = c.grad(0);
    const int64_t axis = c.attrs().get<int64_t>("axis");
    const AxisSplit around = split_at(x.shape(), axis);
    const int64_t n = ids.shape().elements();
    const Value rows = reshape(transpose(reshape(dy, {around.outer, n, around.inner}), {1, 0, 2}),
                               {n, around.outer * around.inner});
    const Value zeros = full(c.graph, {around.count, around.outer * around.inner}, 0, x.dtype());
    const Value sums = scatter(zeros, reshape(ids, {n}), rows, ScatterMode::add);
    c.set(0,
          reshape(transpose(reshape(sums, {around.count, around.outer, around.inner}), {1, 0, 2}),
                  x.shape()));
  };
  d.cost = gather_cost;
  d.samples = [] {
    // Every part is read, most of them more than once.
    return std::vector<Sample>{gather_sample({11, 5}, {40}, 0),
                               gather_sample({2, 7, 3}, {3, 9}, 1),
                               gather_sample({3, 9}, {31}, 1, DType::f32, DType::i32),
                               gather_sample({6, 2}, {}, 0),
                               gather_sample({4, 5}, {12}, 0, DType::i64),
                               gather_sample({4, 5}, {17}, 1, DType::u8)};
  };
  return d;
}

OpDef gather_elements_op() {
  OpDef d;
  d.name = "gather_elements";
  d.doc =
      "y[o..., i, r...] = x[o..., ids[o..., i, r...], r...], i along {axis}. x: [O..., N, R...] of "
      "any dtype; ids: of the rank of x, at most as large beside the axis, i32 or i64 in [-N, N), "
      "below 0 from the end; y: of the shape of ids";
  d.op_class = OpClass::movement;
  d.infer = [](const InferContext& c) {
    const int64_t axis = gathered_axis(c);
    const Shape &x = c.in[0].shape, &ids = c.in[1].shape;
    bool fits = ids.rank() == x.rank();
    for (int a = 0; fits && a < x.rank(); ++a)
      fits = a == axis || ids[a] == x[a] ||
             (!ids[a].is_symbol() && !x[a].is_symbol() && ids.size(a) <= x.size(a));
    if (!fits)
      c.fail("ids {} must have the rank of {}, and at most its sizes beside axis {}", ids.str(),
             x.str(), axis);
    return std::vector<Type>{{c.in[0].dtype, ids}};
  };
  d.decompose = [](const DecomposeContext& c) {
    const Value x = c.in[0];
    const auto axis = static_cast<int>(c.node.attrs.get<int64_t>("axis"));
    const Value flat = element_index(x.shape(), c.in[1], axis);
    return std::vector<Value>{gather(reshape(x, {x.shape().elements()}), flat, 0)};
  };
  d.cost = gather_cost;
  d.samples = [] {
    return std::vector<Sample>{gather_sample({6, 5}, {6, 31}, 1),
                               gather_sample({7, 9}, {50, 9}, 0, DType::f32, DType::i32),
                               gather_sample({3, 7, 5}, {2, 20, 4}, 1),
                               gather_sample({11}, {40}, 0, DType::i64),
                               gather_sample({4, 3, 6}, {3, 9, 5}, 1, DType::u8)};
  };
  return d;
}

constexpr const char* kModes[] = {"set", "add", "mul", "max", "min"};

template <typename T>
T combined(const std::string& mode, T a, T b) {
  const auto wraps = [](auto x) {
    if constexpr (std::is_same_v<T, double>)
      return x;
    else
      return static_cast<uint64_t>(x);
  };
  if (mode == "add") return static_cast<T>(wraps(a) + wraps(b));
  if (mode == "mul") return static_cast<T>(wraps(a) * wraps(b));
  if (mode == "max") return std::max(a, b);
  if (mode == "min") return std::min(a, b);
  return b;
}

OpDef scatter_op() {
  OpDef d;
  d.name = "scatter";
  d.doc =
      "y is x, where row ids[i] takes row i of updates as {mode} says: set, add, mul, max or min; "
      "rows that are named more than once take one update after the other. x, y: [N, C]; ids: [M] "
      "i32 or i64 in [-N, N), below 0 from the end; updates: [M, C]. Sums are in f32 or wider";
  d.op_class = OpClass::movement;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 3);
    ops::expect_same_dtype(c, 0, 2);
    ops::expect_integer(c, 1, "ids");
    const auto& mode = c.attr<std::string>("mode");
    if (std::ranges::find(kModes, mode) == std::end(kModes))
      c.fail("mode must be set, add, mul, max or min; got '{}'", mode);
    const Shape &x = c.in[0].shape, &ids = c.in[1].shape, &updates = c.in[2].shape;
    if (x.rank() != 2 || ids.rank() != 1 || updates.rank() != 2 || updates[0] != ids[0] ||
        updates[1] != x[1])
      c.fail("expected x [N, C], ids [M], updates [M, C]; got {}, {}, {}", c.in[0].str(),
             c.in[1].str(), c.in[2].str());
    if (c.in[0].dtype == DType::boolean && mode != "set") c.fail("booleans can only be set");
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [](const EvalContext& c) {
    const auto& mode = c.node.attrs.get<std::string>("mode");
    const int64_t rows = c.in[0]->type.shape.size(0), width = c.in[0]->type.shape.size(1);
    c.out[0].copy_elements(*c.in[0]);
    const DType dtype = c.out[0].type.dtype;
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& updates = c.in[2]->of<T>();
      for (int64_t i = 0; i < c.in[1]->type.shape.elements(); ++i) {
        const int64_t row = index_at("scatter", *c.in[1], i, rows);
        for (int64_t k = 0; k < width; ++k) {
          const auto at = static_cast<size_t>(row * width + k);
          y[at] = combined(mode, y[at], updates[static_cast<size_t>(i * width + k)]);
          // Integers of fewer bits than a double holds wrap around.
          if (is_integer(dtype) && std::is_same_v<T, double>)
            c.out[0].set_bits(at, static_cast<uint64_t>(static_cast<int64_t>(y[at])));
        }
      }
    });
  };
  d.vjp = [](VjpContext& c) {
    if (c.attrs().get<std::string>("mode") != "add")
      user_error("[scatter] only sums have a derivative");
    if (c.wants(0)) c.set(0, c.grad(0));
    if (c.wants(2)) c.set(2, gather(c.grad(0), c.operand(1), 0));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[2]));
  };
  d.samples = [] {
    auto make = [](int64_t n, int64_t m, int64_t width, const char* mode,
                   DType dtype = DType::f32) {
      const auto count = static_cast<double>(n);
      return Sample{
          {ops::tensor({n, width}, -9, 9, dtype), ops::tensor({m}, -count, count, DType::i64),
           ops::tensor({m, width}, -9, 9, dtype)},
          {{"mode", std::string(mode)}}};
    };
    return std::vector<Sample>{make(7, 5, 3, "add"), make(4, 9, 1, "add"),
                               make(4, 9, 2, "add", DType::i64)};
  };
  d.in_place = {{0, 0}};
  return d;
}

}  // namespace

Value gather(Value x, Value ids, int axis) {
  return call1(Op::gather, {x, ids}, {{"axis", ops::normal_axis(axis, x.shape().rank())}});
}

Value gather_elements(Value x, Value ids, int axis) {
  return call1(Op::gather_elements, {x, ids}, {{"axis", ops::normal_axis(axis, x.shape().rank())}});
}

Value element_index(const Shape& x, Value ids, int axis) {
  Graph& g = *ids.graph;
  const auto number = [&](int64_t n) { return full(g, {}, n, DType::i64); };
  constexpr int64_t kNowhere = int64_t{1} << 60;
  ids = cast(ids, DType::i64);
  const Value size = number(x.size(axis));
  const Value wrapped = where(less(ids, number(0)), ids + size, ids);
  const Value is_inside = logical_and(less_equal(number(0), wrapped), less(wrapped, size));
  const std::vector<int64_t> strides = x.strides();
  Value flat = wrapped * number(strides[static_cast<size_t>(axis)]);
  for (int a = 0; a < x.rank(); ++a)
    if (a != axis)
      flat = flat + iota(g, ids.shape(), a, DType::i64) * number(strides[static_cast<size_t>(a)]);
  return where(is_inside, flat, number(kNowhere));
}

Value scatter(Value x, Value ids, Value updates, ScatterMode mode) {
  return call1(Op::scatter, {x, ids, updates},
               {{"mode", std::string(kModes[static_cast<size_t>(mode)])}});
}

namespace ops {

std::vector<OpDef> gather_ops() { return {gather_op(), gather_elements_op(), scatter_op()}; }

}  // namespace ops
}  // namespace brrr
