// full, iota, literal and random_bits: tensors made from nothing but attributes (and a random key).

#include <bit>

#include "base/rng.h"
#include "ops/support.h"

namespace brrr {

namespace {

/// Whether an integer dtype holds the integer.
bool holds(DType dtype, int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  return (value >= 0 || is_signed_integer(dtype)) && wrapped_to(dtype, bits) == bits;
}
bool holds(DType dtype, uint64_t value) {
  return value <= static_cast<uint64_t>(INT64_MAX) ? holds(dtype, static_cast<int64_t>(value))
                                                   : dtype == DType::u64;
}

template <typename T>
void expect_held(const InferContext& c, DType dtype, std::span<const T> values) {
  for (const T value : values)
    if (!holds(dtype, value)) c.fail("{} does not hold {}", name_of(dtype), value);
}

/// The 64 bits of element i of a constant of an integer dtype.
uint64_t constant_bits(const Node& node, size_t i) {
  if (const AttrValue* value = node.attrs.find("value")) {
    if (const auto* natural = std::get_if<uint64_t>(value)) return *natural;
    return static_cast<uint64_t>(std::get<int64_t>(*value));
  }
  const AttrValue* values = node.attrs.find("values");
  if (const auto* naturals = std::get_if<std::vector<uint64_t>>(values)) return (*naturals)[i];
  return static_cast<uint64_t>(std::get<std::vector<int64_t>>(*values)[i]);
}

}  // namespace

AttrValue Number::as(DType dtype) const {
  return std::visit(
      [dtype](auto x) -> AttrValue {
        using T = decltype(x);
        if (!is_integer(dtype)) return static_cast<double>(x);
        if constexpr (std::is_same_v<T, double>) {
          const uint64_t bits = integer_from_double(dtype, x);
          // Beyond 64 bits the end was taken, which no double is.
          const bool beyond = bytes_of(dtype) == 8 && bits == greatest_integer(dtype);
          if (beyond || double_from_integer(dtype, bits) != x)
            user_error("[full] {} does not hold {}", name_of(dtype), double_text(x));
          if (is_signed_integer(dtype)) return static_cast<int64_t>(bits);
          return bits;
        } else {
          if (!holds(dtype, x)) user_error("[full] {} does not hold {}", name_of(dtype), x);
          return x;
        }
      },
      value_);
}

Value full(Graph& g, Shape shape, Number value, DType dtype) {
  return g.value(
      g.add(op(Op::full), {},
            {{"shape", std::move(shape)}, {"value", value.as(dtype)}, {"dtype", dtype}}));
}

Value scalar(Graph& g, Number value, DType dtype) { return full(g, {}, value, dtype); }

double full_value(const Node& node) {
  const DType dtype = node.results[0].dtype;
  if (!is_integer(dtype)) return node.attrs.get<double>("value");
  return double_from_integer(dtype, constant_bits(node, 0));
}

std::optional<int64_t> full_integer(const Node& node) {
  const auto* value = std::get_if<int64_t>(node.attrs.find("value"));
  return value ? std::optional(*value) : std::nullopt;
}

void store_constant(const Node& node, size_t i, void* to) {
  const DType dtype = node.results[0].dtype;
  if (is_integer(dtype))
    store_integer(dtype, to, 0, constant_bits(node, i));
  else if (node.attrs.find("value") != nullptr)
    store_from_double(dtype, to, 0, node.attrs.get<double>("value"));
  else
    store_from_double(dtype, to, 0, node.attrs.get<std::vector<double>>("values")[i]);
}

Value iota(Graph& g, Shape shape, int axis, DType dtype) {
  const int64_t normal = ops::normal_axis(axis, shape.rank());
  return g.value(
      g.add(op(Op::iota), {}, {{"shape", std::move(shape)}, {"axis", normal}, {"dtype", dtype}}));
}

Value literal(Graph& g, Shape shape, const std::vector<Number>& values, DType dtype) {
  std::vector<double> reals;
  std::vector<int64_t> integers;
  std::vector<uint64_t> naturals;
  for (const Number& number : values) {
    const AttrValue value = number.as(dtype);
    if (const auto* real = std::get_if<double>(&value))
      reals.push_back(*real);
    else if (const auto* natural = std::get_if<uint64_t>(&value))
      naturals.push_back(*natural);
    else if (is_signed_integer(dtype))
      integers.push_back(std::get<int64_t>(value));
    else
      naturals.push_back(static_cast<uint64_t>(std::get<int64_t>(value)));
  }
  AttrValue list = std::move(reals);
  if (is_signed_integer(dtype)) list = std::move(integers);
  if (is_unsigned_integer(dtype)) list = std::move(naturals);
  return g.value(
      g.add(op(Op::literal), {},
            {{"shape", std::move(shape)}, {"values", std::move(list)}, {"dtype", dtype}}));
}

Value constant_in(Graph& g, const RefTensor& t) {
  const DType dtype = t.type.dtype;
  const size_t n = t.size();
  std::vector<Number> values;
  values.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    if (is_signed_integer(dtype))
      values.emplace_back(t.integer<int64_t>(i));
    else if (is_unsigned_integer(dtype))
      values.emplace_back(t.integer<uint64_t>(i));
    else
      values.emplace_back(t.data[i]);
  }
  const auto same = [&](size_t i) {
    return is_float(dtype)
               ? std::bit_cast<uint64_t>(t.data[i]) == std::bit_cast<uint64_t>(t.data[0])
               : t.bits(i) == t.bits(0);
  };
  bool all_same = n > 0;
  for (size_t i = 1; i < n && all_same; ++i) all_same = same(i);
  return all_same ? full(g, t.type.shape, values[0], dtype)
                  : literal(g, t.type.shape, values, dtype);
}

