#pragma once
// The CUDA C++ of a body: of a `fused` node, or of one element-wise or row op alone. Two shapes of
// kernel come of it. Without rows, a thread has a few neighbouring elements. With rows, T threads
// share a row and keep what is needed of it in registers; sums over all rows are made by blocks of
// rows first and then added up. T, the blocks and the order of every sum depend on the size of the
// rows alone, so that a fused node has the bits of its parts.

#include <string>
#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

struct ClusterOperand {
  LaunchArg address;
  int64_t alignment = LaunchPlan::kAlignment;  // of the address, in bytes
};

struct Cluster {
  const Graph& body;                     // inputs a0, a1, ...; outputs "0", "1", ...
  std::vector<ClusterOperand> operands;  // of the inputs, in order
  std::vector<LaunchArg> results;        // of the outputs
  std::string name;                      // of the kernel
};

/// Why there is no kernel for the body; empty: there is one.
std::string cluster_refusal(const Graph& body);
/// Appends the launches.
void add_cluster(LaunchPlan& plan, const Cluster& cluster, const GpuDescription& gpu);

/// A body of one node, its operands as inputs.
Graph body_of(const NodeView& node);
/// Alignment of operand k, which may be a view.
int64_t operand_alignment(const NodeView& node, size_t k);
/// The operands and results of a node as those of a cluster.
Cluster cluster_of(const NodeView& node, const Graph& body);

std::vector<PlanEntry> cluster_entries();

}  // namespace brrr::cuda
