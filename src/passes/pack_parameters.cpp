#include <map>

#include "ops/ops.h"
#include "ops/panels.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// Whether operand `i` of the node is the right one of a product, as it stands.
bool is_right_operand(const Node& node, size_t i) {
  if (i != 1) return false;
  if (node.op->name == "linear") return true;
  return node.op->name == "matmul" && !node.attrs.get<bool>("transpose_a") &&
         !node.attrs.get<bool>("transpose_b");
}

}  // namespace

Graph pack_parameters(const Graph& in, const Target& target, Notes* notes) {
  std::map<NodeId, bool> packed;  // parameters: whether all that reads them is such products
  for (NodeId id = 0; id < in.size(); ++id) {
    const Node& node = in.node(id);
    if (in.is_input(id) && in.input_kind(id) == InputKind::parameter) {
      const Type& t = in.type({id, 0});
      packed[id] = t.shape.rank() == 2 && t.shape.size(0) % kPanelTerms == 0 &&
                   t.shape.size(1) % kPanelColumns == 0;
    }
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (const auto at = packed.find(node.operands[i].node); at != packed.end())
        at->second = at->second && is_right_operand(node, i) && target.reads_panels(in, id);
  }
  for (const Output& o : in.outputs()) packed.erase(o.value.node);
  const auto is_packed = [&](NodeId id) {
    const auto at = packed.find(id);
    return at != packed.end() && at->second;
  };
  int count = 0;
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (is_packed(id)) {
      const Shape& s = in.type({id, 0}).shape;
      r.bind({id, 0},
             r.out().input(kPanelsPrefix + in.input_name(id), panels_shape(s.size(0), s.size(1)),
                           in.type({id, 0}).dtype, InputKind::parameter));
      ++count;
      return true;
    }
    if (node.operands.size() < 2 || !is_packed(node.operands[1].node)) return false;
    std::vector<ValueId> operands;
    for (const Value& v : r.operands(id)) operands.push_back(v.id);
    Attrs attrs = node.attrs;
    attrs.set("panels", true);
    r.bind({id, 0}, r.out().value(r.out().add(*node.op, operands, attrs)));
    return true;
  });
  if (notes && count)
    notes->push_back(fmt::format("{} parameters in panels, as products read them", count));
  return out;
}

}  // namespace brrr
