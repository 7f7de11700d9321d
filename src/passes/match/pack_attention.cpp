// Attention that reads q, k and v out of one product and writes as the next product reads: the
// transposes around it, and in the backward pass the concat of its gradients, are copies that a
// kernel need not have.

#include <algorithm>
#include <map>
#include <optional>

#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// Where the elements of a value lie in another, of which it is a part in another order.
struct Placement {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
};

/// The strides under which the elements have other sizes; nullopt: there are none.
std::optional<std::vector<int64_t>> regrouped(const Placement& p, const std::vector<int64_t>& to) {
  std::vector<int64_t> strides(to.size(), 0);
  size_t i = 0, j = 0;
  while (i < p.sizes.size() && j < to.size()) {
    // The fewest axes of both that have the same number of elements; the old ones are one run.
    const size_t first = j;
    int64_t have = p.sizes[i], want = to[j], stride = p.strides[i];
    for (++i, ++j; have != want;) {
      if (have < want) {
        if (i == p.sizes.size()) return std::nullopt;
        if (p.sizes[i] != 1 && have != 1 && stride != p.sizes[i] * p.strides[i])
          return std::nullopt;
        if (p.sizes[i] != 1) stride = p.strides[i];
        have *= p.sizes[i++];
      } else {
        if (j == to.size()) return std::nullopt;
        want *= to[j++];
      }
    }
    for (size_t axis = j; axis-- > first; stride *= to[axis]) strides[axis] = stride;
  }
  for (; i < p.sizes.size(); ++i)
    if (p.sizes[i] != 1) return std::nullopt;
  return strides;
}

class PackMatcher {
 public:
  explicit PackMatcher(const Graph& g) : g_(g), uses_(count_uses(g)), readers_(g.size()) {
    for (NodeId id = 0; id < g.size(); ++id)
      for (const ValueId& v : g.node(id).operands) readers_[v.node].push_back(id);
  }

  struct Match {
    ValueId qkv;              // elements as [..., T, 3, H, D]
    NodeId reader = kNoNode;  // the transpose that gives y as [..., T, H, D]
    std::string reason;       // why it is none; empty: it is
  };
  Match match(NodeId id) const {
    const Node& node = g_.node(id);
    const Shape& q = g_.type(node.operands[0]).shape;
    Match m;
    for (size_t i = 1; i < 3; ++i)
      if (g_.type(node.operands[i]).shape != q) return refused("q, k and v differ in shape");
    if (q.rank() < 3 || !q.is_static() || q.elements() == 0) return refused("there are no heads");
    if (node.attrs.get<bool>("position")) return refused("its keys are not those of its queries");
    if (node.attrs.get<bool>("mask") && g_.type(node.operands[3]).dtype != DType::boolean)
      return refused("its mask may be trained");
    if (!joins_heads(id, m.reader)) return refused("its heads are not put side by side");
    const auto qkv = packed_source(node);
    if (!qkv) return refused("q, k and v do not lie side by side in one value");
    m.qkv = *qkv;
    return m;
  }

 private:
  static Match refused(std::string reason) { return {{}, kNoNode, std::move(reason)}; }

  /// Whether all that reads y is one transpose to [..., T, H, D].
  bool joins_heads(NodeId id, NodeId& reader) const {
    if (uses_[id][0] != 1) return false;
    for (NodeId r : readers_[id]) {
      const Node& node = g_.node(r);
      if (node.op->name != "transpose" || node.operands[0] != ValueId{id, 0}) continue;
      auto axes = node.attrs.get<std::vector<int64_t>>("permutation");
      std::swap(axes[axes.size() - 3], axes[axes.size() - 2]);
      reader = r;
      return std::is_sorted(axes.begin(), axes.end());
    }
    return false;
  }

  bool only_moves(ValueId v) const {
    const std::string& op = g_.node(v.node).op->name;
    return op == "reshape" || op == "transpose" || op == "slice";
  }

