// full, iota, literal and random_bits: tensors made from nothing but attributes (and a random key).

#include "base/rng.h"
#include "ops/support.h"

namespace brrr {

Value full(Graph& g, Shape shape, double value, DType dtype) {
  return g.value(
      g.add(op("full"), {}, {{"shape", std::move(shape)}, {"value", value}, {"dtype", dtype}}));
}

Value scalar(Graph& g, double value, DType dtype) { return full(g, {}, value, dtype); }

Value iota(Graph& g, Shape shape, int axis, DType dtype) {
  const int64_t normal = ops::normal_axis(axis, shape.rank());
  return g.value(
      g.add(op("iota"), {}, {{"shape", std::move(shape)}, {"axis", normal}, {"dtype", dtype}}));
}

Value literal(Graph& g, Shape shape, std::vector<double> values, DType dtype) {
  return g.value(
      g.add(op("literal"), {},
            {{"shape", std::move(shape)}, {"values", std::move(values)}, {"dtype", dtype}}));
}

Value random_bits(Value key, Shape shape, int64_t stream) {
  return call1("random_bits", {key}, {{"shape", std::move(shape)}, {"stream", stream}});
}

namespace ops {

std::vector<OpDef> leaf_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "full";
    d.is_constant = d.makes_masks = true;
    d.doc = "y = value everywhere. y: {shape} {dtype}";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it depends on nothing";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 0);
      c.attr<double>("value");
      return std::vector<Type>{{c.attr<DType>("dtype"), c.attr<Shape>("shape")}};
    };
    d.evaluate = [](const EvalContext& c) {
      const double value = c.node.attrs.get<double>("value");
      for (double& y : c.out[0].data) y = value;
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{}, {{"shape", Shape{3, 5}}, {"value", 1.5}, {"dtype", DType::f32}}},
          {{}, {{"shape", Shape{}}, {"value", -INFINITY}, {"dtype", DType::f32}}},
          {{}, {{"shape", Shape{7}}, {"value", -3.0}, {"dtype", DType::i32}}}};
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
        c.out[0].data[static_cast<size_t>(i)] = static_cast<double>(index[axis]);
      });
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{}, {{"shape", Shape{3, 5}}, {"axis", int64_t{1}}, {"dtype", DType::i32}}},
          {{}, {{"shape", Shape{4, 2, 3}}, {"axis", int64_t{0}}, {"dtype", DType::i32}}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "literal";
    d.doc = "y = {values}, in row-major order. y: {shape} {dtype}, at least one element";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it depends on nothing";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 0);
      const Shape& shape = c.attr<Shape>("shape");
      const auto& values = c.attr<std::vector<double>>("values");
      if (!shape.is_static() || shape.elements() != static_cast<int64_t>(values.size()))
        c.fail("a shape of {} has another number of elements than the {} values", shape.str(),
               values.size());
      return std::vector<Type>{{c.attr<DType>("dtype"), shape}};
    };
    d.evaluate = [](const EvalContext& c) {
      c.out[0].data = c.node.attrs.get<std::vector<double>>("values");
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{},
           {{"shape", Shape{2, 3}},
            {"values", std::vector<double>{1, -0.5, 1e-30, 0, INFINITY, 3.25}},
            {"dtype", DType::f32}}},
          {{},
           {{"shape", Shape{2}}, {"values", std::vector<double>{7, -3}}, {"dtype", DType::i32}}},
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
      const RngKey key{static_cast<uint32_t>(static_cast<int64_t>(c.in[0]->data[0])),
                       static_cast<uint32_t>(static_cast<int64_t>(c.in[0]->data[1]))};
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
