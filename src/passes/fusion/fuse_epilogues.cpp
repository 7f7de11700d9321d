// Epilogues: the element-wise node that reads a product joins it, so that what the product has just
// computed is used where it lies. Runs after `fuse`: the reader may be a whole chain by then.

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "base/human.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/fusion/joined_nodes.h"
#include "passes/passes.h"

namespace brrr {
namespace {

bool may_follow(const Node& node) {
  if (!is(node, Op::fused)) return is_pointwise(*node.op);
  const Graph& body = fused_body(node);
  return std::all_of(body.nodes().begin(), body.nodes().end(), [](const Node& part) {
    const OpClass c = part.op->op_class;
    return is_pointwise(*part.op) || c == OpClass::movement || c == OpClass::leaf;
  });
}

/// A product, a convolution, or a product with the gradient of a bias (fuse_bias_gradients): result
/// 0 is the product.
bool is_product(const Node& node) {
  if (is_matrix_product(node) || is(node, Op::conv)) return true;
  if (!is(node, Op::fused)) return false;
  const Graph& body = fused_body(node);
  const ValueId first = body.outputs()[0].value;
  return body.outputs().size() == 2 && first.node == product_of(body) && bias_gradient_of(body);
}

int pointwise_ops(const Node& node) {
  if (!is(node, Op::fused)) return 1;
  const Graph& body = fused_body(node);
  return static_cast<int>(std::count_if(body.nodes().begin(), body.nodes().end(),
                                        [](const Node& n) { return is_pointwise(*n.op); }));
}

/// The two as one: operands and results of the graph, and a body.
struct Pair {
  Graph body;
  std::vector<ValueId> operands, results;
  Attrs attrs() const { return {{"body", Region(body)}}; }
};

class EpilogueFuser {
 public:
  EpilogueFuser(const Graph& graph, const Target& target)
      : g_(graph), target_(target), joined_(graph) {
    const size_t n = graph.size();
    partner_.assign(n, kNoNode);
    readers_.resize(n);
    is_output_.resize(n);
    is_product_.resize(n);
    unread_.resize(n);
    for (NodeId id = 0; id < n; ++id) is_product_[id] = is_product(graph.node(id));
    for (NodeId id = 0; id < n; ++id)
      for (const ValueId& v : graph.node(id).operands)
        if (v.port == 0 && (readers_[v.node].empty() || readers_[v.node].back() != id))
          readers_[v.node].push_back(id);
    for (const Output& o : graph.outputs())
      if (o.value.port == 0) is_output_[o.value.node] = true;
  }

  Graph run(Notes* notes) {
    find_constants();
    for (NodeId id = 0; id < g_.size(); ++id)
      if (is_product_[id] && !constant_[id]) join(id);
    Rewriter r(g_);
    for (NodeId id : order()) {
      if (unread_[id]) continue;
      if (is_product_[id] && partner_[id] != kNoNode)
        emit(r, id);
      else
        r.copy(id);
    }
    if (notes && pairs_ > 0)
      notes->push_back(fmt::format("{} with {}, {:.1f} MiB less to read and write",
                                   counted(pairs_, "product"), counted(ops_, "element-wise op"),
                                   bytes_saved_ / 0x1p20));
    if (notes && apart_ > 0)
      notes->push_back(fmt::format("{} not fused with element-wise ops: {} gains nothing from it",
                                   counted(apart_, "product"), target_.name));
    return r.finish();
  }

 private:
  // What depends on no input is computed once, before the first step.
  void find_constants() {
    constant_.resize(g_.size());
    for (NodeId id = 0; id < g_.size(); ++id) {
      bool constant = !g_.is_input(id);
      for (const ValueId& v : g_.node(id).operands) constant = constant && constant_[v.node];
      constant_[id] = constant;
    }
  }

  bool reads(ValueId v, NodeId product) const {
    return behind_reshapes(g_, v) == ValueId{product, 0};
  }
  void add_readers(NodeId id, std::vector<NodeId>& all) const {
    for (NodeId reader : readers_[id]) {
      if (is(g_.node(reader), Op::reshape))
        add_readers(reader, all);
      else
        all.push_back(reader);
    }
  }

