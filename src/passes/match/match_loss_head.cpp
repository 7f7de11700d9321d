// The product with the output weights and the cross-entropy that reads it become one node, so that
// the logits need not be written out. It runs before differentiation: the backward is that node's
// vjp. join_loss_head then makes forward and backward one node, too.

#include <algorithm>

#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// The product behind the logits of a cross_entropy, or why there is none.
struct Head {
  ValueId product;
  std::string reason;  // empty: it is one
};

class HeadMatcher {
 public:
  explicit HeadMatcher(const Graph& g) : g_(g), uses_(count_uses(g)) {}

  Head match(const Node& loss) const {
    Head head{loss.operands[0], ""};
    head.reason = explain(head.product);
    return head;
  }

 private:
  const Node& node(ValueId v) const { return g_.node(v.node); }
  const Type& type(ValueId v) const { return g_.type(v); }

  // Follows `v` from the logits to their product.
  std::string explain(ValueId& v) const {
    const DType dtype = type(v).dtype;
    for (;; v = node(v).operands[0]) {
      if (uses_[v.node][v.port] > 1) return "its logits are used elsewhere, too";
      const Node& n = node(v);
      if (is(n, Op::matmul)) break;
      if (!only_moves_rows(n) && !only_widens(n))
        return "its logits come from " + n.op->name + ", not from a product";
    }
    const Node& product = node(v);
    const Shape &x = type(product.operands[0]).shape, &w = type(product.operands[1]).shape;
    const DType from = type(product.operands[0]).dtype;
    if (product.attrs.get<bool>("transpose_a")) return "the product reads its rows transposed";
    if (w.rank() != 2) return "its weights are not a matrix but " + w.str();
    if (!x.is_static() || !w.is_static()) return "a shape is not known yet";
    if (dtype != (from == DType::f64 ? DType::f64 : DType::f32))
      return fmt::format("its logits are {}", name_of(dtype));
    return "";
  }
  // A reshape that leaves the last axis, the classes, as it is.
  bool only_moves_rows(const Node& n) const {
    if (!is(n, Op::reshape)) return false;
    const Shape &from = type(n.operands[0]).shape, &to = n.results[0].shape;
    return from.is_static() && to.is_static() && from.rank() > 0 && to.rank() > 0 &&
           from[-1] == to[-1] && to.elements() > 0;
  }
  // A cast to f32 of sums that were rounded: the node does not round them.
  bool only_widens(const Node& n) const {
    return is(n, Op::cast) && n.results[0].dtype == DType::f32 &&
           bytes_of(type(n.operands[0]).dtype) == 2 && is_float(type(n.operands[0]).dtype);
  }

  const Graph& g_;
  std::vector<std::vector<uint32_t>> uses_;
};

void note_at(Notes* notes, const Graph& g, NodeId id, const std::string& text) {
  if (notes == nullptr) return;
  const std::string& scope = g.scope_of(id);
  notes->push_back(fmt::format("{}{}{}", scope, scope.empty() ? "" : ": ", text));
}

// -- join_loss_head
// ----------------------------------------------------------------------------

// A linear_cross_entropy and its gradient.
struct HeadAndGradient {
  NodeId head = kNoNode, grad = kNoNode;
};

class LossHeadJoiner {
 public:
  explicit LossHeadJoiner(const Graph& g) : g_(g) {}

  // The first pair that can be joined; what cannot be goes into `notes`.
  HeadAndGradient find(Notes* notes) const {
    for (NodeId id = 0; id < g_.size(); ++id) {
      if (!is(g_.node(id), Op::linear_cross_entropy)) continue;
      const NodeId grad = gradient_of(id);
      if (grad == kNoNode) continue;
      const std::string reason = explain({id, grad});
      if (reason.empty()) return {id, grad};
      note_at(notes, g_, id, "logits are recomputed for the backward pass: " + reason);
    }
    return {};
  }

  // The joined node stands in the place of the forward; what leads to dlosses moves before it.
  Graph join(const HeadAndGradient& pair) const {
    const ValueId dlosses = g_.node(pair.grad).operands[4];
    std::vector<bool> early(g_.size());
    early[dlosses.node] = true;
    for (NodeId id = dlosses.node + 1; id-- > 0;)
      if (early[id])
        for (const ValueId& v : g_.node(id).operands) early[v.node] = true;
    Rewriter r(g_);
    for (NodeId id = 0; id < g_.size(); ++id) {
      if (id == pair.head) {
        for (NodeId later = id; later < g_.size(); ++later)
          if (early[later]) r.copy(later);
        add_step(r, pair, dlosses);
      }
      const bool done = id == pair.head || id == pair.grad || (id > pair.head && early[id]);
      if (!done) r.copy(id);
    }
    return r.finish();
  }

