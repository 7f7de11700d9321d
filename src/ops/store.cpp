// store: a tensor in another storage.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/blocks/four_bit.h"
#include "base/integers.h"
#include "ops/quantized/given_integers.h"
#include "ops/quantized/int8_rows.h"
#include "ops/support.h"

namespace brrr {

Shape scales_shape(const Quantized& q, const Shape& matrix) {
  Shape scales = matrix;
  const int64_t terms = matrix.size(q.axis);
  scales[q.axis] = Dim(q.group == 0 ? 1 : ceil_div(terms, int64_t{q.group}));
  return scales;
}

namespace {

/// The result of a store whose integers and scales are given.
Type given_type(const InferContext& c) {
  if (c.in.size() > 3) ops::expect_operands(c, 3);
  const auto is_byte = [](DType t) { return t == DType::i8 || t == DType::u8; };
  const Type &integers = c.in[0], &scales = c.in[1];
  if (!is_byte(integers.dtype)) c.fail("integers must be i8 or u8; got {}", integers.str());
  if (scales.dtype != DType::f32 && scales.dtype != DType::bf16 && scales.dtype != DType::f16)
    c.fail("scales must be f32, bf16 or f16; got {}", scales.str());
  Type y{c.attrs.get_or<DType>("dtype", scales.dtype), integers.shape};
  y.storage = storage_of(c, y.dtype, y.shape);
  if (!y.storage.is_quantized() || y.storage.layout == Layout::rows)
    c.fail("given integers are stored in quantised panels; got {}", y.storage.str());
  const Shape wanted = scales_shape(y.storage.quantized, y.shape);
  if (scales.shape != wanted)
    c.fail("scales must be {} for {} of {}; got {}", wanted.str(), y.storage.str(), y.shape.str(),
           scales.shape.str());
  if (c.in.size() < 3) return y;
  const Type& zeros = c.in[2];
  if (!is_byte(zeros.dtype) || zeros.shape != wanted)
    c.fail("zeros must be i8 or u8 {}; got {}", wanted.str(), zeros.str());
  return y;
}

void evaluate_given(const EvalContext& c) {
  const Type& type = c.out[0].type;
  const Quantized& q = type.storage.quantized;
  const int64_t rows = type.shape.size(0), columns = type.shape.size(1);
  const Shape groups = scales_shape(q, type.shape);
  const int64_t group = q.group == 0 ? std::max<int64_t>(type.shape.size(q.axis), 1) : q.group;
  const double most = q.bits == 8 ? 127 : 7;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const auto element = static_cast<size_t>(i * columns + j);
      const auto of_group = static_cast<size_t>((q.axis == 0 ? i / group : i) * groups.size(1) +
                                                (q.axis == 0 ? j : j / group));
      const double zero = c.in.size() > 2 ? c.in[2]->data[of_group] : 0;
      const double scale = c.in[1]->data[of_group];
      const double integer = std::clamp(c.in[0]->data[element] - zero, -most - 1, most);
      c.out[0].data[element] = std::isfinite(scale) ? integer * scale : NAN;
    }
}

/// Integers [R, C] from `least` to `most`, scales and perhaps zeros in {storage}.
Sample given_sample(const Shape& shape, const Storage& storage, DType dtype, double least,
                    double most, std::optional<double> zero) {
  const Shape groups = scales_shape(storage.quantized, shape);
  const DType integers = least < 0 ? DType::i8 : DType::u8;
  Sample s{{ops::tensor(shape, least, most, integers), ops::tensor(groups, 0.001, 0.1, dtype)},
           {{"storage", storage.str()}}};
  if (zero) s.in.push_back(ops::tensor(groups, *zero - 3, *zero + 3, integers));
  return s;
}

}  // namespace

Value store_integers(Value integers, Value scales, std::optional<Value> zeros,
                     const Storage& storage, DType dtype) {
  std::vector<Value> in{integers, scales};
  if (zeros) in.push_back(*zeros);
  Attrs attrs{{"storage", storage.str()}};
  if (dtype != scales.dtype()) attrs.set("dtype", dtype);
  return call(Op::store, in, attrs)[0];
}

Value store(Value x, const Storage& storage) {
  return call1(Op::store, {x}, {{"storage", storage.str()}});
}

