// fused: several ops as one node. The body says what it means, so that every graph with fused nodes
// still runs wherever its parts run.

#include "ops/fused.h"

#include "ops/support.h"

namespace brrr {
namespace {

/// Whether every use of input `id` reads, for an element of a result, the same element of the
/// input, and no node after `last` uses it.
bool may_be_overwritten(const Graph& body, NodeId id, NodeId last) {
  for (NodeId user = id + 1; user < body.size(); ++user) {
    const Node& node = body.node(user);
    for (uint32_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k].node != id) continue;
      if (user > last) return false;
      if (is_pointwise(*node.op)) {
        if (node.results[0].shape != body.type({id, 0}).shape) return false;
        if (node.op->draws_random && k + 1 == node.operands.size()) return false;  // the key
        continue;
      }
      bool pair = false;
      for (const OpDef::InPlace& p : node.op->in_place_pairs(node)) pair |= p.operand == k;
      if (!pair || node.op->op_class != OpClass::normalisation) return false;
    }
  }
  return true;
}

std::vector<OpDef::InPlace> in_place_pairs(const Graph& body) {
  std::vector<OpDef::InPlace> pairs;
  const std::vector<NodeId> inputs = body.inputs();
  for (uint32_t r = 0; r < body.outputs().size(); ++r) {
    const ValueId result = body.outputs()[r].value;
    const OpDef& op = *body.node(result.node).op;
    if (!is_pointwise(op) && (op.op_class != OpClass::normalisation || result.port != 0)) continue;
    for (uint32_t k = 0; k < inputs.size(); ++k)
      if (body.type({inputs[k], 0}) == body.type(result) &&
          may_be_overwritten(body, inputs[k], result.node))
        pairs.push_back({r, k});
  }
  return pairs;
}

Sample sample_of(const Graph& body) {
  Sample sample;
  for (NodeId id : body.inputs()) {
    const Type& type = body.type({id, 0});
    const bool is_key = type.dtype == DType::i32;
    sample.in.push_back({type, is_key ? 0.0 : -1.0, is_key ? 1000.0 : 1.0});
  }
  sample.attrs.set("body", Region(body));
  return sample;
}

// A chain with constants and a broadcast; two results and random bits; rows with their sums; a
// product that is a result, too; a convolution with an activation and a residual.
std::vector<Sample> fused_samples() {
  std::vector<Sample> out;
  {
    Graph g;
    Value x = g.input("a0", {3, 37}, f32), b = g.input("a1", {37}, f32);
    g.output("0", gelu(x * 0.5 + b) * x);
    out.push_back(sample_of(g));
  }
  {
    Graph g;
    Value x = g.input("a0", {2, 5, 64}, f32), key = g.input("a1", {2}, i32);
    Value column = g.input("a2", {5, 1}, f32);
    Value y = dropout(x, key, 0.25, 3) - column;
    g.output("0", y);
    g.output("1", where(less(x, column), y, tanh(x)));
    out.push_back(sample_of(g));
  }
  {
    Graph g;
    Value x = g.input("a0", {19, 33}, f32), r = g.input("a1", {19, 33}, f32);
    Value w = g.input("a2", {33}, f32), b = g.input("a3", {33}, f32);
    Value s = x + r;
    const LayerNorm norm = layer_norm(s, w, b, 0.1);
    g.output("0", s);
    g.output("1", norm.y * 2.0);
    g.output("2", norm.mean);
    g.output("3", norm.rstd);
    g.output("4", sum(norm.y, {0}));
    out.push_back(sample_of(g));
  }
  {
    Graph g;
    Value x = g.input("a0", {5, 7}, f32), w = g.input("a1", {7, 33}, f32);
    Value r = g.input("a2", {5, 33}, f32);
    Value y = matmul(x, w);
    g.output("0", gelu(y) + r);
    g.output("1", y);
    out.push_back(sample_of(g));
  }
  {
    Graph g;
    Value x = g.input("a0", {2, 5, 9, 11}, f32), w = g.input("a1", {6, 5, 3, 3}, f32);
    Value b = g.input("a2", {6}, f32), r = g.input("a3", {2, 6, 9, 11}, f32);
    Value slope = g.input("a4", {6, 1, 1}, f32);
    Value y = conv(x, w, b, {{1, 1}, {1, 1}, {1, 1, 1, 1}}, 1);
    g.output("0", where(less(y, r), y * slope, sigmoid(y) * y) + r);
    out.push_back(sample_of(g));
  }
  return out;
}

}  // namespace

const Graph& fused_body(const Node& node) { return node.attrs.get<Region>("body").graph(); }

NodeId product_of(const Graph& body) {
  for (NodeId id = 0; id < body.size(); ++id)
    if (is_matrix_product(body.node(id)) || is(body.node(id), Op::conv)) return id;
  return kNoNode;
}

bool is_matrix_product(const Node& node) { return node.op->product.has_value(); }

namespace {

/// What v is a reshape or, where `casts`, a cast of.
ValueId seen_through(const Graph& g, ValueId v, bool casts) {
  while (is(g.node(v.node), Op::reshape) || (casts && is(g.node(v.node), Op::cast)))
    v = g.node(v.node).operands[0];
  return v;
}

/// Whether the sum is one over all rows of [..., width], of as many numbers as x: [K, width] has.
bool sums_rows_of(const Graph& g, const Node& sum, const Shape& x) {
  const Shape& from = g.type(sum.operands[0]).shape;
  const auto& axes = sum.attrs.get<std::vector<int64_t>>("axes");
  if (from.rank() < 2 || static_cast<int>(axes.size()) != from.rank() - 1) return false;
  for (const int64_t axis : axes)
    if (axis == from.rank() - 1) return false;
  return x.rank() == 2 && from.size(-1) == x.size(-1) && from.elements() == x.elements();
}

}  // namespace

