// matmul and linear: the contractions.

#include "ops/quantized/quantized_rows.h"
#include "ops/support.h"

namespace brrr {
namespace {

struct MatmulDims {
  Shape batch;
  Dim m, n, k;
};

MatmulDims matmul_dims(const InferContext& c, const Shape& a, const Shape& b, bool ta, bool tb) {
  if (a.rank() < 2 || b.rank() < 2)
    c.fail("a and b need at least two axes; got {} and {}", a.str(), b.str());
  MatmulDims d{ops::broadcast(c, a.without_last(2), b.without_last(2)), a[ta ? -1 : -2],
               b[tb ? -2 : -1], a[ta ? -2 : -1]};
  const Dim kb = b[tb ? -1 : -2];
  if (!(d.k == kb))
    c.fail("the contracted sizes differ: {} of a {}{} against {} of b {}{}", d.k.str(), a.str(),
           ta ? " transposed" : "", kb.str(), b.str(), tb ? " transposed" : "");
  return d;
}

void matmul_loops(const RefTensor& a, const RefTensor& b, bool ta, bool tb, RefTensor& y) {
  const Shape &sa = a.type.shape, &sb = b.type.shape, &sy = y.type.shape;
  const int64_t m = sy.size(-2), n = sy.size(-1), k = sa.size(ta ? -2 : -1);
  const Shape ba = sa.without_last(2), bb = sb.without_last(2), by = sy.without_last(2);
  ops::for_each_index(by, [&](int64_t batch, const std::vector<int64_t>& index) {
    const int64_t at_a = ops::broadcast_index(ba, index) * m * k;
    const int64_t at_b = ops::broadcast_index(bb, index) * k * n;
    const auto multiply = [&]<typename T>(T zero, auto read, auto write) {
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          T total = zero;
          for (int64_t l = 0; l < k; ++l)
            total += read(a, at_a + (ta ? l * m + i : i * k + l)) *
                     read(b, at_b + (tb ? j * k + l : l * n + j));
          write(static_cast<size_t>((batch * m + i) * n + j), total);
        }
    };
    if (is_integer(a.type.dtype))
      multiply(
          uint64_t{0}, [](const RefTensor& t, int64_t i) { return t.bits(static_cast<size_t>(i)); },
          [&](size_t i, uint64_t total) { y.set_bits(i, total); });
    else
      multiply(
          0.0, [](const RefTensor& t, int64_t i) { return t.data[static_cast<size_t>(i)]; },
          [&](size_t i, double total) { y.data[i] = total; });
  });
}

Cost matmul_cost(const Node& n, std::span<const Type> in, bool ta) {
  const double k = static_cast<double>(in[0].shape.size(ta ? -2 : -1));
  return ops::streaming_cost(n, in, 2 * k * ops::elements(n.results[0]));
}

// The dtype of the result: the attribute "dtype" where given, else that of the operands.
DType result_dtype(const InferContext& c) {
  const DType dtype = c.attrs.get_or<DType>("dtype", c.in[0].dtype);
  if (!is_float(dtype)) c.fail("dtype must be a floating dtype; got {}", name_of(dtype));
  return dtype;
}

}  // namespace

