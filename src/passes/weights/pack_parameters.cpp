#include <map>

#include "ops/ops.h"
#include "ops/panels.h"
#include "passes/passes.h"
#include "passes/weights/right_operand.h"

namespace brrr {
namespace {

/// How a node reads a parameter in panels.
enum class Reads { never, as_right, as_transposed, as_table };

Reads reads(const Graph& g, const Target& target, NodeId id, size_t operand) {
  const Node& node = g.node(id);
  if (node.op->part == OpDef::Part::rows) return operand == 0 ? Reads::as_table : Reads::never;
  const std::optional<bool> transposed = transposes_right(node);
  if (operand != 1 || !transposed || !target.reads_panels(g, id)) return Reads::never;
  return *transposed ? Reads::as_transposed : Reads::as_right;
}

/// Who reads a parameter.
struct Readers {
  bool right = false, transposed = false, others = false;
  bool table = false;
};

/// A parameter that goes into panels.
std::optional<Panels> panels_of(const Graph& g, NodeId id, const Readers& readers) {
  const Shape& s = g.type({id, 0}).shape;
  if (readers.others || s.rank() != 2) return {};
  // Either order of a matrix, not both.
  if (readers.right == readers.transposed || (readers.right && readers.table)) return {};
  if (readers.transposed) {
    if (s.size(1) % kPanelTerms != 0) return {};
    return Panels{g.input_name(id), s.size(0)};
  }
  if (s.size(0) % kPanelTerms != 0 || s.size(1) % kPanelColumns != 0) return {};
  return Panels{g.input_name(id), std::nullopt};
}

Shape shape_of(const Panels& panels, const Shape& parameter) {
  return panels.rows ? panels_shape(parameter.size(1), *panels.rows)
                     : panels_shape(parameter.size(0), parameter.size(1));
}

Attrs in_panels(const Node& node, const Panels& panels) {
  // Without rows the columns are whole panels.
  if (node.op->product) return with_right_in_panels(node, panels.rows.value_or(0));
  Attrs attrs = node.attrs;
  attrs.set("panels", true);
  attrs.set("rows", *panels.rows);
  return attrs;
}

}  // namespace

Graph pack_parameters(const Graph& in, const Target& target, Notes* notes) {
  std::map<NodeId, Readers> readers;  // of parameters
  for (NodeId id = 0; id < in.size(); ++id) {
    if (in.is_input(id) && in.input_kind(id) == InputKind::parameter) readers[id] = {};
    for (size_t i = 0; i < in.node(id).operands.size(); ++i) {
      const auto at = readers.find(in.node(id).operands[i].node);
      if (at == readers.end()) continue;
      const Reads how = reads(in, target, id, i);
      at->second.right |= how == Reads::as_right;
      at->second.transposed |= how == Reads::as_transposed;
      at->second.table |= how == Reads::as_table;
      at->second.others |= how == Reads::never;
    }
  }
  for (const Output& o : in.outputs()) readers.erase(o.value.node);
  std::map<NodeId, Panels> packed;
  for (const auto& [id, who] : readers)
    if (const auto panels = panels_of(in, id, who)) packed.emplace(id, *panels);

  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (const auto at = packed.find(id); at != packed.end()) {
      const Type& t = in.type({id, 0});
      r.bind({id, 0}, r.out().input(panels_state(at->second), shape_of(at->second, t.shape),
                                    t.dtype, Role::panels, attributes_of(at->second)));
      return true;
    }
    for (const ValueId& operand : node.operands) {
      const auto at = packed.find(operand.node);
      if (at == packed.end()) continue;
      std::vector<ValueId> operands;
      for (const Value& v : r.operands(id)) operands.push_back(v.id);
      r.bind({id, 0}, r.out().value(r.out().add(*node.op, operands, in_panels(node, at->second))));
      return true;
    }
    return false;
  });
  if (notes && !packed.empty())
    notes->push_back(fmt::format("{} parameters in panels, as products read them", packed.size()));
  return out;
}

}  // namespace brrr