std::optional<BiasGradient> bias_gradient_of(const Graph& body) {
  const NodeId id = product_of(body);
  if (id == kNoNode || !is_matrix_product(body.node(id)) || !body.node(id).op->product->transposes)
    return std::nullopt;
  const Node& product = body.node(id);
  for (uint32_t i = 0; i < body.outputs().size(); ++i) {
    const NodeId at = seen_through(body, body.outputs()[i].value, false).node;
    const Node& sum = body.node(at);
    if (!is(sum, Op::sum)) continue;
    const ValueId x = seen_through(body, sum.operands[0], true);
    for (const bool left : {false, true}) {
      const ValueId operand = product.operands[left ? 0 : 1];
      const bool lies_by_terms =
          product.attrs.get<bool>(left ? "transpose_a" : "transpose_b") == left;
      if (operand == x && body.is_input(x.node) && lies_by_terms &&
          sums_rows_of(body, sum, body.type(x).shape))
        return BiasGradient{at, i, left};
    }
  }
  return std::nullopt;
}

BodyPart without(const Graph& body, const BiasGradient& gradient) {
  BodyPart part;
  std::vector<bool> wanted(body.size());
  for (uint32_t i = 0; i < body.outputs().size(); ++i)
    if (i != gradient.result) {
      part.results.push_back(i);
      wanted[body.outputs()[i].value.node] = true;
    }
  for (NodeId id = static_cast<NodeId>(body.size()); id-- > 0;) {
    if (!wanted[id]) continue;
    for (const ValueId& v : body.node(id).operands) wanted[v.node] = true;
  }
  std::vector<NodeId> map(body.size());
  for (NodeId id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (body.is_input(id)) {
      map[id] = part.body.input(body.input_name(id), node.results[0]).id.node;
    } else if (wanted[id]) {
      std::vector<ValueId> operands;
      for (const ValueId& v : node.operands) operands.push_back({map[v.node], v.port});
      map[id] = part.body.add(*node.op, operands, node.attrs);
    }
  }
  for (size_t i = 0; i < part.results.size(); ++i) {
    const ValueId v = body.outputs()[part.results[i]].value;
    part.body.output(std::to_string(i), part.body.value(map[v.node], v.port));
  }
  return part;
}

OpClass class_of(const Node& node) {
  if (is(node, Op::fused) && product_of(fused_body(node)) != kNoNode) return OpClass::contraction;
  return node.op->op_class;
}

bool is_pointwise(const OpDef& op) {
  return op.op_class == OpClass::elementwise || op.id == Op::cast;
}

namespace ops {

std::vector<OpDef> fused_ops() {
  OpDef d;
  d.name = "fused";
  d.stored_operands = ~0u;
  d.doc =
      "The outputs \"0\", \"1\", ... of the graph {body} with its inputs a0, a1, ... in place of "
      "the operands. Made by the pass `fuse`; what is rounded, and where, is as in the body";
  d.infer = [](const InferContext& c) {
    const Graph& body = region_of(c, "body");
    for (const Node& node : body.nodes()) {
      if (!regions_of(node).empty()) c.fail("body: {} has a region of its own", node.op->name);
      for (const Type& t : node.results)
        if (!t.shape.is_static()) c.fail("body: shapes are static; got {}", t.str());
    }
    const std::vector<NodeId> inputs = body.inputs();
    expect_operands(c, inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (c.in[i] != body.type({inputs[i], 0}))
        c.fail("operand {} must be {} as the body says; got {}", i, body.type({inputs[i], 0}).str(),
               c.in[i].str());
    std::vector<Type> out;
    for (const Output& o : body.outputs()) out.push_back(body.type(o.value));
    return out;
  };
  d.decompose = [](const DecomposeContext& c) {
    const Graph& body = fused_body(c.node);
    std::vector<std::vector<ValueId>> map(body.size());
    size_t next_input = 0;
    for (NodeId id = 0; id < body.size(); ++id) {
      const Node& node = body.node(id);
      if (body.is_input(id)) {
        map[id] = {c.in[next_input++].id};
        continue;
      }
      std::vector<ValueId> operands;
      for (const ValueId& v : node.operands) operands.push_back(map[v.node][v.port]);
      const NodeId added = c.graph.add(*node.op, operands, node.attrs);
      for (uint32_t port = 0; port < node.results.size(); ++port) map[id].push_back({added, port});
    }
    std::vector<Value> out;
    for (const Output& o : body.outputs())
      out.push_back(c.graph.value(map[o.value.node][o.value.port]));
    return out;
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    const Graph& body = fused_body(n);
    double flops = 0;
    for (NodeId id = 0; id < body.size(); ++id) flops += cost_of(body, id).flops;
    return streaming_cost(n, in, flops);
  };
  d.samples = fused_samples;
  d.in_place_of = [](const Node& n) { return in_place_pairs(fused_body(n)); };
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops
}  // namespace brrr
