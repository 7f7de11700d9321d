// Local algebra, common subexpressions and dead code, in one forward loop each.

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/human.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

bool made_by(const Graph& g, ValueId v, Op op) { return is(g.node(v.node), op); }

bool is_full_of(const Graph& g, ValueId v, double value) {
  return made_by(g, v, Op::full) && full_value(g.node(v.node)) == value;
}

// Whether a transpose swaps exactly the last two axes.
bool swaps_last_two(const Node& node) {
  const auto& p = node.attrs.get<std::vector<int64_t>>("permutation");
  const size_t n = p.size();
  if (n < 2) return false;
  for (size_t i = 0; i + 2 < n; ++i)
    if (p[i] != static_cast<int64_t>(i)) return false;
  return p[n - 2] == static_cast<int64_t>(n - 1);
}

// Whether every value of `narrow` is one of `wide`.
bool holds_all_of(DType wide, DType narrow) {
  const bool low = narrow == DType::bf16 || narrow == DType::f16;
  return (wide == DType::f32 && low) || (wide == DType::f64 && (low || narrow == DType::f32));
}

// The value that may stand for result 0 of the node, or nothing. `in` are the new operands.
std::optional<Value> simpler(Graph& g, const Node& node, const std::vector<Value>& in) {
  const Op op = node.op->id;
  const Type& type = node.results[0];
  auto same_type = [&](Value v) { return v.type() == type; };
  auto producer = [&](Value v) -> const Node& { return g.node(v.id.node); };
  auto full_like = [&](const Shape& shape) {  // the number of operand 0
    Attrs attrs = producer(in[0]).attrs;
    attrs.set("shape", shape);
    return g.value(g.add(brrr::op(Op::full), {}, std::move(attrs)));
  };

  if (op == Op::add) {
    if (is_full_of(g, in[1].id, 0) && same_type(in[0])) return in[0];
    if (is_full_of(g, in[0].id, 0) && same_type(in[1])) return in[1];
  } else if (op == Op::sub) {
    if (is_full_of(g, in[1].id, 0) && same_type(in[0])) return in[0];
  } else if (op == Op::mul) {
    if (is_full_of(g, in[1].id, 1) && same_type(in[0])) return in[0];
    if (is_full_of(g, in[0].id, 1) && same_type(in[1])) return in[1];
  } else if (op == Op::div) {
    if (is_full_of(g, in[1].id, 1) && same_type(in[0])) return in[0];
  } else if (op == Op::neg) {
    if (made_by(g, in[0].id, Op::neg)) return g.value(producer(in[0]).operands[0]);
  } else if (op == Op::logical_and || op == Op::logical_or) {
    const double neutral = op == Op::logical_and ? 1 : 0;
    for (const size_t i : {0, 1})
      if (is_full_of(g, in[i].id, neutral) && same_type(in[1 - i])) return in[1 - i];
  } else if (op == Op::where) {
    if (made_by(g, in[0].id, Op::full))
      return broadcast_to(in[full_value(producer(in[0])) != 0 ? 1 : 2], type.shape);
  } else if (op == Op::cast) {
    if (same_type(in[0])) return in[0];
    if (made_by(g, in[0].id, Op::full) && is_float(in[0].dtype()) && is_float(type.dtype) &&
        in[0].dtype() != DType::f64)
      return full(g, type.shape, rounded_to(in[0].dtype(), full_value(producer(in[0]))),
                  type.dtype);
    if (made_by(g, in[0].id, Op::cast)) {  // there and back again through a dtype that holds it all
      const Value before = g.value(producer(in[0]).operands[0]);
      if (same_type(before) && holds_all_of(in[0].dtype(), before.dtype())) return before;
    }
  } else if (op == Op::reshape) {
    if (same_type(in[0])) return in[0];
    if (made_by(g, in[0].id, Op::reshape))
      return reshape(g.value(producer(in[0]).operands[0]), type.shape);
    if (made_by(g, in[0].id, Op::full)) return full_like(type.shape);
  } else if (op == Op::broadcast_to) {
    if (same_type(in[0])) return in[0];
    if (made_by(g, in[0].id, Op::full)) return full_like(type.shape);
  } else if (op == Op::transpose) {
    const auto& p = node.attrs.get<std::vector<int64_t>>("permutation");
    bool identity = true;
    for (size_t i = 0; i < p.size(); ++i) identity = identity && p[i] == static_cast<int64_t>(i);
    if (identity) return in[0];
    if (made_by(g, in[0].id, Op::transpose)) {
      const auto inner = producer(in[0]).attrs.get<std::vector<int64_t>>("permutation");
      std::vector<int64_t> both;
      for (int64_t axis : p) both.push_back(inner[static_cast<size_t>(axis)]);
      return transpose(g.value(producer(in[0]).operands[0]), both);
    }
  } else if (op == Op::slice) {
    if (same_type(in[0])) return in[0];
  } else if (op == Op::sum || op == Op::max) {
    if (same_type(in[0]) && node.attrs.get<std::vector<int64_t>>("axes").empty()) return in[0];
  } else if (op == Op::matmul) {
    bool flags[2] = {node.attrs.get<bool>("transpose_a"), node.attrs.get<bool>("transpose_b")};
    Value operands[2] = {in[0], in[1]};
    bool changed = false;
    for (int i = 0; i < 2; ++i)
      while (made_by(g, operands[i].id, Op::transpose) && swaps_last_two(producer(operands[i]))) {
        operands[i] = g.value(producer(operands[i]).operands[0]);
        flags[i] = !flags[i];
        changed = true;
      }
    if (changed) {
      Attrs attrs = node.attrs;
      attrs.set("transpose_a", flags[0]);
      attrs.set("transpose_b", flags[1]);
      return call1(Op::matmul, {operands[0], operands[1]}, std::move(attrs));
    }
  }
  return std::nullopt;
}

