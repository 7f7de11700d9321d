#include "passes/weights/read_blocks.h"

#include <map>

#include "base/human.h"
#include "ops/ops.h"

namespace brrr {
namespace {

class BlockReader {
 public:
  BlockReader(const Graph& in, const Target& target, const BlockParameters& blocks)
      : in_(in), target_(target) {
    for (const NodeId id : in.inputs(InputKind::parameter)) {
      const auto at = blocks.find(in.input_name(id));
      const Type& type = in.type({id, 0});
      if (at == blocks.end() || !type.storage.is_plain() ||
          !storage_refusal(at->second, type.dtype, type.shape).empty())
        continue;
      storages_.emplace(id, at->second);
    }
  }

  Graph run(Notes* notes) {
    if (storages_.empty()) return in_;
    Graph out = rewrite(
        in_,
        [&](Rewriter& r, NodeId id) {
          return in_.is_input(id) ? replace_parameter(r, id) : replace_operands(r, id);
        },
        Types::change);
    if (notes)
      notes->push_back(fmt::format("{} in the file's blocks, {} of them also as floats",
                                   counted(std::ssize(storages_), "parameter"),
                                   std::ssize(floats_)));
    return out;
  }

 private:
  bool is_block(ValueId v) const { return storages_.contains(v.node); }

  bool replace_parameter(Rewriter& r, NodeId id) const {
    const auto at = storages_.find(id);
    if (at == storages_.end()) return false;
    Attrs attrs = in_.node(id).attrs;
    attrs.set("storage", at->second.str());
    r.copy(id, std::move(attrs));
    return true;
  }

  bool replace_operands(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (std::ranges::none_of(node.operands, [&](ValueId v) { return is_block(v); })) return false;
    r.enter_scope_of(id);
    std::vector<Value> operands = r.operands(id);
    const bool reads_blocks = runs_on_blocks(id);
    for (size_t i = 0; i < operands.size(); ++i)
      if (is_block(node.operands[i]) && !(reads_blocks && i == 0))
        operands[i] = floats(operands[i]);
    const std::vector<Value> results = call(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
    return true;
  }

  /// Whether the target has a kernel for the node with operand 0 in blocks.
  bool runs_on_blocks(NodeId id) const {
    const Node& node = in_.node(id);
    if ((!is(node, Op::store) && !is(node, Op::embedding)) || !is_block(node.operands[0]))
      return false;
    Graph alone;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      Type type = in_.type(node.operands[i]);
      if (i == 0) type.storage = storages_.at(node.operands[0].node);
      operands.push_back(alone.input(fmt::format("{}", i), type).id);
    }
    return target_.runs(alone, alone.add(*node.op, operands, node.attrs));
  }

  Value floats(Value blocks) {
    const auto [at, is_new] = floats_.try_emplace(blocks.id);
    if (is_new) at->second = store(blocks, Storage{});
    return at->second;
  }

  const Graph& in_;
  const Target& target_;
  std::map<NodeId, Storage> storages_;  // of the parameters that are read in blocks
  std::map<ValueId, Value> floats_;     // by parameter
};

}  // namespace

Graph read_blocks(const Graph& graph, const Target& target, const BlockParameters& blocks,
                  Notes* notes) {
  return BlockReader(graph, target, blocks).run(notes);
}

}  // namespace brrr
