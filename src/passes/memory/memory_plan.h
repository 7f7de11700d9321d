#pragma once
// The memory plan: a place for every value of a scheduled, static graph, before anything is
// allocated. State and parameters live in a region that outlives the run, constants (values that
// depend on no input) in a region that is filled once, everything else in the temporary region,
// where values whose lifetimes do not meet share bytes. Views and in-place results share their
// operand's bytes.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

enum class MemoryRegion : uint8_t { state, constant, temporary };

struct Buffer {
  MemoryRegion region = MemoryRegion::temporary;
  int64_t bytes = 0;   // rounded up to the alignment
  int64_t offset = 0;  // within its region; for state: within the program's list, see StateSlot
  int32_t first = 0;   // the step that writes it first, -1 for what is there before the run
  int32_t last = 0;    // the last step that reads or writes it
  NodeId state = kNoNode;
  std::string label;  // of the value that made it, for reports
};

struct StateCopy {
  ValueId from;
  NodeId to;
};

struct MemoryPlan {
  std::vector<Buffer> buffers;
  std::vector<std::vector<uint32_t>> buffer_of;  // [node][port]
  std::vector<std::vector<int64_t>> offset_in;   // [node][port]: where a view begins in its buffer
  std::vector<int32_t> scratch_of;               // [node]: buffer of the kernel's scratch, or -1
  std::vector<bool> constant;                    // [node]: runs once
  std::vector<StateCopy> copies;                 // after the last step, in order
  int64_t constant_bytes = 0;
  int64_t temporary_bytes = 0;
  int64_t peak_live_bytes =
      0;  // lower bound of temporary_bytes: the most that is alive at one step
  int32_t peak_step = 0;

  uint32_t buffer(ValueId v) const { return buffer_of[v.node][v.port]; }
};

struct PlanOptions {
  int64_t alignment = 64;
  /// Off: no sharing and no in-place results. Slower and larger, bit-identical: the judge of the
  /// plan.
  bool reuse = true;
  /// Scratch bytes of the kernel of a node.
  std::function<int64_t(NodeId)> scratch_bytes = [](NodeId) { return int64_t{0}; };
  /// Whether a node's kernel keeps the op's in-place promise (decides per node).
  std::function<bool(NodeId)> in_place = [](NodeId) { return true; };
  /// The last node that may run while an asynchronous kernel still uses its operands and results.
  std::function<NodeId(NodeId)> busy_until = [](NodeId id) { return id; };
};

MemoryPlan memory_plan(const Graph& graph, const PlanOptions& options = {});

/// Throws InternalError if two buffers of one region that live at the same time overlap, or
/// anything lies outside its region.
void verify(const MemoryPlan& plan);

}  // namespace brrr
