// Ops that move elements without arithmetic.

#include <algorithm>

#include "ops/quantized/int8_rows.h"
#include "ops/support.h"

namespace brrr {
namespace {

// [outer, axis, inner] around an axis.
// Copies rows of an axis: y[:, to + i, :] = x[:, from + i, :] for i < count.
void copy_axis(const RefTensor& x, int64_t from, RefTensor& y, int64_t to, int64_t count,
               int64_t axis) {
  const AxisSplit sx = split_at(x.type.shape, axis), sy = split_at(y.type.shape, axis);
  y.visit([&]<typename T>(std::vector<T>& elements) {
    for (int64_t o = 0; o < sx.outer; ++o)
      std::copy_n(x.of<T>().begin() + (o * sx.count + from) * sx.inner, count * sx.inner,
                  elements.begin() + (o * sy.count + to) * sy.inner);
  });
}

// y[index] = the element of x at from(index).
template <typename From>
void gather(const RefTensor& x, RefTensor& y, From&& from) {
  y.visit([&]<typename T>(std::vector<T>& elements) {
    const std::vector<T>& source = x.of<T>();
    ops::for_each_index(y.type.shape, [&](int64_t i, const std::vector<int64_t>& index) {
      elements[static_cast<size_t>(i)] = source[static_cast<size_t>(from(index))];
    });
  });
}

void check_axis(const InferContext& c, int64_t axis, const Shape& x) {
  if (axis < 0 || axis >= x.rank()) c.fail("axis must be in [0, {}); got {}", x.rank(), axis);
}

OpDef movement(const char* name, const char* doc) {
  OpDef d;
  d.name = name;
  d.doc = doc;
  d.op_class = OpClass::movement;
  d.cost = [](const Node& n, std::span<const Type>) {
    const double bytes = static_cast<double>(n.results[0].bytes());
    return Cost{0, bytes, bytes};
  };
  return d;
}

OpDef reshape_op() {
  OpDef d =
      movement("reshape", "y has the elements of x in row-major order as {shape}. Costs nothing");
  d.derives_weights = true;
  d.view = [](const Node&, std::span<const Type>) { return std::optional<int64_t>(0); };
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const Shape& shape = c.attr<Shape>("shape");
    const Shape& x = c.in[0].shape;
    auto symbols = [](const Shape& s) {
      std::vector<std::string> names;
      for (const Dim& dim : s.dims())
        if (dim.is_symbol()) names.push_back(dim.name());
      std::sort(names.begin(), names.end());
      return names;
    };
    auto product = [](const Shape& s) {
      Shape known;
      for (const Dim& dim : s.dims())
        if (!dim.is_symbol()) known.push_back(dim);
      return known.elements();
    };
    if (symbols(shape) != symbols(x) || product(shape) != product(x))
      c.fail("x has the elements of {}, not of {}", x.str(), shape.str());
    return std::vector<Type>{{c.in[0].dtype, shape}};
  };
  d.evaluate = [](const EvalContext& c) { c.out[0].copy_elements(*c.in[0]); };
  d.vjp = [](VjpContext& c) { c.set(0, reshape(c.grad(0), c.operand(0).shape())); };
  d.cost = [](const Node&, std::span<const Type>) { return Cost{}; };
  d.samples = [] {
    return std::vector<Sample>{{{ops::tensor({6, 4})}, {{"shape", Shape{2, 3, 4}}}},
                               {{ops::tensor({1, 1})}, {{"shape", Shape{}}}},
                               {{ops::tensor({4}, -9, 9, DType::i64)}, {{"shape", Shape{2, 2}}}}};
  };
  return d;
}

OpDef transpose_op() {
  OpDef d = movement("transpose", "Axis i of y is axis permutation[i] of x");
  d.derives_weights = true;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const auto& p = c.attr<std::vector<int64_t>>("permutation");
    const Shape& x = c.in[0].shape;
    std::vector<int64_t> sorted = p;
    std::sort(sorted.begin(), sorted.end());
    bool good = static_cast<int>(p.size()) == x.rank();
    for (size_t i = 0; good && i < sorted.size(); ++i) good = sorted[i] == static_cast<int64_t>(i);
    if (!good) c.fail("permutation must hold each axis of x {} once", x.str());
    Shape y;
    for (int64_t axis : p) y.push_back(x[static_cast<int>(axis)]);
    return std::vector<Type>{{c.in[0].dtype, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const auto& p = c.node.attrs.get<std::vector<int64_t>>("permutation");
    const auto strides = c.in[0]->type.shape.strides();
    gather(*c.in[0], c.out[0], [&](const std::vector<int64_t>& index) {
      int64_t from = 0;
      for (size_t axis = 0; axis < p.size(); ++axis)
        from += index[axis] * strides[static_cast<size_t>(p[axis])];
      return from;
    });
  };
  d.vjp = [](VjpContext& c) {
    const auto& p = c.attrs().get<std::vector<int64_t>>("permutation");
    std::vector<int64_t> inverse(p.size());
    for (size_t i = 0; i < p.size(); ++i)
      inverse[static_cast<size_t>(p[i])] = static_cast<int64_t>(i);
    c.set(0, transpose(c.grad(0), inverse));
  };
  d.samples = [] {
    auto make = [](Shape s, std::vector<int64_t> p, DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(s), -9, 9, dtype)}, {{"permutation", std::move(p)}}};
    };
    return std::vector<Sample>{make({3, 5}, {1, 0}),
                               make({2, 3, 4, 5}, {0, 2, 1, 3}),
                               make({2, 3, 4}, {2, 0, 1}),
                               make({33, 65}, {1, 0}),
                               make({2, 3, 4, 5}, {0, 1, 3, 2}),
                               make({4}, {0}),
                               make({3, 5}, {1, 0}, DType::i64),
                               make({3, 2}, {1, 0}, DType::u64)};
  };
  return d;
}