namespace ops {

Sample::Operand stored_right(int64_t k, int64_t n, bool transposed, DType dtype) {
  Sample::Operand w = tensor(transposed ? Shape{n, k} : Shape{k, n}, -1, 1, dtype);
  w.type.storage.layout = right_layout(transposed);
  return w;
}

std::vector<OpDef> store_ops() {
  OpDef d;
  d.name = "store";
  d.derives_weights = true;
  d.doc =
      "y = x, floats or i8, in {storage} (base/storage.h). Panels hold the same numbers; integers "
      "and their scales hold what is nearest; rows hold what x holds, in its dtype or, where x "
      "lies "
      "in blocks, in {dtype} if given. x lies in rows, "
      "in blocks, or, where {storage} is rows, in int8 rows or quantised panels. Two or three "
      "operands: y = (x - "
      "zeros) * "
      "scales with the given integers x, i8 or u8, in quantised panels; scales and "
      "zeros have one element for each group; y has {dtype} where given, else that of scales";
  d.op_class = OpClass::movement;
  d.stored_operands = 0b1;
  d.no_gradient = "it is for weights and caches in another form";
  d.infer = [](const InferContext& c) {
    if (c.in.size() > 1) return std::vector<Type>{given_type(c)};
    expect_operands(c, 1);
    if (c.in[0].dtype != DType::i8) expect_float(c, 0, "x");
    Type y = c.in[0];
    if (y.storage.is_blocks()) y.dtype = c.attrs.get_or<DType>("dtype", y.dtype);
    y.storage = storage_of(c, y.dtype, y.shape);
    const bool is_integers = is_int8_rows(c.in[0]) || (c.in[0].storage.is_quantized() &&
                                                       c.in[0].storage.layout != Layout::rows);
    const bool can_read = c.in[0].storage.is_plain() || c.in[0].storage.is_blocks() ||
                          (y.storage.is_plain() && is_integers);
    const bool can_write =
        !y.storage.is_blocks() || (c.in[0].storage.is_plain() && is_float(y.dtype) &&
                                   block_type_of(y.storage).quantise != nullptr);
    if (!can_read || !can_write)
      c.fail("x lies in rows or blocks, or in integers and y in rows; got {} and {}", c.in[0].str(),
             y.str());
    return std::vector<Type>{std::move(y)};
  };
  d.evaluate = [](const EvalContext& c) {
    if (c.in.size() > 1) return evaluate_given(c);
    const auto& [dtype, shape, storage] = c.out[0].type;
    c.out[0].data = c.in[0]->data;
    if (!storage.is_quantized() && !storage.is_blocks()) return;
    std::vector<std::byte> bytes(static_cast<size_t>(stored_bytes(storage, dtype, shape)));
    write_floats(storage, dtype, shape, c.in[0]->data, bytes.data());
    read_floats(storage, dtype, shape, bytes.data(), c.out[0].data);
  };
  d.cost = [](const Node& n, std::span<const Type> in) { return streaming_cost(n, in, 0); };
  d.samples = [] {
    std::vector<Sample> out;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [shape, group] :
           {std::pair(Shape{5, 96}, 32), {{2, 3, 7, 24}, 24}, {{2, 9, 80}, 16}, {{3, 10}, 5}})
        out.push_back(
            {{tensor(shape, -1, 1, dtype)}, {{"storage", int8_rows(shape.rank(), group).str()}}});
      out.push_back({{int8_rows_operand({2, 5, 48}, 16, dtype)}, {{"storage", Storage{}.str()}}});
    }
    for (const auto& [shape, layout] : {std::pair(Shape{64, 96}, Layout::panels),
                                        {{64, 96}, Layout::transposed_panels},
                                        {{96, 65}, Layout::panels},
                                        {{50, 161}, Layout::transposed_panels},
                                        {{33, 1}, Layout::panels},
                                        {{1, 32}, Layout::transposed_panels}}) {
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
        out.push_back({{tensor(shape, -1, 1, dtype)}, {{"storage", Storage{layout}.str()}}});
      out.push_back({{tensor(shape, -128, 127, DType::i8)}, {{"storage", Storage{layout}.str()}}});
    }
    for (const Quantized& q : {Quantized{8, 0, 0}, {8, 1, 0}, {4, 0, 32}, {4, 1, 32}, {4, 1, 0}})
      for (const DType dtype : {DType::f32, DType::bf16})
        out.push_back(
            {{tensor({45, 67}, -1, 1, dtype)}, {{"storage", Storage{Layout::rows, q}.str()}}});
    for (const auto& [shape, layout] : {std::pair(Shape{64, 96}, Layout::panels),
                                        {{50, 161}, Layout::transposed_panels},
                                        {{33, 1}, Layout::panels}})
      for (const auto& [bits, group] : {std::pair(8, 0), {8, 32}, {4, 32}, {4, 0}})
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
          out.push_back(
              {{tensor(shape, -1, 1, dtype)},
               {{"storage",
                 Storage{layout, {bits, layout == Layout::panels ? 0 : 1, group}}.str()}}});
    for (const char* blocks : {blocks::kNf4Storage, blocks::kFp4Storage})
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Storage storage = *storage_from_name(blocks);
        out.push_back({{tensor({5, 192}, -1, 1, dtype)}, {{"storage", storage.str()}}});
        Sample::Operand x = tensor({5, 192}, -1, 1, DType::f32);
        x.type.storage = storage;
        out.push_back({{x}, {{"storage", Storage{}.str()}, {"dtype", dtype}}});
      }
    for (const auto& [shape, layout] : {std::pair(Shape{264, 96}, Layout::panels),
                                        {{50, 161}, Layout::transposed_panels},
                                        {{33, 1}, Layout::panels}})
      for (const auto& [bits, group] : {std::pair(8, 0), {8, 32}, {4, 32}, {4, 0}})
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
          Sample::Operand x = tensor(shape, -1, 1, dtype);
          x.type.storage = {layout, {bits, layout == Layout::panels ? 0 : 1, group}};
          out.push_back({{x}, {{"storage", Storage{}.str()}}});
        }
    for (const auto& [shape, layout] : {std::pair(Shape{64, 96}, Layout::panels),
                                        {{50, 161}, Layout::transposed_panels},
                                        {{33, 1}, Layout::panels}})
      for (const auto& [bits, group] : {std::pair(8, 0), {8, 32}, {4, 32}, {4, 0}}) {
        const Storage storage{layout, {bits, layout == Layout::transposed_panels ? 1 : 0, group}};
        const double most = bits == 8 ? 127 : 7;
        out.push_back(given_sample(shape, storage, DType::f32, -most - 1, most, std::nullopt));
        out.push_back(given_sample(shape, storage, DType::f16, 0, 2 * most + 1, most + 1));
        out.push_back(given_sample(shape, storage, DType::bf16, 0, 15, 8));
      }
    return out;
  };
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops
}  // namespace brrr
