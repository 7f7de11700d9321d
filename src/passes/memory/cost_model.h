#pragma once
// How long a node takes, by the roofline: arithmetic at the peak of its kind, or traffic at the
// bandwidth of memory, whichever takes longer. Good for comparing graphs, not for clocks.

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// What a machine reaches. The defaults have the proportions of two cores with AVX2; a caller that
/// has measured peaks fills them in.
struct Rates {
  double contraction_flops = 120e9;      // per second, f32 products
  double low_contraction_flops = 120e9;  // per second, products of 16-bit operands
  double attention_share = 0.5;          // of these rates, in attention
  double other_flops = 20e9;             // per second, everything else
  double bytes = 16e9;                   // per second, to and from memory
  double node_seconds = 2e-6;            // to start any node
  bool operator==(const Rates&) const = default;
};

/// Of the arithmetic of a node alone.
double compute_seconds(const Graph& graph, NodeId id, const Rates& rates);
/// Of a node; 0 for views and inputs.
double predicted_seconds(const Graph& graph, NodeId id, const Rates& rates);
/// Of one run: all nodes but the constants, which are computed once.
double predicted_seconds(const Graph& graph, const Rates& rates);

}  // namespace brrr
