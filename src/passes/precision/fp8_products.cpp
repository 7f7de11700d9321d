// Products of blocks in 8 bits, as a pass over the differentiated graph: products of 16 bits become
// products of 8, whose operands are quantised with one scale for a tensor, found from the tensor as
// it is (current scaling). What is quantised, and its transposed copy, are ordinary nodes: `fuse`
// makes them part of what computes their operand. An operand that is cheap to compute again (GELU)
// is: once for its scale, once for its copies, and never written in 16 bits.

#include <map>
#include <set>

#include "base/human.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

constexpr int64_t kMultiple = 16;  // of every size: what matrix units take of 8 bits

bool is_low(DType t) { return t == DType::bf16 || t == DType::f16; }
bool fits(int64_t size) { return size > 0 && size % kMultiple == 0; }

class Quantiser {
 public:
  explicit Quantiser(const Graph& in) : in_(in), rewriter_(in), readers_(in.size()) {
    for (NodeId id = 0; id < in.size(); ++id)
      for (const ValueId& v : in.node(id).operands) readers_[v.node].push_back(id);
    for (const Output& o : in.outputs()) outputs_.insert(o.value.node);
  }

  Graph run(Notes* notes) {
    int other_sizes = 0, of_head = 0;
    for (NodeId id = 0; id < in_.size(); ++id)
      if (is_candidate(id) && !is_backward(id) && gives_logits(id)) heads_.insert(in_.path_of(id));
    for (NodeId id = 0; id < in_.size(); ++id) {
      if (!is_candidate(id)) continue;
      if (heads_.contains(in_.path_of(id)))
        ++of_head;
      else if (const Plan p = plan_of(id); fits(p.m) && fits(p.n) && fits(p.k))
        add(id, p);
      else
        ++other_sizes;
    }
    for (NodeId id = 0; id < in_.size(); ++id) {
      rewriter_.enter_scope_of(id);
      if (const auto at = plans_.find(id); at != plans_.end())
        multiply(id, at->second);
      else
        rewriter_.copy(id);
    }
    if (notes) {
      notes->push_back(fmt::format("{} in 8 bits, of {}", counted(std::ssize(plans_), "product"),
                                   counted(std::ssize(needs_), "tensor")));
      if (of_head > 0) notes->push_back(fmt::format("{} of the head stay in 16", of_head));
      if (other_sizes > 0)
        notes->push_back(fmt::format("{} stay in 16: their sizes are not multiples of {}",
                                     other_sizes, kMultiple));
    }
    return rewriter_.finish();
  }

 private:
  // y [m, n] = op(a) op(b), both stored by rows.
  struct Plan {
    ValueId a, b;
    bool transpose_a = false, transpose_b = false;
    int64_t m = 0, n = 0, k = 0;
  };
  struct Need {
    bool rows = false, turned = false;
  };
  struct Copies {
    Value scale, rows, turned;
  };

  /// A product of 16 bits whose b is one matrix.
  bool is_candidate(NodeId id) const {
    const Node& node = in_.node(id);
    const auto form = product_form(node);
    if (!form) return false;
    const Type &a = in_.type(node.operands[0]), &b = in_.type(node.operands[1]);
    if (!is_low(a.dtype) || !is_low(b.dtype) || b.shape.rank() != 2) return false;
    return !form->transpose_a || a.shape.rank() == 2;
  }

  bool is_backward(NodeId id) const { return in_.phase(id) == Phase::backward; }

  /// Whether the product's result is read by the loss or from outside, or its weight is a table.
  bool gives_logits(NodeId id) const {
    const ValueId w = root(in_.node(id).operands[1]);
    for (NodeId reader : readers_[w.node])
      if (in_.node(reader).op->part == OpDef::Part::rows) return true;
    return reaches_outside(id);
  }
  bool reaches_outside(NodeId id) const {
    if (outputs_.contains(id)) return true;
    for (NodeId reader : readers_[id]) {
      const OpDef& op = *in_.node(reader).op;
      if (op.loss && op.loss->gives_losses && !op.loss->from_product) return true;
      const bool passes_on =
          op.id == Op::cast || op.id == Op::reshape || op.part == OpDef::Part::range;
      if (passes_on && reaches_outside(reader)) return true;
    }
    return false;
  }

