#pragma once
// What the commands of a node compute and how many bytes they move, from the plan alone: what a
// table of predicted times is made of. Nothing here is measured.

#include <string>
#include <vector>

#include "backend/cuda/node_plan.h"

namespace brrr::cuda {

struct CommandWork {
  enum class Kind { product, attention, attention_grad, other };
  Kind kind = Kind::other;
  std::string name;          // of a library call or a kernel; "": all launches of the node
  DType dtype = DType::f32;  // of the factors of a product or of attention
  bool tf32 = false;         // f32 factors may be rounded
  int64_t launches = 0;
  double flops = 0;
  double bytes = 0;        // each operand read once, each result written once
  double bytes_again = 0;  // operands read by a further launch; scratch memory written and read
};

/// The library calls of a plan one by one, what several launches of one kernel do as one. Where
/// no library is called, the launches are one entry and their work is the cost of the node.
/// Workspaces of products and what a kernel reads again from a cache are not counted.
std::vector<CommandWork> work_of(const NodeView& node, const NodePlan& plan);

}  // namespace brrr::cuda