OpDef slice_op() {
  OpDef d =
      movement("slice",
               "y = x[..., start : start + size, ...] along {axis}. Costs nothing when all earlier "
               "axes have one element");
  d.part = OpDef::Part::range;
  d.derives_weights = true;
  d.view = [](const Node& node, std::span<const Type> in) -> std::optional<int64_t> {
    const int64_t axis = node.attrs.get<int64_t>("axis");
    const AxisSplit s = split_at(in[0].shape, axis);
    if (s.outer != 1) return std::nullopt;
    return node.attrs.get<int64_t>("start") * s.inner * static_cast<int64_t>(bytes_of(in[0].dtype));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    if (split_at(in[0].shape, n.attrs.get<int64_t>("axis")).outer == 1) return Cost{};
    const double bytes = static_cast<double>(n.results[0].bytes());
    return Cost{0, bytes, bytes};
  };
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const int64_t axis = c.attr<int64_t>("axis"), start = c.attr<int64_t>("start"),
                  size = c.attr<int64_t>("size");
    check_axis(c, axis, c.in[0].shape);
    Shape y = c.in[0].shape;
    Dim& dim = y[static_cast<int>(axis)];
    // Where the axis is open, its size is checked when it is bound.
    const int64_t most = dim.is_symbol() ? INT64_MAX : dim.size();
    if (start < 0 || size < 0 || start > most || size > most - start)
      c.fail("[{}, {} + {}) lies outside axis {} of x {}", start, start, size, axis, y.str());
    dim = Dim(size);
    return std::vector<Type>{{c.in[0].dtype, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    copy_axis(*c.in[0], c.node.attrs.get<int64_t>("start"), c.out[0], 0,
              c.node.attrs.get<int64_t>("size"), c.node.attrs.get<int64_t>("axis"));
  };
  d.vjp = [](VjpContext& c) {
    const int64_t axis = c.attrs().get<int64_t>("axis"), start = c.attrs().get<int64_t>("start"),
                  size = c.attrs().get<int64_t>("size");
    const int64_t total = c.operand(0).shape().size(static_cast<int>(axis));
    c.set(0, pad(c.grad(0), static_cast<int>(axis), start, total - start - size));
  };
  d.samples = [] {
    auto make = [](Shape s, int64_t axis, int64_t start, int64_t size, DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(s), -9, 9, dtype)},
                    {{"axis", axis}, {"start", start}, {"size", size}}};
    };
    return std::vector<Sample>{make({3, 37}, 1, 5, 11), make({3, 37}, 0, 1, 2),
                               make({2, 6, 5}, 1, 3, 3), make({8}, 0, 0, 8),
                               make({3, 7}, 1, 2, 3, DType::i64)};
  };
  return d;
}