  /// Of a value that is moved, step by step, from `source`.
  std::optional<Placement> placement(ValueId v, ValueId source) const {
    const std::vector<int64_t> sizes = g_.type(v).shape.sizes();
    if (v == source) return Placement{0, sizes, g_.type(v).shape.strides()};
    if (!only_moves(v)) return std::nullopt;
    const Node& node = g_.node(v.node);
    auto p = placement(node.operands[0], source);
    if (!p) return std::nullopt;
    if (node.op->name == "reshape") {
      const auto strides = regrouped(*p, sizes);
      if (!strides) return std::nullopt;
      p->strides = *strides;
    } else if (node.op->name == "transpose") {
      const std::vector<int64_t> before = p->strides;
      const auto& axes = node.attrs.get<std::vector<int64_t>>("permutation");
      for (size_t i = 0; i < axes.size(); ++i) p->strides[i] = before[static_cast<size_t>(axes[i])];
    } else {
      p->offset += node.attrs.get<int64_t>("start") *
                   p->strides[static_cast<size_t>(node.attrs.get<int64_t>("axis"))];
    }
    p->sizes = sizes;
    return p;
  }

  /// The value whose rows are [3, H, D]: q, k and v.
  std::optional<ValueId> packed_source(const Node& attention) const {
    const Shape& q = g_.type(attention.operands[0]).shape;
    const int64_t heads = q.size(-3), length = q.size(-2), width = q.size(-1);
    Placement wanted{0, q.sizes(), std::vector<int64_t>(static_cast<size_t>(q.rank()))};
    int64_t stride = length * 3 * heads * width;
    for (size_t axis = wanted.sizes.size() - 3; axis-- > 0; stride *= wanted.sizes[axis])
      wanted.strides[axis] = stride;
    std::copy_n(std::initializer_list<int64_t>{width, 3 * heads * width, 1}.begin(), 3,
                wanted.strides.end() - 3);
    for (ValueId v = attention.operands[0]; only_moves(v);) {
      v = g_.node(v.node).operands[0];
      if (g_.type(v).shape.elements() != 3 * q.elements()) continue;
      bool all = true;
      for (int64_t i = 0; i < 3; ++i) {
        const auto p = placement(attention.operands[static_cast<size_t>(i)], v);
        all = all && p && p->offset == i * heads * width && same_strides(*p, wanted);
      }
      if (all) return v;
    }
    return std::nullopt;
  }
  static bool same_strides(const Placement& a, const Placement& b) {
    for (size_t i = 0; i < a.sizes.size(); ++i)
      if (a.sizes[i] != 1 && a.strides[i] != b.strides[i]) return false;
    return true;
  }

  const Graph& g_;
  std::vector<std::vector<uint32_t>> uses_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace

Graph pack_attention(const Graph& in, Notes* notes) {
  const PackMatcher matcher(in);
  auto note = [&](NodeId id, const std::string& text) {
    if (notes == nullptr) return;
    const std::string& scope = in.scope_of(id);
    notes->push_back(fmt::format("{}{}{}", scope, scope.empty() ? "" : ": ", text));
  };
  std::map<NodeId, Value> joined;  // what transposes of y become
  const Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    if (const auto at = joined.find(id); at != joined.end()) {
      r.bind({id, 0}, reshape(at->second, in.type({id, 0}).shape));
      return true;
    }
    const Node& node = in.node(id);
    if (node.op->name != "attention") return false;
    const PackMatcher::Match m = matcher.match(id);
    if (!m.reason.empty()) {
      note(id, "attention reads and writes copies: " + m.reason);
      return false;
    }
    const Shape& q = in.type(node.operands[0]).shape;
    Shape packed = q.without_last(3);
    packed.push_back(q[-2]);
    packed.push_back(Dim(3 * q.size(-3) * q.size(-1)));
    std::vector<Value> operands = r.operands(id);
    operands.erase(operands.begin() + 1, operands.begin() + 3);
    operands[0] = reshape(r.map(m.qkv), packed);
    Attrs attrs = node.attrs;
    attrs.set("heads", q.size(-3));
    const auto results = call("packed_attention", operands, attrs);
    r.bind({id, 0}, results[0]);  // which m.reader alone reads
    r.bind({id, 1}, results[1]);
    joined.emplace(m.reader, results[0]);
    note(id, "attention reads q, k and v side by side and writes its heads so");
    return true;
  });
  return drop_dead(out);
}

}  // namespace brrr
