#include "passes/weights/right_operand.h"

#include "ops/panels.h"

namespace brrr {

std::optional<bool> transposes_right(const Node& node) {
  if (node.op->name == "linear") return false;
  if (node.op->name != "matmul" || node.attrs.get<bool>("transpose_a")) return {};
  return node.attrs.get<bool>("transpose_b");
}

Attrs with_right_in_panels(const Node& node, int64_t columns) {
  Attrs attrs = node.attrs;
  attrs.set("panels", true);
  if (node.op->name == "matmul") attrs.set("transpose_b", false);
  if (columns % kPanelColumns != 0) attrs.set("columns", columns);
  return attrs;
}

}  // namespace brrr