OpDef pad_op() {
  OpDef d = movement("pad", "y is x with {before} and {after} zeros along {axis}");
  d.derives_weights = true;
  // Reads less than it writes.
  d.cost = [](const Node& n, std::span<const Type> in) { return ops::streaming_cost(n, in, 0); };
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const int64_t axis = c.attr<int64_t>("axis"), before = c.attr<int64_t>("before"),
                  after = c.attr<int64_t>("after");
    check_axis(c, axis, c.in[0].shape);
    if (before < 0 || after < 0) c.fail("before and after must not be negative");
    Shape y = c.in[0].shape;
    Dim& dim = y[static_cast<int>(axis)];
    if (dim.is_symbol()) c.fail("axis {} of x {} is symbolic", axis, y.str());
    int64_t total = dim.size();
    for (int64_t more : {before, after})
      if (__builtin_add_overflow(total, more, &total)) c.fail("the padded axis is too long");
    dim = Dim(total);
    return std::vector<Type>{{c.in[0].dtype, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    c.out[0] = RefTensor(c.out[0].type);
    const int64_t axis = c.node.attrs.get<int64_t>("axis");
    copy_axis(*c.in[0], 0, c.out[0], c.node.attrs.get<int64_t>("before"),
              c.in[0]->type.shape.size(static_cast<int>(axis)), axis);
  };
  d.vjp = [](VjpContext& c) {
    const int64_t axis = c.attrs().get<int64_t>("axis");
    c.set(0, slice(c.grad(0), static_cast<int>(axis), c.attrs().get<int64_t>("before"),
                   c.operand(0).shape().size(static_cast<int>(axis))));
  };
  d.samples = [] {
    auto make = [](Shape s, int64_t axis, int64_t before, int64_t after, DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(s), -9, 9, dtype)},
                    {{"axis", axis}, {"before", before}, {"after", after}}};
    };
    return std::vector<Sample>{make({3, 7}, 1, 2, 3), make({3, 7}, 0, 0, 4),
                               make({2, 6, 5}, 1, 3, 0), make({3, 2}, 0, 1, 2, DType::i64)};
  };
  return d;
}

OpDef concat_op() {
  OpDef d = movement("concat", "y = the operands side by side along {axis}");
  d.derives_weights = true;
  d.infer = [](const InferContext& c) {
    if (c.in.empty()) c.fail("needs an operand");
    const int64_t axis = c.attr<int64_t>("axis");
    check_axis(c, axis, c.in[0].shape);
    Shape y = c.in[0].shape;
    int64_t total = 0;
    for (size_t i = 0; i < c.in.size(); ++i) {
      ops::expect_same_dtype(c, 0, i);
      Shape same = c.in[i].shape;
      if (same.rank() == y.rank()) {
        if (same[static_cast<int>(axis)].is_symbol()) c.fail("axis {} is symbolic", axis);
        if (__builtin_add_overflow(total, same.size(static_cast<int>(axis)), &total))
          c.fail("the joined axis is too long");
        same[static_cast<int>(axis)] = y[static_cast<int>(axis)];
      }
      if (!(same == y))
        c.fail("operands must agree outside axis {}; got {} and {}", axis, c.in[0].str(),
               c.in[i].str());
    }
    y[static_cast<int>(axis)] = Dim(total);
    return std::vector<Type>{{c.in[0].dtype, y}};
  };
  d.evaluate = [](const EvalContext& c) {
    const int64_t axis = c.node.attrs.get<int64_t>("axis");
    int64_t at = 0;
    for (const RefTensor* x : c.in) {
      const int64_t count = x->type.shape.size(static_cast<int>(axis));
      copy_axis(*x, 0, c.out[0], at, count, axis);
      at += count;
    }
  };
  d.vjp = [](VjpContext& c) {
    const int64_t axis = c.attrs().get<int64_t>("axis");
    int64_t at = 0;
    for (size_t i = 0; i < c.node().operands.size(); ++i) {
      const int64_t count = c.operand(i).shape().size(static_cast<int>(axis));
      if (c.wants(i)) c.set(i, slice(c.grad(0), static_cast<int>(axis), at, count));
      at += count;
    }
  };
  d.samples = [] {
    return std::vector<Sample>{
        {{ops::tensor({3, 4}), ops::tensor({3, 7}), ops::tensor({3, 1})}, {{"axis", int64_t{1}}}},
        {{ops::tensor({3, 4}), ops::tensor({2, 4})}, {{"axis", int64_t{0}}}},
        {{ops::tensor({2, 3, 5}), ops::tensor({2, 2, 5})}, {{"axis", int64_t{1}}}},
        {{ops::tensor({3}, -9, 9, DType::i64), ops::tensor({2}, -9, 9, DType::i64)},
         {{"axis", int64_t{0}}}}};
  };
  return d;
}