// dx = concat of the slices' gradients: add(pad(a), pad(b)) over disjoint ranges of one axis is a
// concat. Differentiating slices (q, k, v of one projection) makes exactly this.
std::optional<Value> sum_of_pads(Graph& g, const std::vector<Value>& in) {
  struct Part {
    Value value;
    int64_t begin, end;
  };
  if (in[0].type() != in[1].type()) return std::nullopt;
  std::vector<Part> parts;
  int64_t axis = -1, total = 0;
  std::vector<Value> work{in[0], in[1]};
  while (!work.empty()) {
    const Value v = work.back();
    work.pop_back();
    const Node& node = g.node(v.id.node);
    if (is(node, Op::add) && g.type(node.operands[0]) == v.type() &&
        g.type(node.operands[1]) == v.type()) {
      work.push_back(g.value(node.operands[0]));
      work.push_back(g.value(node.operands[1]));
      if (work.size() > 16) return std::nullopt;
      continue;
    }
    if (!is(node, Op::pad)) return std::nullopt;
    if (axis < 0) axis = node.attrs.get<int64_t>("axis");
    if (axis != node.attrs.get<int64_t>("axis")) return std::nullopt;
    const Value inner = g.value(node.operands[0]);
    const int64_t before = node.attrs.get<int64_t>("before");
    parts.push_back({inner, before, before + inner.shape().size(static_cast<int>(axis))});
    total = v.shape().size(static_cast<int>(axis));
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  int64_t at = 0;
  std::vector<Value> values;
  for (const Part& p : parts) {
    if (p.begin != at) return std::nullopt;
    at = p.end;
    values.push_back(p.value);
  }
  if (at != total) return std::nullopt;
  return concat(values, static_cast<int>(axis));
}

// The nodes of the new graph by the hash of everything that makes two of them the same computation.
using SeenNodes = std::unordered_multimap<uint64_t, NodeId>;

uint64_t hash_of_node(const Node& node, const std::vector<Value>& in) {
  Hash hash;
  hash.add(node.op->name);
  for (const Value& v : in) hash.add(v.id.node).add(v.id.port);
  return hash.add(hash_of(node.attrs)).value();
}

// The node that computes in `g` what this one computes on these operands, or kNoNode.
NodeId find_same(const SeenNodes& seen, uint64_t hash, const Graph& g, const Node& node,
                 const std::vector<Value>& in) {
  const auto [begin, end] = seen.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const Node& other = g.node(at->second);
    if (other.op == node.op && other.attrs == node.attrs &&
        std::equal(in.begin(), in.end(), other.operands.begin(), other.operands.end(),
                   [](const Value& a, const ValueId& b) { return a.id == b; }))
      return at->second;
  }
  return kNoNode;
}

struct Counts {
  size_t merged = 0, simplified = 0;
};

Graph simplify_once(const Graph& in, Counts& counts) {
  SeenNodes seen;
  seen.reserve(in.size());
  return rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (r.in().is_input(id)) return false;
    const auto operands = r.operands(id);
    if (node.results.size() == 1) {
      std::optional<Value> value = simpler(r.out(), node, operands);
      if (!value && is(node, Op::add)) value = sum_of_pads(r.out(), operands);
      if (value) {
        r.bind({id, 0}, *value);
        ++counts.simplified;
        return true;
      }
    }
    const uint64_t hash = hash_of_node(node, operands);
    const NodeId same = find_same(seen, hash, r.out(), node, operands);
    if (same == kNoNode) {
      seen.emplace(hash, r.copy(id));
    } else {
      for (uint32_t port = 0; port < node.results.size(); ++port)
        r.bind({id, port}, r.out().value(same, port));
      ++counts.merged;
    }
    return true;
  });
}

}  // namespace

Graph simplify(const Graph& in, Notes* notes) {
  Graph out;
  Counts total;
  size_t dead = 0;
  // What one round builds may be equal to, or simpler through, what stands beside it.
  const Graph* last = &in;
  for (bool changed = true; changed; last = &out) {
    Counts round;
    Graph next = simplify_once(*last, round);
    const size_t before = next.size();
    out = drop_dead(std::move(next));
    dead += before - out.size();
    total.merged += round.merged;
    total.simplified += round.simplified;
    changed = round.merged + round.simplified > 0;
  }
  if (notes && (total.merged || total.simplified || dead))
    notes->push_back(fmt::format("{} merged, {} simplified, {} dead", counted(total.merged, "node"),
                                 total.simplified, dead));
  return out;
}

}  // namespace brrr
