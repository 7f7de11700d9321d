#pragma once
// A region as a program: compiled once, run on memory that the node's kernel is given. It reads its
// operands where they lie and makes its results where they belong, so that what it needs beside
// them is one piece of scratch memory.

#include <memory>
#include <span>
#include <vector>

#include "runtime/device.h"
#include "runtime/program.h"

namespace brrr::cpu {

/// The region with its inputs as states, which programs read and write in place. Outputs are as
/// they were.
Graph with_inputs_as_states(const Graph& region);

class RegionProgram {
 public:
  /// The inputs of `graph` are states; its outputs "0", "1", ... may be read after a run.
  explicit RegionProgram(const Graph& graph);

  int64_t scratch_bytes() const;
  /// Where the inputs lie, in their order, and the scratch memory, whose content nobody kept.
  void place(std::vector<const void*> states, std::byte* scratch);
  void run() { program_.run(); }
  /// Output number `i` of those that update nothing.
  const std::byte* output(size_t i) const { return program_.address(outputs_[i]); }

 private:
  std::unique_ptr<Device> device_;
  Program program_;
  std::vector<ValueId> outputs_;
  std::vector<const void*> states_;
  std::byte* scratch_ = nullptr;
};

}  // namespace brrr::cpu