OpDef broadcast_to_op() {
  OpDef d = movement("broadcast_to", "y = x repeated to {shape} as NumPy broadcasts");
  // Reads less than it writes.
  d.cost = [](const Node& n, std::span<const Type> in) { return ops::streaming_cost(n, in, 0); };
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const Shape& shape = c.attr<Shape>("shape");
    if (!(ops::broadcast(c, c.in[0].shape, shape) == shape))
      c.fail("x {} does not broadcast to {}", c.in[0].str(), shape.str());
    return std::vector<Type>{{c.in[0].dtype, shape}};
  };
  d.evaluate = [](const EvalContext& c) {
    gather(*c.in[0], c.out[0], [&](const std::vector<int64_t>& index) {
      return ops::broadcast_index(c.in[0]->type.shape, index);
    });
  };
  d.vjp = [](VjpContext& c) { c.set(0, sum_to(c.grad(0), c.operand(0).shape())); };
  d.samples = [] {
    auto make = [](Shape from, Shape to, DType dtype = DType::f32) {
      return Sample{{ops::tensor(std::move(from), -9, 9, dtype)}, {{"shape", std::move(to)}}};
    };
    return std::vector<Sample>{make({}, {3, 5}), make({7}, {4, 7}), make({4, 1}, {2, 4, 6}),
                               make({3, 5}, {3, 5}), make({2, 1}, {2, 3}, DType::i64)};
  };
  return d;
}

/// Fails unless x and its replacement have the same storage: plain rows, or int8 rows, where a row
/// is replaced together with its scales.
void check_rows_of_integers(const InferContext& c, const Type& x, const Type& part) {
  if (x.storage != part.storage)
    c.fail("x and its new part must lie alike; got {} and {}", x.str(), part.str());
  if (!x.storage.is_plain() && !ops::is_int8_rows(x)) c.fail("x must lie in rows; got {}", x.str());
}

