#pragma once
// The judge: evaluates any graph in fp64 with the op table's own loops, composites through their
// decomposition. Slow and right. Floating values are not rounded between ops, so it says what the
// mathematics says, whatever the dtypes of the graph. Integers are exact, up to 64 bits.

#include <map>
#include <string>
#include <vector>

#include "ir/evaluate.h"
#include "runtime/backend.h"

namespace brrr::reference {

using Tensors = std::map<std::string, RefTensor>;

/// Inputs by name; results by output name, updates as "update:<state>". Throws UserError for a
/// missing input or one of another type, and as the ops do, with the scope of the node.
Tensors evaluate(const Graph& graph, const Tensors& inputs);

using brrr::evaluate_node;

/// A backend without kernels: every primitive runs by its reference loops, rounded to its dtype.
Backend backend();

}  // namespace brrr::reference
