#include "passes/weights/right_operand.h"

#include "ops/ops.h"
#include "ops/panels.h"

namespace brrr {

std::optional<bool> transposes_right(const Node& node) {
  const auto form = product_form(node);
  if (!form || form->transpose_a) return {};
  return form->transpose_b;
}

Attrs with_right_in_panels(const Node& node, int64_t columns) {
  Attrs attrs = node.attrs;
  attrs.set("panels", true);
  if (node.op->product->transposes) attrs.set("transpose_b", false);
  if (columns % kPanelColumns != 0) attrs.set("columns", columns);
  return attrs;
}

}  // namespace brrr