OpDef update_slice_op() {
  OpDef d = movement(
      "update_slice",
      "y = x with y[..., position : position + n, ...] = part along {axis}; the position "
      "is clamped so that the part fits. x, y: [..., N, ...]; part: [..., n, ...]; "
      "position: [] i32. x and part may both lie in int8 rows, with {axis} before the last");
  d.no_gradient = "it writes the KV cache of inference";
  d.stored_operands = 0b011;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 3);
    ops::expect_same_dtype(c, 0, 1);
    const int64_t axis = c.attr<int64_t>("axis");
    check_axis(c, axis, c.in[0].shape);
    check_rows_of_integers(c, c.in[0], c.in[1]);
    if (!c.in[0].storage.is_plain() && axis == c.in[0].shape.rank() - 1)
      c.fail("the axis {} of {} holds groups of integers", axis, c.in[0].str());
    if (c.in[2] != Type{DType::i32, {}}) c.fail("position must be i32[]; got {}", c.in[2].str());
    Shape part = c.in[1].shape;
    bool fits = part.rank() == c.in[0].shape.rank();
    if (fits) {
      Dim& n = part[static_cast<int>(axis)];
      const Dim& whole = c.in[0].shape[static_cast<int>(axis)];
      fits = n.is_symbol() || whole.is_symbol() || n.size() <= whole.size();
      n = whole;
      fits = fits && part == c.in[0].shape;
    }
    if (!fits)
      c.fail("part {} does not fit in x {} along axis {}", c.in[1].str(), c.in[0].str(), axis);
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [](const EvalContext& c) {
    const int64_t axis = c.node.attrs.get<int64_t>("axis");
    const int64_t count = c.in[1]->type.shape.size(static_cast<int>(axis));
    const int64_t room = c.in[0]->type.shape.size(static_cast<int>(axis)) - count;
    const int64_t at = std::clamp<int64_t>(c.in[2]->integer<int64_t>(0), 0, room);
    c.out[0].copy_elements(*c.in[0]);
    copy_axis(*c.in[1], 0, c.out[0], at, count, axis);
  };
  d.samples = [] {
    return std::vector<Sample>{
        {{ops::tensor({2, 3, 8, 5}), ops::tensor({2, 3, 2, 5}), ops::tensor({}, 0, 6, DType::i32)},
         {{"axis", int64_t{2}}}},
        {{ops::tensor({9, 4}), ops::tensor({1, 4}), ops::tensor({}, 0, 9, DType::i32)},
         {{"axis", int64_t{0}}}},
        {{ops::tensor({5, 2}, -9, 9, DType::i64), ops::tensor({2, 2}, -9, 9, DType::i64),
          ops::tensor({}, 0, 9, DType::i32)},
         {{"axis", int64_t{0}}}},
        {{ops::int8_rows_operand({2, 3, 8, 10}, 5), ops::int8_rows_operand({2, 3, 2, 10}, 5),
          ops::tensor({}, 0, 7, DType::i32)},
         {{"axis", int64_t{2}}}},
        {{ops::int8_rows_operand({9, 32}, 16, DType::bf16),
          ops::int8_rows_operand({3, 32}, 16, DType::bf16), ops::tensor({}, 0, 9, DType::i32)},
         {{"axis", int64_t{0}}}}};
  };
  d.in_place = {{0, 0}};
  return d;
}

OpDef update_rows_op() {
  OpDef d = movement("update_rows",
                     "y = x with row slots[i] replaced by rows[i]; a slot of -1 replaces nothing. "
                     "x, y: [N, C]; slots: [M] i32, different ones in [0, N) or -1; rows: [M, C]. "
                     "x and rows may both lie in int8 rows");
  d.no_gradient = "it writes the KV cache of inference";
  d.stored_operands = 0b101;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 3);
    ops::expect_same_dtype(c, 0, 2);
    check_rows_of_integers(c, c.in[0], c.in[2]);
    const Shape &x = c.in[0].shape, &slots = c.in[1].shape, &rows = c.in[2].shape;
    if (c.in[1].dtype != DType::i32 || x.rank() != 2 || slots.rank() != 1 || rows.rank() != 2 ||
        rows[0] != slots[0] || rows[1] != x[1])
      c.fail("expected x [N, C], slots [M] i32, rows [M, C]; got {}, {}, {}", c.in[0].str(),
             c.in[1].str(), c.in[2].str());
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [](const EvalContext& c) {
    const int64_t count = c.in[0]->type.shape.size(0), width = c.in[0]->type.shape.size(1);
    c.out[0].copy_elements(*c.in[0]);
    c.out[0].visit([&]<typename T>(std::vector<T>& y) {
      const std::vector<T>& rows = c.in[2]->of<T>();
      for (int64_t i = 0; i < c.in[1]->type.shape.elements(); ++i) {
        const auto slot = c.in[1]->integer<int64_t>(static_cast<size_t>(i));
        if (slot < -1 || slot >= count)
          user_error("[update_rows] slot {} lies outside {} rows", slot, count);
        if (slot >= 0) std::copy_n(rows.begin() + i * width, width, y.begin() + slot * width);
      }
    });
  };
  d.samples = [] {
    // A single row, because random slots might be equal.
    const auto make = [](int64_t n, int64_t width, DType dtype = DType::f32) {
      return Sample{{ops::tensor({n, width}, -9, 9, dtype),
                     ops::tensor({1}, -1, static_cast<double>(n), DType::i32),
                     ops::tensor({1, width}, -9, 9, dtype)},
                    {}};
    };
    const auto integers = [](int64_t n, int64_t width, int64_t group) {
      return Sample{{ops::int8_rows_operand({n, width}, group),
                     ops::tensor({1}, -1, static_cast<double>(n), DType::i32),
                     ops::int8_rows_operand({1, width}, group)},
                    {}};
    };
    return std::vector<Sample>{make(7, 5), make(3, 40), make(4, 2, DType::i64), integers(5, 24, 8),
                               integers(6, 96, 32)};
  };
  d.in_place = {{0, 0}};
  return d;
}

