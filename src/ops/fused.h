#pragma once
// The body of a `fused` node: a small graph of its own, in the text form of ir/text.h.

#include <memory>
#include <string>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// The graph that the text stands for; one object per text, shared. Throws UserError when the text
/// is no body: static shapes, inputs a0, a1, ... of kind data, outputs "0", "1", ..., nothing fused
/// inside.
std::shared_ptr<const Graph> fused_body(const std::string& text);
/// The body of a node that infer has checked.
std::shared_ptr<const Graph> fused_body(const Node& node);

/// matmul, linear and scaled_matmul.
bool is_matrix_product(const Node& node);
/// The product that a body begins with, or kNoNode.
NodeId product_of(const Graph& body);
/// The class of the op; of a fused node with a product: contraction.
OpClass class_of(const Node& node);

/// Element i of every result depends on element i of the operands alone (of operands that are not
/// broadcast): add, where, gelu, dropout, cast, ...
bool is_pointwise(const OpDef& op);

}  // namespace brrr
