#include "passes/ranks/shard.h"

#include <map>
#include <optional>
#include <set>

#include "base/human.h"
#include "base/memory.h"
#include "ops/op.h"
#include "ops/ops.h"
#include "ops/ranks/collectives.h"

namespace brrr {
namespace {

class Sharder {
 public:
  Sharder(const Graph& in, const Sharding& sharding)
      : in_(in), sharding_(sharding), rewriter_(in, Types::change) {
    find_uses();
  }

  Graph run(Notes* notes) {
    for (NodeId id = 0; id < in_.size(); ++id) place(id);
    Graph out = rewriter_.finish();
    if (notes && !shards_.empty())
      notes->push_back(fmt::format("{} in shards of {} ranks, {} on each",
                                   counted(std::ssize(shards_), "parameter"), sharding_.ranks,
                                   memory_text(bytes_)));
    return out;
  }

 private:
  /// A whole parameter as some nodes read it. At stage 3 the backward pass has uses of its own.
  struct Use {
    NodeId parameter = kNoNode;
    DType dtype = DType::f32;
    bool is_late = false;
    auto operator<=>(const Use&) const = default;
  };

  bool is_divided(NodeId id) const {
    return in_.is_input(id) && in_.role(id) == Role::parameter && in_.is_trained(id) &&
           in_.type({id, 0}).shape.elements() >= kLeastSharded;
  }
  bool is_narrowing_cast(NodeId id) const {
    const Node& node = in_.node(id);
    return is(node, Op::cast) && is_divided(node.operands[0].node) &&
           bytes_of(node.results[0].dtype) < bytes_of(in_.type(node.operands[0]).dtype);
  }
  Use use_of(NodeId parameter, NodeId reader, DType dtype) const {
    return {parameter, dtype, sharding_.zero >= 3 && in_.phase(reader) == Phase::backward};
  }

  /// The uses in the order of their first readers.
  void find_uses() {
    std::set<Use> known;
    const auto read = [&](NodeId parameter, NodeId reader, DType dtype) {
      if (!known.insert(use_of(parameter, reader, dtype)).second) return;
      used_by_.try_emplace(reader, uses_.size());
      uses_.push_back(use_of(parameter, reader, dtype));
    };
    for (NodeId id = 0; id < in_.size(); ++id) {
      if (in_.is_input(id)) continue;
      if (is_narrowing_cast(id)) {
        casts_[id] = {in_.node(id).operands[0].node, in_.node(id).results[0].dtype};
        continue;
      }
      for (const ValueId& v : in_.node(id).operands) {
        if (is_divided(v.node)) read(v.node, id, in_.type(v).dtype);
        if (const auto at = casts_.find(v.node); at != casts_.end())
          read(at->second.first, id, at->second.second);
      }
    }
  }

  void place(NodeId id) {
    if (is_divided(id)) {
      rewriter_.bind({id, 0}, shard_of(id));
      return;
    }
    const Node& node = in_.node(id);
    if (casts_.contains(id)) return;  // its readers read what is gathered
    std::vector<Value> operands;
    bool reads_whole = false;
    for (const ValueId& v : node.operands) {
      const auto cast = casts_.find(v.node);
      const bool is_shard = shards_.contains(v.node);
      reads_whole |= is_shard || cast != casts_.end();
      if (is_shard)
        operands.push_back(gathered(use_of(v.node, id, in_.type(v).dtype), id));
      else if (cast != casts_.end())
        operands.push_back(gathered(use_of(cast->second.first, id, cast->second.second), id));
      else
        operands.push_back(rewriter_.map(v));
    }
    if (!reads_whole) {
      rewriter_.copy(id);
      return;
    }
    prefetch(id);
    rewriter_.enter_scope_of(id);
    const auto results = call(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < results.size(); ++port)
      rewriter_.bind({id, port}, results[port]);
  }

  /// What the next reader reads is gathered while this one computes.
  void prefetch(NodeId reader) {
    if (sharding_.zero < 3) return;
    const auto at = used_by_.find(reader);
    if (at == used_by_.end()) return;
    size_t next = at->second + 1;
    while (next < uses_.size() && gathered_.contains(uses_[next])) ++next;
    if (next < uses_.size() && shards_.contains(uses_[next].parameter))
      gathered(uses_[next], reader);
  }

  Value shard_of(NodeId id) {
    const Type& whole = in_.type({id, 0});
    Attrs attrs{{std::string(kShardOf), whole.shape}, {std::string(kShardRanks), sharding_.ranks}};
    for (const auto& [name, value] : in_.node(id).attrs)
      if (name == kTrained || name == kDecays) attrs.set(name, value);
    const Value shard = rewriter_.out().input(
        in_.input_name(id),
        Type{whole.dtype, {shard_elements(whole.shape.elements(), sharding_.ranks)}},
        Role::parameter, std::move(attrs));
    shards_[id] = shard.id;
    bytes_ += shard.type().bytes();
    return shard;
  }

  /// The whole parameter, gathered when the graph comes to `node`.
  Value gathered(const Use& use, NodeId node) {
    if (const auto at = gathered_.find(use); at != gathered_.end())
      return rewriter_.out().value(at->second);
    rewriter_.enter_scope_of(node);
    Value shard = rewriter_.out().value(shards_.at(use.parameter));
    if (use.is_late)
      if (const std::optional<Value> gate = gate_of(node)) shard = after(shard, *gate);
    if (use.dtype != shard.dtype()) shard = cast(shard, use.dtype);
    const Value whole =
        all_gather(shard, in_.type({use.parameter, 0}).shape, sharding_.ranks, sharding_.zero < 3);
    gathered_[use] = whole.id;
    return whole;
  }

  /// A value that has been computed when the graph comes to `node`.
  std::optional<Value> gate_of(NodeId node) {
    for (const ValueId& v : in_.node(node).operands)
      if (!in_.is_input(v.node) && !casts_.contains(v.node)) return rewriter_.map(v);
    return std::nullopt;
  }

  const Graph& in_;
  const Sharding& sharding_;
  Rewriter rewriter_;
  std::vector<Use> uses_;             // in order
  std::map<NodeId, size_t> used_by_;  // the first use of which a node is the first reader
  std::map<NodeId, std::pair<NodeId, DType>> casts_;  // of parameters, to fewer bits
  std::map<NodeId, ValueId> shards_;                  // by the parameter in the old graph
  std::map<Use, ValueId> gathered_;
  int64_t bytes_ = 0;
};

}  // namespace

Graph shard(const Graph& graph, const Sharding& sharding, Notes* notes) {
  if (!sharding.divides()) return graph;
  return Sharder(graph, sharding).run(notes);
}

}  // namespace brrr