 private:
  NodeId gradient_of(NodeId head) const {
    const Node& h = g_.node(head);
    for (NodeId id = head + 1; id < g_.size(); ++id) {
      const Node& n = g_.node(id);
      if (is(n, Op::linear_cross_entropy_grad) && n.operands[3] == ValueId{head, 1} &&
          std::equal(h.operands.begin(), h.operands.end(), n.operands.begin()) &&
          n.attrs.get<int64_t>("ignore_index") == h.attrs.get<int64_t>("ignore_index") &&
          n.attrs.get<bool>("transpose_w") == h.attrs.get<bool>("transpose_w") &&
          n.attrs.get_or<bool>("round_logits", false) ==
              h.attrs.get_or<bool>("round_logits", false))
        return id;
    }
    return kNoNode;
  }

  std::string explain(const HeadAndGradient& pair) const {
    const Node& grad = g_.node(pair.grad);
    if (grad.attrs.get<bool>("dlse")) return "the loss depends on lse";
    std::vector<bool> depends(g_.size());
    depends[pair.head] = true;
    for (NodeId id = pair.head + 1; id < g_.size(); ++id)
      for (const ValueId& v : g_.node(id).operands) depends[id] = depends[id] || depends[v.node];
    if (depends[grad.operands[4].node]) return "the gradient of its losses depends on them";
    return "";
  }

  void add_step(Rewriter& r, const HeadAndGradient& pair, ValueId dlosses) const {
    const Node& grad = g_.node(pair.grad);
    Attrs attrs;
    for (const auto& [name, value] : grad.attrs)
      if (name != "dlse") attrs.set(name, value);
    std::vector<Value> in = r.operands(pair.head);
    in.push_back(r.map(dlosses));
    r.enter_scope_of(pair.head);
    const auto step = call(Op::linear_cross_entropy_step, in, std::move(attrs));
    for (uint32_t port : {0u, 1u}) r.bind({pair.head, port}, step[port]);
    for (uint32_t port = 0; port < grad.results.size(); ++port)
      r.bind({pair.grad, port}, step[2 + port]);
  }

  const Graph& g_;
};

}  // namespace

Graph match_loss_head(const Graph& in, Notes* notes, bool round_logits) {
  const HeadMatcher matcher(in);
  const Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& loss = in.node(id);
    if (!is(loss, Op::cross_entropy)) return false;
    const Head head = matcher.match(loss);
    if (!head.reason.empty()) {
      note_at(notes, in, id, "the logits are written out: " + head.reason);
      return false;
    }
    const Node& product = in.node(head.product.node);
    r.enter_scope_of(head.product.node);  // the layer's name says more than "loss"
    Value x = r.map(product.operands[0]);
    Shape rows = in.type(loss.operands[0]).shape;
    rows[-1] = x.shape()[-1];
    if (rows.rank() == 1) rows.insert(0, Dim(1));
    Value targets = r.map(loss.operands[1]);
    const Shape per_row = targets.shape();
    if (per_row.rank() == 0) targets = reshape(targets, {1});
    if (x.shape() != rows) x = reshape(x, rows);
    const CrossEntropy y = linear_cross_entropy(
        x, r.map(product.operands[1]), targets, product.attrs.get<bool>("transpose_b"),
        loss.attrs.get<int64_t>("ignore_index"), round_logits);
    r.bind({id, 0}, per_row.rank() == 0 ? reshape(y.losses, {}) : y.losses);
    r.bind({id, 1}, per_row.rank() == 0 ? reshape(y.lse, {}) : y.lse);
    note_at(notes, in, id,
            fmt::format("linear_cross_entropy of {}", in.type(loss.operands[0]).str()));
    return true;
  });
  return drop_dead(out);
}

Graph join_loss_head(const Graph& in, Notes* notes) {
  Graph out = in;
  // One at a time: a joined node depends on more than its forward did, and this may forbid the
  // next (of a product of two losses only one can be joined).
  for (HeadAndGradient pair = LossHeadJoiner(out).find(nullptr); pair.head != kNoNode;
       pair = LossHeadJoiner(out).find(nullptr)) {
    note_at(notes, out, pair.head, "forward and backward of the loss head are one node");
    Graph next = LossHeadJoiner(out).join(pair);
    out = std::move(next);
  }
  LossHeadJoiner(out).find(notes);
  return out;
}

}  // namespace brrr