Value random_bits(Value key, Shape shape, int64_t stream) {
  return call1(Op::random_bits, {key}, {{"shape", std::move(shape)}, {"stream", stream}});
}

namespace ops {

std::vector<OpDef> leaf_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "full";
    d.makes_masks = true;
    d.doc = "y = value everywhere, an integer where {dtype} is one of integers. y: {shape} {dtype}";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it depends on nothing";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 0);
      const DType dtype = c.attr<DType>("dtype");
      const AttrValue* value = c.attrs.find("value");
      const uint64_t* natural = value ? std::get_if<uint64_t>(value) : nullptr;
      if (is_integer(dtype) && value != nullptr && std::holds_alternative<double>(*value))
        c.fail("a value of {} must be written as an integer", name_of(dtype));
      if (!is_integer(dtype))
        c.attr<double>("value");
      else if (natural != nullptr)
        expect_held<uint64_t>(c, dtype, {natural, 1});
      else
        expect_held<int64_t>(c, dtype, {&c.attr<int64_t>("value"), 1});
      return std::vector<Type>{{dtype, c.attr<Shape>("shape")}};
    };
    d.evaluate = [](const EvalContext& c) {
      RefTensor& y = c.out[0];
      for (size_t i = 0; i < y.size(); ++i)
        if (is_integer(y.type.dtype))
          y.set_bits(i, constant_bits(c.node, 0));
        else
          y.data[i] = full_value(c.node);
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{}, {{"shape", Shape{3, 5}}, {"value", 1.5}, {"dtype", DType::f32}}},
          {{}, {{"shape", Shape{}}, {"value", -INFINITY}, {"dtype", DType::f32}}},
          {{}, {{"shape", Shape{7}}, {"value", int64_t{-3}}, {"dtype", DType::i32}}},
          {{}, {{"shape", Shape{2}}, {"value", INT64_MIN}, {"dtype", DType::i64}}},
          {{}, {{"shape", Shape{}}, {"value", UINT64_MAX}, {"dtype", DType::u64}}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "iota";
    d.doc = "y[i0, i1, ...] = i_axis. y: {shape} {dtype}";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it depends on nothing";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 0);
      const Shape& shape = c.attr<Shape>("shape");
      const int64_t axis = c.attr<int64_t>("axis");
      if (axis < 0 || axis >= shape.rank())
        c.fail("axis must be in [0, {}); got {}", shape.rank(), axis);
      return std::vector<Type>{{c.attr<DType>("dtype"), shape}};
    };
    d.evaluate = [](const EvalContext& c) {
      const auto axis = static_cast<size_t>(c.node.attrs.get<int64_t>("axis"));
      for_each_index(c.out[0].type.shape, [&](int64_t i, const std::vector<int64_t>& index) {
        if (is_float(c.out[0].type.dtype))
          c.out[0].data[static_cast<size_t>(i)] = static_cast<double>(index[axis]);
        else
          c.out[0].set_bits(static_cast<size_t>(i), static_cast<uint64_t>(index[axis]));
      });
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{}, {{"shape", Shape{3, 5}}, {"axis", int64_t{1}}, {"dtype", DType::i32}}},
          {{}, {{"shape", Shape{4, 2, 3}}, {"axis", int64_t{0}}, {"dtype", DType::i32}}},
          {{}, {{"shape", Shape{3, 2}}, {"axis", int64_t{0}}, {"dtype", DType::u64}}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "literal";
    d.doc =
        "y = {values}, in row-major order, integers where {dtype} is one of integers. y: {shape} "
        "{dtype}, at least one element";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it depends on nothing";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 0);
      const Shape& shape = c.attr<Shape>("shape");
      const DType dtype = c.attr<DType>("dtype");
      const AttrValue* given = c.attrs.find("values");
      size_t count = 0;
      if (is_integer(dtype) && given && std::holds_alternative<std::vector<double>>(*given))
        c.fail("values of {} must be written as integers", name_of(dtype));
      if (!is_integer(dtype)) {
        count = c.attr<std::vector<double>>("values").size();
      } else if (given != nullptr && std::holds_alternative<std::vector<uint64_t>>(*given)) {
        const auto& values = std::get<std::vector<uint64_t>>(*given);
        expect_held<uint64_t>(c, dtype, values);
        count = values.size();
      } else {
        const auto& values = c.attr<std::vector<int64_t>>("values");
        expect_held<int64_t>(c, dtype, values);
        count = values.size();
      }
      if (!shape.is_static() || shape.elements() != static_cast<int64_t>(count))
        c.fail("a shape of {} has another number of elements than the {} values", shape.str(),
               count);
      return std::vector<Type>{{dtype, shape}};
    };
    d.evaluate = [](const EvalContext& c) {
      RefTensor& y = c.out[0];
      if (!is_integer(y.type.dtype)) {
        y.data = c.node.attrs.get<std::vector<double>>("values");
        return;
      }
      for (size_t i = 0; i < y.size(); ++i) y.set_bits(i, constant_bits(c.node, i));
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{},
           {{"shape", Shape{2, 3}},
            {"values", std::vector<double>{1, -0.5, 1e-30, 0, INFINITY, 3.25}},
            {"dtype", DType::f32}}},
          {{},
           {{"shape", Shape{2}}, {"values", std::vector<int64_t>{7, -3}}, {"dtype", DType::i32}}},
          {{},
           {{"shape", Shape{3}},
            {"values", std::vector<int64_t>{INT64_MIN, (int64_t{1} << 53) + 1, INT64_MAX}},
            {"dtype", DType::i64}}},
          {{},
           {{"shape", Shape{2}},
            {"values", std::vector<uint64_t>{0, UINT64_MAX}},
            {"dtype", DType::u64}}},
          {{}, {{"shape", Shape{}}, {"values", std::vector<double>{2}}, {"dtype", DType::f32}}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "random_bits";
    d.draws_random = true;
    d.doc =
        "y[i] = 16 random bits as an integer in [0, 65536): element i of stream {stream} of the "
        "counter-based generator under key = (seed, step). key: [2] i32; y: {shape} i32";
    d.op_class = OpClass::leaf;
    d.no_gradient = "random bits have no derivative";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 1);
      if (c.in[0] != Type{DType::i32, {2}}) c.fail("key must be i32[2]; got {}", c.in[0].str());
      expect_stream(c);
      return std::vector<Type>{{DType::i32, c.attr<Shape>("shape")}};
    };
    d.evaluate = [](const EvalContext& c) {
      const RngKey key{c.in[0]->integer<uint32_t>(0), c.in[0]->integer<uint32_t>(1)};
      const auto stream = static_cast<uint32_t>(c.node.attrs.get<int64_t>("stream"));
      for (size_t i = 0; i < c.out[0].data.size(); ++i)
        c.out[0].data[i] = philox_u16(key, stream, i);
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({2}, 0, 1000, DType::i32)}, {{"shape", Shape{5, 7}}, {"stream", int64_t{3}}}}};
    };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
