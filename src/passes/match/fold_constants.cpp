#include <map>

#include "base/human.h"
#include "ir/evaluate.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

constexpr int64_t kMostElements = 256;

class ConstantFolder {
 public:
  explicit ConstantFolder(const Graph& in) : in_(in) {}

  Graph run(Notes* notes) {
    for (NodeId id = 0; id < in_.size(); ++id) evaluate(id);
    size_t folded = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const auto known = known_.find(id);
      if (known == known_.end() || in_.node(id).operands.empty()) return false;
      r.bind({id, 0}, constant_in(r.out(), known->second));
      ++folded;
      return true;
    });
    if (folded == 0) return in_;
    if (notes) notes->push_back(fmt::format("{} computed ahead", counted(folded, "node")));
    return drop_dead(std::move(out));
  }

 private:
  void evaluate(NodeId id) {
    const Node& node = in_.node(id);
    const bool is_literal = is(node, Op::literal), is_full = is(node, Op::full);
    if (node.results.size() != 1 || !node.results[0].shape.is_static() ||
        !node.results[0].storage.is_plain() || node.results[0].shape.elements() > kMostElements)
      return;
    std::vector<const RefTensor*> operands;
    if (!is_literal && !is_full) {
      if (!node.op->is_primitive() || node.op->draws_random || node.op->runs_regions) return;
      bool has_literal = false;
      for (const ValueId& v : node.operands) {
        const auto known = known_.find(v.node);
        if (known == known_.end()) return;
        operands.push_back(&known->second);
        has_literal = has_literal || !is(in_.node(v.node), Op::full);
      }
      if (!has_literal) return;
    }
    known_.emplace(id, std::move(evaluate_node(in_, id, operands)[0]));
  }

  const Graph& in_;
  std::map<NodeId, RefTensor> known_;
};

}  // namespace

Graph fold_constants(const Graph& graph, Notes* notes) { return ConstantFolder(graph).run(notes); }

}  // namespace brrr