  bool reads_other_result(NodeId reader, NodeId product) const {
    const auto& operands = g_.node(reader).operands;
    return std::any_of(operands.begin(), operands.end(), [&](ValueId v) {
      const ValueId root = behind_reshapes(g_, v);
      return root.node == product && root.port != 0;
    });
  }

  void join(NodeId product) {
    std::vector<NodeId> all;
    add_readers(product, all);
    std::sort(all.begin(), all.end());
    for (NodeId reader : all) {
      if (partner_[reader] != kNoNode || !may_follow(g_.node(reader)) ||
          reads_other_result(reader, product) || joined_.makes_cycle(product, reader))
        continue;
      if (!target_.gains_by_epilogue(g_, product, reader)) {
        ++apart_;
        return;
      }
      if (!runs(pair(product, reader))) continue;
      joined_.join(product, reader);
      partner_[product] = reader;
      partner_[reader] = product;
      return;
    }
  }

  bool runs(const Pair& pair) const {
    Graph alone;
    std::vector<ValueId> operands;
    for (const ValueId& v : pair.operands) {
      const Type& t = g_.type(v);
      operands.push_back(alone.input(std::to_string(operands.size()), t).id);
    }
    return target_.runs(alone, alone.add(op(Op::fused), operands, pair.attrs()));
  }

  /// Whether anything but the reader reads the product (result 0).
  bool leaves(NodeId id, NodeId reader) const {
    if (is_output_[id]) return true;
    for (NodeId user : readers_[id]) {
      if (user == reader) continue;
      if (!is(g_.node(user), Op::reshape) || leaves(user, reader)) return true;
    }
    return false;
  }

  Pair pair(NodeId product, NodeId reader) const {
    Pair p;
    std::map<ValueId, ValueId> inputs;
    const auto outside = [&](ValueId v) {
      auto [at, is_new] = inputs.try_emplace(v);
      if (is_new) {
        const Type& t = g_.type(v);
        at->second = p.body.input(fmt::format("a{}", p.operands.size()), t).id;
        p.operands.push_back(v);
      }
      return at->second;
    };
    const Node& first = g_.node(product);
    if (is(first, Op::fused))
      inline_body(fused_body(first), first, outside, p);
    else
      add_alone(first, outside, p);
    const std::vector<Output> of_product = std::exchange(p.body.outputs(), {});
    const Value y = p.body.value(of_product[0].value);
    // The product as the reader sees it, or what comes from elsewhere.
    const auto read = [&](ValueId v) {
      if (!reads(v, product)) return outside(v);
      return (g_.type(v).shape == y.shape() ? y : reshape(y, g_.type(v).shape)).id;
    };
    const Node& second = g_.node(reader);
    if (is(second, Op::fused))
      inline_body(fused_body(second), second, read, p);
    else
      add_alone(second, read, p);
    for (uint32_t i = 0; i < second.results.size(); ++i) p.results.push_back({reader, i});
    if (leaves(product, reader)) {
      p.body.output(std::to_string(p.results.size()), y);
      p.results.push_back({product, 0});
    }
    for (uint32_t i = 1; i < of_product.size(); ++i) {
      p.body.output(std::to_string(p.results.size()), p.body.value(of_product[i].value));
      p.results.push_back({product, i});
    }
    return p;
  }

  template <typename Read>
  static void add_alone(const Node& node, Read&& read, Pair& p) {
    std::vector<ValueId> operands;
    for (const ValueId& v : node.operands) operands.push_back(read(v));
    p.body.output("0", p.body.value(p.body.add(*node.op, operands, node.attrs)));
  }
  template <typename Read>
  static void inline_body(const Graph& body, const Node& node, Read&& read, Pair& p) {
    std::vector<ValueId> map(body.size());  // element-wise: one result each
    size_t next_input = 0;
    for (NodeId id = 0; id < body.size(); ++id) {
      if (body.is_input(id)) {
        map[id] = read(node.operands[next_input++]);
        continue;
      }
      std::vector<ValueId> operands;
      for (const ValueId& v : body.node(id).operands) operands.push_back(map[v.node]);
      map[id] = {p.body.add(*body.node(id).op, operands, body.node(id).attrs), 0};
    }
    for (const Output& o : body.outputs()) p.body.output(o.name, p.body.value(map[o.value.node]));
  }