Value matmul(Value a, Value b, bool transpose_a, bool transpose_b, std::optional<DType> dtype) {
  Attrs attrs{{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
  if (dtype && *dtype != a.dtype()) attrs.set("dtype", *dtype);
  return call1(Op::matmul, {a, b}, std::move(attrs));
}

Value linear(Value x, Value weight, Value bias) { return call1(Op::linear, {x, weight, bias}); }

std::optional<ProductForm> product_form(const Node& node) {
  const auto& product = node.op->product;
  if (!product || product->is_scaled) return std::nullopt;
  if (!product->transposes) return ProductForm{false, false, product->adds_bias};
  return ProductForm{node.attrs.get<bool>("transpose_a"), node.attrs.get<bool>("transpose_b"),
                     product->adds_bias};
}

namespace ops {

std::vector<OpDef> matmul_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "matmul";
    d.stored_operands = 0b010;
    d.product = {.transposes = true};
    d.doc =
        "y = op(a) op(b), op transposes the last two axes where asked; leading axes broadcast. "
        "a: [..., M, K], b: [..., K, N], y: [..., M, N]; products accumulate in f32 or wider; y "
        "has {dtype} where given, else that of a and b. {tf32}: f32 operands may be rounded to 11 "
        "bits. b may lie in any storage. a and b may be i8: then y is i32 and exact, K at most "
        "131071. Integers of 32 and 64 bits wrap around. Integers have no gradient. {left_bits} 8, "
        "where given: b is quantised along K, and each row of a is rounded to 255 steps of its own "
        "(ops/quantized/quantized_rows.h) before it is multiplied";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.accumulator_dtype = {"dtype"};
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      const bool int8 = c.in[0].dtype == DType::i8;
      const bool integers = is_integer(c.in[0].dtype) && bytes_of(c.in[0].dtype) >= 4;
      if (!int8 && !integers) expect_float(c, 0, "a");
      expect_same_dtype(c, 0, 1);
      MatmulDims dims = matmul_dims(c, c.in[0].shape, c.in[1].shape, c.attr<bool>("transpose_a"),
                                    c.attr<bool>("transpose_b"));
      Shape y = dims.batch;
      y.push_back(dims.m);
      y.push_back(dims.n);
      if (const int64_t bits = c.attrs.get_or<int64_t>("left_bits", 0); bits != 0) {
        const Quantized& q = c.in[1].storage.quantized;
        if (bits != 8 || c.attr<bool>("transpose_a") || q.bits == 0 ||
            q.axis != (c.attr<bool>("transpose_b") ? 1 : 0))
          c.fail("left_bits must be 8, with b quantised along K and a not transposed; got {}",
                 bits);
        const int64_t terms = q.group > 0 || dims.k.is_symbol() ? q.group : dims.k.size();
        if (terms > kMostQuantizedTerms)
          c.fail("a sum of {} products of 8 bits may not fit i32: at most {}", terms,
                 kMostQuantizedTerms);
      }
      if (integers) return std::vector<Type>{{c.in[0].dtype, y}};
      if (!int8) return std::vector<Type>{{result_dtype(c), y}};
      if (c.attrs.get_or<DType>("dtype", DType::i32) != DType::i32)
        c.fail("the product of i8 is i32; got dtype {}", name_of(c.attr<DType>("dtype")));
      if (!dims.k.is_symbol() && dims.k.size() > kMostQuantizedTerms)
        c.fail("a sum of {} products of i8 may not fit i32: at most {}", dims.k.size(),
               kMostQuantizedTerms);
      return std::vector<Type>{{DType::i32, y}};
    };
    d.evaluate = [](const EvalContext& c) {
      const bool ta = c.node.attrs.get<bool>("transpose_a");
      const bool tb = c.node.attrs.get<bool>("transpose_b");
      if (c.node.attrs.get_or<int64_t>("left_bits", 0) == 0)
        return matmul_loops(*c.in[0], *c.in[1], ta, tb, c.out[0]);
      RefTensor a = *c.in[0];
      const auto k = static_cast<size_t>(a.type.shape.size(-1));
      for (size_t i = 0; k > 0 && i < a.data.size(); i += k)
        quantize_row_to_8_bits(std::span(a.data).subspan(i, k));
      matmul_loops(a, *c.in[1], ta, tb, c.out[0]);
    };
    d.vjp = [](VjpContext& c) {
      const bool ta = c.attrs().get<bool>("transpose_a"), tb = c.attrs().get<bool>("transpose_b");
      Value a = c.operand(0), b = c.operand(1), dy = cast(c.grad(0), c.operand(0).dtype());
      if (c.wants(0)) {
        Value da = ta ? matmul(b, dy, tb, true) : matmul(dy, b, false, !tb);
        c.set(0, sum_to(da, a.shape()));
      }
      if (!c.wants(1)) return;
      if (b.shape().rank() == 2 && a.shape().rank() > 2 && !ta) {
        // One product over all rows instead of one per batch and a sum.
        Value rows_a = ops::rows_of(a), rows_dy = ops::rows_of(dy);
        c.set(1, tb ? matmul(rows_dy, rows_a, true, false) : matmul(rows_a, rows_dy, true, false));
        return;
      }
      Value db = tb ? matmul(dy, a, true, ta) : matmul(a, dy, !ta, false);
      c.set(1, sum_to(db, b.shape()));
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return matmul_cost(n, in, n.attrs.get<bool>("transpose_a"));
    };
    d.samples = [] {
      std::vector<Sample> out;
      auto add = [&](Shape a, Shape b, bool ta, bool tb) {
        out.push_back({{tensor(std::move(a)), tensor(std::move(b))},
                       {{"transpose_a", ta}, {"transpose_b", tb}}});
      };
      add({5, 7}, {7, 3}, false, false);
      add({7, 5}, {7, 3}, true, false);
      add({5, 7}, {3, 7}, false, true);
      add({7, 5}, {3, 7}, true, true);
      add({2, 3, 4, 8}, {2, 3, 8, 5}, false, false);
      add({2, 3, 4, 8}, {2, 3, 5, 8}, false, true);
      add({2, 3, 8, 4}, {2, 3, 8, 5}, true, false);
      add({2, 6, 8}, {8, 5}, false, false);
      add({2, 6, 8}, {5, 8}, false, true);
      add({3, 1, 4, 8}, {2, 8, 5}, false, false);
      add({1, 33}, {33, 65}, false, false);
      add({19, 33}, {33, 1}, false, false);
      Sample widened{{tensor({5, 7}, -1, 1, DType::bf16), tensor({3, 7}, -1, 1, DType::bf16)},
                     {{"transpose_a", false}, {"transpose_b", true}, {"dtype", DType::f32}}};
      out.push_back(std::move(widened));
      for (const auto& [rows, columns, transposed] :
           {std::tuple(3, 96, false), {1, 127, false}, {40, 127, true}, {3, 33, true}})
        out.push_back({{tensor({rows, 64}, -1, 1, DType::bf16),
                        stored_right(64, columns, transposed, DType::bf16)},
                       {{"transpose_a", false}, {"transpose_b", transposed}}});
      for (const auto& [rows, columns, transposed] :
           {std::tuple(3, 96, false), {1, 127, false}, {40, 127, true}})
        out.push_back({{tensor({rows, 50}), stored_right(50, columns, transposed, DType::f32)},
                       {{"transpose_a", false}, {"transpose_b", transposed}}});
      for (const Quantized& q : {Quantized{8, 0, 0}, {8, 0, 64}, {4, 0, 32}, {4, 0, 0}})
        for (const auto& [rows, columns, terms, transposed] : {std::tuple(1, 96, 64, false),
                                                               {3, 33, 70, true},
                                                               {14, 40, 136, true},
                                                               {5, 33, 777, false}})
          for (const bool left : {false, true}) {
            Sample s{{tensor({rows, terms}), stored_right(terms, columns, transposed, DType::f32)},
                     {{"transpose_a", false}, {"transpose_b", transposed}}};
            s.in[1].type.storage.quantized = {q.bits, transposed ? 1 : 0, q.group};
            if (left) s.attrs.set("left_bits", int64_t{8});
            out.push_back(std::move(s));
          }
      for (const bool transposed : {false, true}) {
        const Shape b = transposed ? Shape{37, 130} : Shape{130, 37};
        out.push_back({{tensor({19, 130}, -128, 127, DType::i8), tensor(b, -128, 127, DType::i8)},
                       {{"transpose_a", false}, {"transpose_b", transposed}}});
      }
      for (const auto& [rows, columns, terms, transposed] : {std::tuple(1, 96, 64, false),
                                                             {3, 33, 70, true},
                                                             {14, 40, 137, true},
                                                             {5, 33, 777, false}}) {
        out.push_back({{tensor({rows, terms}, -128, 127, DType::i8),
                        stored_right(terms, columns, transposed, DType::i8)},
                       {{"transpose_a", false}, {"transpose_b", transposed}}});
        out.back().in[1].low = -128;
        out.back().in[1].high = 127;
      }
      for (const DType t : {DType::i32, DType::i64, DType::u32})
        out.push_back({{tensor({2, 3, 5}, 0, 99, t), tensor({5, 4}, 0, 99, t)},
                       {{"transpose_a", false}, {"transpose_b", false}}});
      return out;
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "linear";
    d.stored_operands = 0b010;
    d.product = {.adds_bias = true};
    d.doc =
        "y = x w + b. x: [..., K], w: [K, N], b: [N] of any floating dtype, y: [..., N] of {dtype} "
        "where given, else of x's; rounded once, after b was added. w may lie in any storage";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b011;
    d.accumulator_dtype = {"dtype"};
    d.infer = [](const InferContext& c) {
      expect_operands(c, 3);
      expect_float(c, 0, "x");
      expect_same_dtype(c, 0, 1);
      expect_float(c, 2, "b");
      const Shape &x = c.in[0].shape, &w = c.in[1].shape, &b = c.in[2].shape;
      if (x.rank() < 2 || w.rank() != 2 || !(x[-1] == w[0]))
        c.fail("x must be [..., K] and w [K, N]; got {} and {}", x.str(), w.str());
      if (b.rank() != 1 || !(b[0] == w[1])) c.fail("b must be [{}]; got {}", w[1].str(), b.str());
      Shape y = x;
      y[-1] = w[1];
      return std::vector<Type>{{result_dtype(c), y}};
    };
    d.decompose = [](const DecomposeContext& c) {
      const DType narrow = c.node.results[0].dtype;
      const DType wide = narrow == DType::f64 ? narrow : DType::f32;
      Attrs attrs{{"transpose_a", false}, {"transpose_b", false}};
      if (wide != c.in[0].dtype()) attrs.set("dtype", wide);
      Value product = call1(Op::matmul, {c.in[0], c.in[1]}, std::move(attrs));
      return std::vector<Value>{cast(product + cast(c.in[2], wide), narrow)};
    };
    d.vjp = [](VjpContext& c) {
      Value x = c.operand(0), w = c.operand(1), dy = cast(c.grad(0), c.operand(0).dtype());
      if (c.wants(0)) c.set(0, matmul(dy, w, false, true));
      if (c.wants(1)) c.set(1, matmul(ops::rows_of(x), ops::rows_of(dy), true, false));
      if (c.wants(2)) c.set(2, sum(ops::rows_of(cast(c.grad(0), c.operand(2).dtype())), {0}));
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      Cost cost = matmul_cost(n, in, false);
      cost.flops += elements(n.results[0]);
      return cost;
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({5, 7}), tensor({7, 3}), tensor({3})}, {}},
          {{tensor({2, 9, 33}), tensor({33, 65}), tensor({65})}, {}},
          {{tensor({1, 16}), tensor({16, 48}), tensor({48})}, {}},
          {{tensor({3, 16}, -1, 1, DType::bf16), tensor({16, 9}, -1, 1, DType::bf16), tensor({9})},
           {}},
          {{tensor({2, 40, 64}, -1, 1, DType::bf16), stored_right(64, 32, false, DType::bf16),
            tensor({32})},
           {}},
          {{tensor({2, 9, 50}), stored_right(50, 96, false, DType::f32), tensor({96})}, {}}};
    };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
