#pragma once
// The loops behind peaks.h, one per instruction: straight chains of independent operations on
// registers, and passes over memory. Internal to this folder.

#include <cstdint>
#include <vector>

namespace brrr::cpu {

/// Runs `rounds` rounds and returns a value that depends on all of them.
using ComputeLoop = float (*)(int64_t rounds);

struct ComputeKernel {
  const char *type, *accumulate, *instruction;
  ComputeLoop loop;
  double ops_per_round;
};

/// Those that this machine, limited to best_isa(), can run.
std::vector<ComputeKernel> compute_kernels();

struct MemoryKernels {
  /// Reads `bytes` (a multiple of 512) and returns a value that depends on them.
  uint64_t (*read)(const void* data, int64_t bytes);
  /// Overwrites without reading (non-temporal stores where the processor has them).
  void (*write)(void* data, int64_t bytes);
  void (*copy)(void* to, const void* from, int64_t bytes);
};
/// All pointers are 64-byte aligned.
MemoryKernels memory_kernels();

}  // namespace brrr::cpu
