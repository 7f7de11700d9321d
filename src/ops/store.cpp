// store: a tensor in another storage.

#include <vector>

#include "ops/support.h"

namespace brrr {

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
      "y = x, which lies in rows, in {storage} (base/storage.h). Panels hold the same numbers; "
      "integers and their scales hold what is nearest";
  d.op_class = OpClass::movement;
  d.no_gradient = "it is for weights in another form";
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    expect_float(c, 0, "x");
    Type y = c.in[0];
    y.storage = storage_of(c, y.dtype, y.shape);
    return std::vector<Type>{std::move(y)};
  };
  d.evaluate = [](const EvalContext& c) {
    const auto& [dtype, shape, storage] = c.out[0].type;
    c.out[0].data = c.in[0]->data;
    if (!storage.is_quantized()) return;
    std::vector<std::byte> bytes(static_cast<size_t>(stored_bytes(storage, dtype, shape)));
    write_floats(storage, dtype, shape, c.in[0]->data, bytes.data());
    read_floats(storage, dtype, shape, bytes.data(), c.out[0].data);
  };
  d.cost = [](const Node& n, std::span<const Type> in) { return streaming_cost(n, in, 0); };
  d.samples = [] {
    std::vector<Sample> out;
    for (const auto& [shape, layout] : {std::pair(Shape{64, 96}, Layout::panels),
                                        {{64, 96}, Layout::transposed_panels},
                                        {{96, 65}, Layout::panels},
                                        {{50, 161}, Layout::transposed_panels},
                                        {{33, 1}, Layout::panels},
                                        {{1, 32}, Layout::transposed_panels}})
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
        out.push_back({{tensor(shape, -1, 1, dtype)}, {{"storage", Storage{layout}.str()}}});
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
    return out;
  };
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops
}  // namespace brrr
