// Rows of a table by id, and the scatter-add that is its derivative.

#include "ops/support.h"

namespace brrr {
namespace {

size_t row_at(const RefTensor& ids, int64_t i, int64_t rows) {
  const auto id = ids.integer<int64_t>(static_cast<size_t>(i));
  if (id < 0 || id >= rows)
    user_error("[embedding] id {} lies outside the table of {} rows", id, rows);
  return static_cast<size_t>(id);
}

/// A table in panels of quantised integers.
Sample::Operand table_of_integers(Shape shape, const Quantized& quantized, DType dtype) {
  Sample::Operand table = ops::tensor(std::move(shape), -1, 1, dtype);
  table.type.storage = {Layout::transposed_panels, quantized};
  return table;
}

}  // namespace

Value embedding(Value table, Value ids) { return call1(Op::embedding, {table, ids}); }

namespace ops {

std::vector<OpDef> embedding_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "embedding";
    d.part = OpDef::Part::rows;
    d.stored_operands = 0b01;
    d.doc =
        "y[i..., :] = table[ids[i...], :]. table: [V, C], in any storage; ids: [...] i32 or i64; "
        "y: [..., C]";
    d.op_class = OpClass::movement;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      expect_float(c, 0, "table");
      expect_integer(c, 1, "ids");
      const Shape& table = c.in[0].shape;
      Shape y = c.in[1].shape;
      if (table.rank() != 2) c.fail("table must be [V, C]; got {}", c.in[0].str());
      y.push_back(table[1]);
      return std::vector<Type>{{c.in[0].dtype, y}};
    };
    d.evaluate = [](const EvalContext& c) {
      const RefTensor& table = *c.in[0];
      const int64_t rows = table.type.shape.size(0), width = table.type.shape.size(1);
      for (int64_t i = 0; i < c.in[1]->type.shape.elements(); ++i) {
        const auto row = static_cast<int64_t>(row_at(*c.in[1], i, rows));
        for (int64_t j = 0; j < width; ++j)
          c.out[0].data[static_cast<size_t>(i * width + j)] =
              table.data[static_cast<size_t>(row * width + j)];
      }
    };
    d.vjp = [](VjpContext& c) {
      if (c.wants(0))
        c.set(0, call1(Op::embedding_grad, {c.grad(0), c.operand(1)},
                       {{"rows", c.operand(0).shape().size(0)}}));
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      const double bytes = static_cast<double>(n.results[0].bytes());
      return Cost{0, bytes + static_cast<double>(in[1].bytes()), bytes};
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({11, 8}), tensor({3, 5}, 0, 11, DType::i32)}, {}},
          {{tensor({11, 37}), tensor({64}, 0, 11, DType::i32)}, {}},
          {{tensor({11, 8}), tensor({7}, 0, 11, DType::i64)}, {}},
          {{stored_right(64, 45, true, DType::bf16), tensor({3, 5}, 0, 45, DType::i32)}, {}},
          {{stored_right(50, 60, true, DType::f32), tensor({128}, 0, 60, DType::i64)}, {}},
          {{table_of_integers({45, 300}, {8, 1, 0}, DType::bf16),
            tensor({3, 5}, 0, 45, DType::i32)},
           {}},
          {{table_of_integers({70, 64}, {8, 1, 32}, DType::f32), tensor({9}, 0, 70, DType::i64)},
           {}},
          {{table_of_integers({33, 50}, {4, 1, 8}, DType::f16), tensor({9}, 0, 33, DType::i32)},
           {}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "embedding_grad";
    d.is_gradient = d.only_adds = true;
    d.doc =
        "dtable[v, :] = sum of dy[i..., :] over ids[i...] == v, in the order of i. dy: [..., C]; "
        "ids: "
        "[...] i32 or i64; dtable: [{rows}, C]; f32 accumulation";
    d.op_class = OpClass::movement;
    d.no_gradient = "second derivatives of embeddings are not needed";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      expect_float(c, 0, "dy");
      expect_integer(c, 1, "ids");
      Shape expected = c.in[1].shape;
      if (c.in[0].shape.rank() < 1) c.fail("dy needs an axis");
      expected.push_back(c.in[0].shape[-1]);
      if (!(c.in[0].shape == expected))
        c.fail("dy must be {}; got {}", expected.str(), c.in[0].str());
      const int64_t rows = c.attr<int64_t>("rows");
      if (rows < 0) c.fail("rows must not be negative; got {}", rows);
      return std::vector<Type>{{c.in[0].dtype, {Dim(rows), c.in[0].shape[-1]}}};
    };
    d.evaluate = [](const EvalContext& c) {
      const int64_t rows = c.out[0].type.shape.size(0), width = c.out[0].type.shape.size(1);
      std::fill(c.out[0].data.begin(), c.out[0].data.end(), 0.0);
      for (int64_t i = 0; i < c.in[1]->type.shape.elements(); ++i) {
        const auto row = static_cast<int64_t>(row_at(*c.in[1], i, rows));
        for (int64_t j = 0; j < width; ++j)
          c.out[0].data[static_cast<size_t>(row * width + j)] +=
              c.in[0]->data[static_cast<size_t>(i * width + j)];
      }
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, elements(in[0]));
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({3, 5, 8}), tensor({3, 5}, 0, 11, DType::i32)}, {{"rows", int64_t{11}}}},
          {{tensor({64, 37}), tensor({64}, 0, 5, DType::i32)}, {{"rows", int64_t{7}}}},
          {{tensor({6, 4}), tensor({6}, 0, 5, DType::i64)}, {{"rows", int64_t{5}}}}};
    };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
