#pragma once
// A tensor that is known as a node of a graph.

#include "ir/graph.h"
#include "ir/ref_tensor.h"

namespace brrr {

/// `full` where all elements are the same, else `literal`; floats must be rounded to their dtype.
Value constant_in(Graph& graph, const RefTensor& tensor);

}  // namespace brrr