  /// What is quantised for operand v: the tensor before reshapes that keep its rows, and a
  /// parameter before it was rounded to 16 bits.
  ValueId root(ValueId v) const {
    for (;;) {
      const Node& node = in_.node(v.node);
      if (node.operands.empty()) return v;
      const ValueId from = node.operands[0];
      const Shape &x = in_.type(from).shape, &y = in_.type(v).shape;
      const bool keeps_rows = is(node, Op::reshape) && x.rank() >= 2 && x[-1] == y[-1];
      const bool rounds_parameter = is(node, Op::cast) && in_.is_input(from.node) &&
                                    in_.input_kind(from.node) == InputKind::parameter;
      if (!keeps_rows && !rounds_parameter) return v;
      v = from;
    }
  }

  Plan plan_of(NodeId id) const {
    const Node& node = in_.node(id);
    const ProductForm form = *product_form(node);
    Plan p;
    p.a = root(node.operands[0]);
    p.b = root(node.operands[1]);
    p.transpose_a = form.transpose_a;
    p.transpose_b = form.transpose_b;
    const Shape &a = in_.type(node.operands[0]).shape, &b = in_.type(node.operands[1]).shape;
    p.k = a.size(p.transpose_a ? -2 : -1);
    p.m = p.k == 0 ? 0 : a.elements() / p.k;
    p.n = b.size(p.transpose_b ? -2 : -1);
    return p;
  }
  // What is multiplied lies along k: a as it is stored, b transposed, or the other way round.
  void add(NodeId id, const Plan& p) {
    plans_[id] = p;
    (p.transpose_a ? needs_[p.a].turned : needs_[p.a].rows) = true;
    (p.transpose_b ? needs_[p.b].rows : needs_[p.b].turned) = true;
  }

  /// Gradients have outliers and need range, everything else precision.
  DType dtype_of(ValueId v) const { return is_backward(v.node) ? DType::f8e5m2 : DType::f8e4m3; }

  static Value by_rows(Value x) {
    if (x.shape().rank() == 2) return x;
    const int64_t c = x.shape().size(-1);
    return reshape(x, {x.shape().elements() / c, c});
  }

  const Copies& copies(ValueId v) {
    const auto [at, fresh] = copies_.try_emplace(v);
    Copies& c = at->second;
    if (!fresh) return c;
    const Value x = rewriter_.map(v);
    const DType dtype = dtype_of(v);
    c.scale = quantize_scale(by_rows(x), dtype);
    Value again = x;
    if (const Node& node = in_.node(v.node); node.op->is_activation)
      again = call1(node.op->id, {after(rewriter_.map(node.operands[0]), c.scale)}, node.attrs);
    c.rows = quantize(by_rows(again), c.scale, dtype);
    if (needs_.at(v).turned) c.turned = transpose(c.rows, {1, 0});
    return c;
  }

  void multiply(NodeId id, const Plan& p) {
    const Node& node = in_.node(id);
    const Copies &a = copies(p.a), &b = copies(p.b);
    std::vector<Value> operands{p.transpose_a ? a.turned : a.rows,
                                p.transpose_b ? b.rows : b.turned, a.scale, b.scale};
    const bool has_bias = product_form(node)->has_bias;
    if (has_bias) operands.push_back(rewriter_.map(node.operands[2]));
    // Sums of gradients keep all bits of f32, as in NVIDIA's Transformer Engine.
    const Value y = call(Op::scaled_matmul, operands,
                         {{"dtype", node.results[0].dtype},
                          {"fast_accumulation", !is_backward(id)},
                          {"bias", has_bias}})[0];
    const Shape& shape = node.results[0].shape;
    rewriter_.bind({id, 0}, shape == y.shape() ? y : reshape(y, shape));
  }

  const Graph& in_;
  Rewriter rewriter_;
  std::vector<std::vector<NodeId>> readers_;
  std::set<NodeId> outputs_;
  std::set<std::string> heads_;  // scopes
  std::map<NodeId, Plan> plans_;
  std::map<ValueId, Need> needs_;
  std::map<ValueId, Copies> copies_;
};

}  // namespace

Graph fp8_products(const Graph& in, Notes* notes) { return Quantiser(in).run(notes); }

}  // namespace brrr
