// The loss head: the product with the output weights and its cross-entropy in one op, so that a
// kernel need not hold all B T x V logits. The decompositions do.

#include <optional>

#include "ops/support.h"

namespace brrr {
namespace {

bool transposed(const Attrs& attrs) { return attrs.get<bool>("transpose_w"); }
bool is_stored(const Type& w) { return !w.storage.is_plain(); }

/// The operands of a gradient: with a w in another storage than rows it also takes w as the
/// gradient of x is multiplied by it.
void expect_gradient_operands(const InferContext& c, size_t count) {
  const bool twice = c.in.size() > 1 && is_stored(c.in[1]);
  ops::expect_operands(c, count + twice);
  if (!twice) return;
  const Type &w = c.in[1], &again = c.in.back();
  if (again.dtype != w.dtype || again.shape != w.shape)
    c.fail("the last operand must repeat w, {}; got {}", w.str(), again.str());
}

// Shape of one number per row of x.
Shape check_head(const InferContext& c) {
  ops::expect_float(c, 0, "x");
  ops::expect_same_dtype(c, 0, 1);
  ops::expect_integer(c, 2, "targets");
  c.attr<int64_t>("ignore_index");
  const bool tw = c.attr<bool>("transpose_w");
  const Shape& x = c.in[0].shape;
  const Shape& w = c.in[1].shape;
  if (x.rank() < 2 || w.rank() != 2 || !(x[-1] == w[tw ? 1 : 0]))
    c.fail("x must be [..., K] and w {}; got {} and {}", tw ? "[V, K]" : "[K, V]", x.str(),
           w.str());
  const Shape rows = ops::leading(x);
  if (c.in[2].shape != rows)
    c.fail("targets must be {}, one per row of x; got {}", rows.str(), c.in[2].str());
  return rows;
}

void check_statistic(const InferContext& c, size_t i, const char* what) {
  const Type wanted{ops::work_dtype(c.in[0].dtype), ops::leading(c.in[0].shape)};
  if (!(c.in[i] == wanted)) c.fail("{} must be {}; got {}", what, wanted.str(), c.in[i].str());
}

DType gradient_dtype(const InferContext& c, const char* name) {
  const DType dtype = c.attrs.get_or<DType>(name, c.in[0].dtype);
  if (!is_float(dtype)) c.fail("{} must be a floating dtype; got {}", name, name_of(dtype));
  return dtype;
}
Type dx_type(const InferContext& c) { return {gradient_dtype(c, "dx_dtype"), c.in[0].shape}; }
Type dw_type(const InferContext& c) { return {gradient_dtype(c, "dw_dtype"), c.in[1].shape}; }

/// Whether the gradient of w is a result: not where w is not trained.
bool has_dw(const Attrs& attrs) { return attrs.get_or<bool>("dw", true); }

bool rounds(const Attrs& attrs) { return attrs.get_or<bool>("round_logits", false); }

Attrs head_attrs(int64_t ignore_index, bool transpose_w, bool round_logits) {
  Attrs attrs{{"ignore_index", ignore_index}, {"transpose_w", transpose_w}};
  if (round_logits) attrs.set("round_logits", true);
  return attrs;
}

Value logits_of(const Attrs& attrs, Value x, Value w) {
  const DType work = ops::work_dtype(x.dtype()), dtype = rounds(attrs) ? x.dtype() : work;
  return cast(matmul(x, w, false, transposed(attrs), dtype), work);
}

std::vector<Value> head_gradients(const DecomposeContext& c) {
  const Attrs& attrs = c.node.attrs;
  Value x = c.in[0], lse = c.in[3];
  Value logits = logits_of(attrs, x, c.in[1]);
  const Value in[] = {logits, c.in[2], lse, c.in[4]};
  Value dlogits =
      call(Op::cross_entropy_grad, in, {{"ignore_index", attrs.get<int64_t>("ignore_index")}})[0];
  if (attrs.get<bool>("dlse"))  // d lse / d logits = softmax(logits)
    dlogits = dlogits + ops::column(c.in[5]) * exp(logits - ops::column(lse));
  dlogits = cast(dlogits, x.dtype());
  const bool tw = transposed(attrs);
  const Value w = is_stored(c.in[1].type()) ? c.in.back() : c.in[1];
  Value dx = matmul(dlogits, w, false, !tw, c.node.results[0].dtype);
  if (!has_dw(attrs)) return {dx};
  Value rows = ops::rows_of(dlogits), x_rows = ops::rows_of(x);
  Value dw = tw ? matmul(rows, x_rows, true, false, c.node.results[1].dtype)
                : matmul(x_rows, rows, true, false, c.node.results[1].dtype);
  return {dx, dw};
}

void head_vjp(VjpContext& c) {
  BRRR_CHECK(!is_stored(c.operand(1).type()), "a loss head of stored weights has no gradient");
  Value x = c.operand(0), lse = c.result(1);
  std::vector<Value> in{x, c.operand(1), c.operand(2), lse};
  in.push_back(c.has_grad(0) ? c.grad(0) : full(c.graph, lse.shape(), 0, lse.dtype()));
  if (c.has_grad(1)) in.push_back(c.grad(1));
  Attrs attrs = c.attrs();
  attrs.set("dlse", c.has_grad(1));
  if (!c.wants(1)) attrs.set("dw", false);
  const auto grads = call(Op::linear_cross_entropy_grad, in, attrs);
  for (size_t i : {size_t{0}, size_t{1}})
    if (c.wants(i)) c.set(i, grads[i]);
}

// What each of `products` passes over x, w and the logits costs; one of them gives dw.
auto cost_of_products(double all) {
  return [all](const Node& n, std::span<const Type> in) {
    const double products = has_dw(n.attrs) ? all : all - 1;
    const auto classes = static_cast<double>(in[1].shape.size(transposed(n.attrs) ? 0 : 1));
    return ops::streaming_cost(n, in, products * 2 * ops::elements(in[0]) * classes);
  };
}

enum class Head { forward, gradient, step };

std::vector<Sample> head_samples(Head head) {
  struct Case {
    Shape x;
    int64_t classes;
    bool transpose_w, dlse;
    DType dtype = DType::f32;
    std::optional<DType> dw_dtype = std::nullopt;
    bool round_logits = false;
    bool stored = false;
    bool has_dw = true;
  };
  std::vector<Sample> out;
  for (const Case& s :
       {Case{{3, 8}, 11, true, true}, Case{{2, 5, 7}, 13, false, false},
        Case{{6, 1}, 37, true, false}, Case{{1, 3}, 1, false, true},
        Case{{4, 9}, 19, true, false, DType::bf16},
        Case{{2, 3, 9}, 19, true, false, DType::f32, DType::bf16},
        Case{{5, 4}, 21, false, false, DType::f32, std::nullopt, true},
        Case{{4, 32}, 64, true, false, DType::bf16, std::nullopt, false, true},
        Case{{3, 5}, 17, true, false, DType::f32, std::nullopt, false, false, false}}) {
    // Gradients of bf16 operands round twice: the kernels' own test has a bound for that.
    if (head != Head::forward && s.dtype != DType::f32) continue;
    if (head == Head::forward && !s.has_dw) continue;
    const Dim k = s.x[-1];
    const Shape rows = ops::leading(s.x);
    Sample sample{
        {ops::tensor(s.x, -1, 1, s.dtype),
         ops::tensor(s.transpose_w ? Shape{s.classes, k} : Shape{k, s.classes}, -1, 1, s.dtype),
         ops::tensor(rows, -1, static_cast<double>(s.classes), DType::i32)},
        head_attrs(-1, s.transpose_w, s.round_logits)};
    if (head == Head::gradient) {
      sample.in.push_back(ops::tensor(rows, 2, 4));
      sample.attrs.set("dlse", s.dlse);
    }
    if (head != Head::forward) {
      sample.in.push_back(ops::tensor(rows));
      if (s.dw_dtype) sample.attrs.set("dw_dtype", *s.dw_dtype);
      if (!s.has_dw) sample.attrs.set("dw", false);
    }
    if (head == Head::gradient && s.dlse) sample.in.push_back(ops::tensor(rows));
    if (s.stored) sample.in[1] = ops::stored_right(k.size(), s.classes, s.transpose_w, s.dtype);
    out.push_back(std::move(sample));
  }
  return out;
}

constexpr const char* kHeadOperandsDoc =
    " x: [..., K], w: [V, K] where {transpose_w}, else [K, V]; targets: [...] i32; losses, lse: "
    "[...] f32 (f64 of f64). w may lie in any storage";
constexpr const char* kGradientsDoc =
    "; dx like x, dw like w, of {dx_dtype} and {dw_dtype} where given; no dw where {dw} is false. "
    "dlogits are rounded to the "
    "dtype of x; all else in f32 or wider. If w is not stored in rows, the last operand is a "
    "second "
    "copy of w in the layout that the product of dlogits and w reads, possibly the same layout";

}  // namespace

CrossEntropy linear_cross_entropy(Value x, Value w, Value targets, bool transpose_w,
                                  int64_t ignore_index, bool round_logits) {
  const Value in[] = {x, w, targets};
  const auto out =
      call(Op::linear_cross_entropy, in, head_attrs(ignore_index, transpose_w, round_logits));
  return {out[0], out[1]};
}

namespace ops {

std::vector<OpDef> linear_cross_entropy_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "linear_cross_entropy";
    d.loss = {.from_product = true, .gives_losses = true};
    d.stored_operands = 0b010;
    d.doc = std::string(
                "cross_entropy of the logits x op(w), which are rounded to the dtype of x "
                "where {round_logits} says so and need never be held at once.") +
            kHeadOperandsDoc;
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b011;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 3);
      const Type row{ops::work_dtype(c.in[0].dtype), check_head(c)};
      return std::vector<Type>{row, row};
    };
    d.decompose = [](const DecomposeContext& c) {
      const auto out = cross_entropy(logits_of(c.node.attrs, c.in[0], c.in[1]), c.in[2],
                                     c.node.attrs.get<int64_t>("ignore_index"));
      return std::vector<Value>{out.losses, out.lse};
    };
    d.vjp = head_vjp;
    d.cost = cost_of_products(1);
    d.samples = [] { return head_samples(Head::forward); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "linear_cross_entropy_grad";
    d.loss = {.from_product = true};
    d.stored_operands = ~0b01u;  // w, and perhaps the last
    d.is_gradient = true;
    d.doc = std::string(
                "The gradients of linear_cross_entropy, from logits computed again: with "
                "dlogits = dlosses (e^(logits - lse) - onehot(target)), 0 where target == "
                "{ignore_index}, plus where {dlse} says so dlse e^(logits - lse), dx = "
                "dlogits op(w)ᵀ and dw = xᵀ dlogits, transposed as w is.") +
            kHeadOperandsDoc + "; dlosses, {dlse}: as lse" + kGradientsDoc;
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b011;
    d.accumulator_dtype = {"dx_dtype", "dw_dtype"};
    d.infer = [](const InferContext& c) {
      const bool dlse = c.attr<bool>("dlse");
      expect_gradient_operands(c, 5 + dlse);
      check_head(c);
      check_statistic(c, 3, "lse");
      check_statistic(c, 4, "dlosses");
      if (dlse) check_statistic(c, 5, "dlse");
      if (!c.attrs.get_or<bool>("dw", true)) return std::vector<Type>{dx_type(c)};
      return std::vector<Type>{dx_type(c), dw_type(c)};
    };
    d.decompose = head_gradients;
    d.cost = cost_of_products(3);
    d.samples = [] { return head_samples(Head::gradient); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "linear_cross_entropy_step";
    d.loss = {.from_product = true, .gives_losses = true};
    d.is_gradient = true;
    d.stored_operands = ~0b01u;
    d.doc = std::string(
                "linear_cross_entropy and its gradients together, where dlosses depends on "
                "neither of its results: the logits are computed once.") +
            kHeadOperandsDoc + "; dlosses: as losses" + kGradientsDoc;
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.autocast_operands = 0b011;
    d.accumulator_dtype = {nullptr, nullptr, "dx_dtype", "dw_dtype"};
    d.infer = [](const InferContext& c) {
      expect_gradient_operands(c, 4);
      const Type row{ops::work_dtype(c.in[0].dtype), check_head(c)};
      check_statistic(c, 3, "dlosses");
      std::vector<Type> results{row, row, dx_type(c)};
      if (c.attrs.get_or<bool>("dw", true)) results.push_back(dw_type(c));
      return results;
    };
    d.decompose = [](const DecomposeContext& c) {
      const Attrs& a = c.node.attrs;
      Attrs attrs = head_attrs(a.get<int64_t>("ignore_index"), transposed(a), rounds(a));
      const auto head = call(Op::linear_cross_entropy, c.in.first(3), attrs);
      std::vector<Value> in{c.in[0], c.in[1], c.in[2], head[1]};
      in.insert(in.end(), c.in.begin() + 3, c.in.end());
      attrs = c.node.attrs;
      attrs.set("dlse", false);
      const auto grads = call(Op::linear_cross_entropy_grad, in, attrs);
      std::vector<Value> results{head[0], head[1]};
      results.insert(results.end(), grads.begin(), grads.end());
      return results;
    };
    d.cost = cost_of_products(3);
    d.samples = [] { return head_samples(Head::step); };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