OpDef bitcast_op() {
  OpDef d =
      movement("bitcast",
               "y has the bits of each element of x, read as {dtype}, which is as wide as x's "
               "dtype. x, y: [...]");
  d.no_gradient = "bits are not differentiated";
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    const auto dtype = c.attr<DType>("dtype");
    if (bytes_of(dtype) != bytes_of(c.in[0].dtype))
      c.fail("{} is not as wide as {}", name_of(dtype), name_of(c.in[0].dtype));
    return std::vector<Type>{{dtype, c.in[0].shape}};
  };
  d.evaluate = [](const EvalContext& c) {
    std::vector<std::byte> bits(c.in[0]->type.bytes());
    write_tensor(*c.in[0], bits.data());
    c.out[0] = read_tensor(c.out[0].type, bits.data());
  };
  d.samples = [] {
    const auto make = [](DType from, DType to, double low) {
      return Sample{{ops::tensor({3, 5}, low, 9, from)}, {{"dtype", to}}};
    };
    return std::vector<Sample>{make(DType::i32, DType::u32, -9), make(DType::u16, DType::i16, 0),
                               make(DType::f64, DType::i64, -9), make(DType::i8, DType::u8, -9)};
  };
  return d;
}

}  // namespace

Value bitcast(Value x, DType dtype) {
  return x.dtype() == dtype ? x : call1(Op::bitcast, {x}, {{"dtype", dtype}});
}

ValueId behind_reshapes(const Graph& graph, ValueId v) {
  while (is(graph.node(v.node), Op::reshape)) v = graph.node(v.node).operands[0];
  return v;
}

Value reshape(Value x, Shape shape) {
  return call1(Op::reshape, {x}, {{"shape", std::move(shape)}});
}
Value transpose(Value x, std::vector<int64_t> permutation) {
  return call1(Op::transpose, {x}, {{"permutation", std::move(permutation)}});
}
Value slice(Value x, int axis, int64_t start, int64_t size) {
  return call1(
      Op::slice, {x},
      {{"axis", ops::normal_axis(axis, x.shape().rank())}, {"start", start}, {"size", size}});
}
Value pad(Value x, int axis, int64_t before, int64_t after) {
  if (before == 0 && after == 0) return x;
  return call1(
      Op::pad, {x},
      {{"axis", ops::normal_axis(axis, x.shape().rank())}, {"before", before}, {"after", after}});
}
Value concat(std::span<const Value> parts, int axis) {
  return call(Op::concat, parts, {{"axis", ops::normal_axis(axis, parts[0].shape().rank())}})[0];
}
Value broadcast_to(Value x, Shape shape) {
  return call1(Op::broadcast_to, {x}, {{"shape", std::move(shape)}});
}
Value update_slice(Value x, Value part, Value position, int axis) {
  return call1(Op::update_slice, {x, part, position},
               {{"axis", ops::normal_axis(axis, x.shape().rank())}});
}
Value update_rows(Value x, Value slots, Value rows) {
  return call1(Op::update_rows, {x, slots, rows});
}

namespace ops {

std::vector<OpDef> movement_ops() {
  std::vector<OpDef> list;
  for (auto* make : {reshape_op, transpose_op, slice_op, pad_op, concat_op, broadcast_to_op,
                     update_slice_op, update_rows_op, bitcast_op})
    list.push_back(make());
  return list;
}

}  // namespace ops
}  // namespace brrr
