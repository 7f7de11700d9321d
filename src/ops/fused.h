#pragma once
// The body of a `fused` node: a small graph of its own, in the text form of ir/text.h.

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
/// Row i of the first result, along the last axis, depends on row i of the operands that are whole
/// rows, and every element of it on all of that row: softmax, layer_norm, rms_norm and their
/// derivatives.
bool is_row_function(const OpDef& op);

}  // namespace brrr