  /// All nodes but the readers of pairs, each pair after what either of its two needs. A pair
  /// stands where its product stood, or as soon after that as what its reader needs is there: what
  /// a product reads should not live longer than before.
  std::vector<NodeId> order() const {
    const auto name = [&](NodeId id) {  // of a pair: its product
      return partner_[id] != kNoNode && !is_product_[id] ? partner_[id] : id;
    };
    const size_t n = g_.size();
    std::vector<std::vector<NodeId>> needed_by(n);
    std::vector<size_t> missing(n);
    for (NodeId id = 0; id < n; ++id)
      for (const ValueId& v : g_.node(id).operands) {
        const bool inside = partner_[id] != kNoNode && reads(v, partner_[id]);
        if (inside) continue;
        needed_by[name(v.node)].push_back(name(id));
        ++missing[name(id)];
      }
    // An input may be declared late (a state of the optimizer): it comes when a pair wants it.
    std::vector<NodeId> place(n);
    for (NodeId id = 0; id < n; ++id) place[id] = id;
    for (NodeId id = 0; id < n; ++id)
      if (name(id) != id)
        for (const ValueId& v : g_.node(id).operands)
          if (g_.is_input(v.node)) place[v.node] = std::min(place[v.node], name(id));
    using Entry = std::pair<NodeId, NodeId>;  // where it stands, what it is
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    const auto add = [&](NodeId id) { ready.push({place[id], id}); };
    for (NodeId id = 0; id < n; ++id)
      if (name(id) == id && missing[id] == 0) add(id);
    std::vector<NodeId> out;
    while (!ready.empty()) {
      const NodeId id = ready.top().second;
      ready.pop();
      out.push_back(id);
      for (NodeId next : needed_by[id])
        if (--missing[next] == 0) add(next);
    }
    for (NodeId id = 0; id < n; ++id)
      BRRR_CHECK(missing[name(id)] == 0, "epilogues make a cycle at %{}", id);
    return out;
  }

  /// The reshapes of a product that is gone look at nothing.
  void drop_reshapes(NodeId id) {
    for (NodeId user : readers_[id]) {
      if (!is(g_.node(user), Op::reshape)) continue;
      unread_[user] = true;
      drop_reshapes(user);
    }
  }

  void emit(Rewriter& r, NodeId product) {
    const NodeId reader = partner_[product];
    const Pair p = pair(product, reader);
    std::vector<ValueId> operands;
    for (const ValueId& v : p.operands) operands.push_back(r.map(v).id);
    r.enter_scope_of(product);
    const NodeId fused = r.out().add(op(Op::fused), operands, p.attrs());
    for (uint32_t i = 0; i < p.results.size(); ++i) r.bind(p.results[i], r.out().value(fused, i));
    if (!leaves(product, reader)) drop_reshapes(product);
    ++pairs_;
    ops_ += pointwise_ops(g_.node(reader));
    const Cost after = cost_of(r.out(), fused);
    for (NodeId id : {product, reader}) {
      const Cost cost = cost_of(g_, id);
      bytes_saved_ += cost.bytes_read + cost.bytes_written;
    }
    bytes_saved_ -= after.bytes_read + after.bytes_written;
  }

  const Graph& g_;
  const Target& target_;
  JoinedNodes joined_;  // where product and reader are one, no third may stand between them
  std::vector<NodeId> partner_;               // of a product its reader, of that reader the product
  std::vector<std::vector<NodeId>> readers_;  // of result 0 of a node
  std::vector<bool> is_product_, is_output_, constant_;
  std::vector<bool> unread_;  // reshapes of products that are gone
  int pairs_ = 0, ops_ = 0, apart_ = 0;
  double bytes_saved_ = 0;
};

}  // namespace

Graph fuse_epilogues(const Graph& graph, const Target& target, Notes* notes) {
  return EpilogueFuser(graph, target).run(notes);
}

}  // namespace brrr
