// Cross-entropy of logits against class ids, one loss per row, and its derivative.

#include "ops/support.h"

namespace brrr {
namespace {

void check_rows(const InferContext& c, size_t i, const char* what, const Shape& rows) {
  if (c.in[i].shape != rows)
    c.fail("{} must be {}, one per row of logits; got {}", what, rows.str(), c.in[i].str());
}

Value is_target(Value logits, Value targets) {
  return equal(iota(*logits.graph, {logits.shape()[-1]}, 0, targets.dtype()), ops::column(targets));
}

Value counts(const DecomposeContext& c, Value targets) {
  return not_equal(targets,
                   scalar(c.graph, c.node.attrs.get<int64_t>("ignore_index"), targets.dtype()));
}

std::vector<Sample> rows_samples(bool backward) {
  std::vector<Sample> out;
  for (const Shape& s : {Shape{3, 37}, Shape{2, 5, 64}, Shape{7, 300}}) {
    Shape rows = s.without_last(1);
    Sample sample{{ops::tensor(s, -3, 3), ops::tensor(rows, -1, 36, DType::i32)},
                  {{"ignore_index", int64_t{-1}}}};
    if (backward) {
      sample.in.push_back(ops::tensor(rows, 3, 5));
      sample.in.push_back(ops::tensor(rows));
    }
    out.push_back(std::move(sample));
  }
  return out;
}

}  // namespace

CrossEntropy cross_entropy(Value logits, Value targets, int64_t ignore_index) {
  const Value in[] = {logits, targets};
  const auto out = call(Op::cross_entropy, in, {{"ignore_index", ignore_index}});
  return {out[0], out[1]};
}

namespace ops {

std::vector<OpDef> cross_entropy_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "cross_entropy";
    d.loss = {.gives_losses = true};
    d.doc =
        "lse = log sum e^logits over the last axis; loss = lse - logits[target], 0 where target == "
        "{ignore_index}. logits: [..., V]; targets: [...] i32; losses, lse: [...]; f32 "
        "accumulation";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      expect_float(c, 0, "logits");
      expect_integer(c, 1, "targets");
      if (c.in[0].shape.rank() < 1) c.fail("logits need an axis; got {}", c.in[0].str());
      c.attr<int64_t>("ignore_index");
      const Shape rows = leading(c.in[0].shape);
      check_rows(c, 1, "targets", rows);
      return std::vector<Type>{{c.in[0].dtype, rows}, {c.in[0].dtype, rows}};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value logits = c.in[0], targets = c.in[1];
      Value top = max(logits, {-1}, true);
      const Shape rows = targets.shape();
      // The loss from centred logits: of large ones lse has no digits left for the logarithm.
      Value centred = logits - top, log_total = log(sum(exp(centred), {-1}));
      Value zero = scalar(c.graph, 0, logits.dtype());
      Value picked = sum(where(is_target(logits, targets), centred, zero), {-1});
      return std::vector<Value>{where(counts(c, targets), log_total - picked, zero),
                                log_total + reshape(top, rows)};
    };
    d.vjp = [](VjpContext& c) {
      Value logits = c.operand(0), dx;
      if (c.has_grad(0)) {
        const Value in[] = {logits, c.operand(1), c.result(1), c.grad(0)};
        dx = call(Op::cross_entropy_grad, in, c.attrs())[0];
      }
      if (c.has_grad(1)) {  // d lse / d logits = softmax(logits)
        Value term = column(c.grad(1)) * softmax(logits);
        dx = dx.graph == nullptr ? term : dx + term;
      }
      c.set(0, dx);
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 4 * elements(in[0]));
    };
    d.samples = [] { return rows_samples(false); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "cross_entropy_grad";
    d.loss = LossTrait{};
    d.is_gradient = true;
    d.doc =
        "dlogits = dlosses (e^(logits - lse) - onehot(target)), 0 where target == {ignore_index}. "
        "Where lse is so large that its last digit matters, kernels take it from the logits again. "
        "logits, dlogits: [..., V]; targets: [...] i32; lse, dlosses: [...]";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 4);
      expect_float(c, 0, "logits");
      expect_integer(c, 1, "targets");
      if (c.in[0].shape.rank() < 1) c.fail("logits need an axis; got {}", c.in[0].str());
      c.attr<int64_t>("ignore_index");
      const Shape rows = leading(c.in[0].shape);
      check_rows(c, 1, "targets", rows);
      check_rows(c, 2, "lse", rows);
      check_rows(c, 3, "dlosses", rows);
      expect_same_dtype(c, 0, 2);
      expect_same_dtype(c, 0, 3);
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value logits = c.in[0], targets = c.in[1];
      Value zero = scalar(c.graph, 0, logits.dtype());
      Value p = exp(logits - column(c.in[2]));
      Value onehot = cast(is_target(logits, targets), logits.dtype());
      Value scale = where(counts(c, targets), c.in[3], zero);
      return std::vector<Value>{column(scale) * (p - onehot)};
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 4 * elements(in[0]));
    };
    d.samples = [] { return rows_samples(true); };
    d.in_place = {{0, 0}};
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
