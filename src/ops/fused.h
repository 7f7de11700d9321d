#pragma once
// The body of a `fused` node: a small graph of its own, a Region.

#include <optional>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// The body of a node, as long as the node or a copy of its attributes lives: static shapes,
/// nothing fused inside.
const Graph& fused_body(const Node& node);

/// matmul, linear and scaled_matmul.
bool is_matrix_product(const Node& node);
/// The product or convolution that a body begins with, or kNoNode.
NodeId product_of(const Graph& body);

/// A sum that stands beside the product of a body, over the terms that the product contracts: of
/// the right operand [K, N] -> N numbers, or of a left one [K, M] -> M. Beside the gradient of a
/// weight that is the gradient of its bias.
struct BiasGradient {
  NodeId sum = kNoNode;
  uint32_t result = 0;   // output of the body: the sum, or a reshape of it
  bool of_left = false;  // operand of the product
};
std::optional<BiasGradient> bias_gradient_of(const Graph& body);
/// The body with the same inputs, but without that sum; `results[i]` is its output i in the whole.
struct BodyPart {
  Graph body;
  std::vector<uint32_t> results;
  /// Whether the product is all that it computes.
  bool is_product_alone() const {
    return results.size() == 1 && body.outputs()[0].value.node == product_of(body);
  }
};
BodyPart without(const Graph& body, const BiasGradient& gradient);

/// The class of the op; of a fused node with a product: contraction.
OpClass class_of(const Node& node);

/// Element i of every result depends on element i of the operands alone (of operands that are not
/// broadcast): add, where, gelu, dropout, cast, ...
bool is_pointwise(const OpDef& op);

}  // namespace brrr
