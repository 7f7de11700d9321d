#pragma once
// Kernels of launch plans on the PTX machine: the toolkit's compiler makes PTX of their text, which
// is kept by content from run to run.

#include "backend/cuda/launch.h"
#include "support/ptx_machine.h"

namespace brrr::test {

/// Compiles it for this architecture, where that has not been done. InternalError: the compiler
/// refuses the text, or there is none (Nvrtc::get() says so before).
const ptx::Program& ptx_program(const cuda::KernelSource& source, int sm);
/// Runs one grid; `args` as cuLaunchKernel takes them. ptx::Error: what the machine refuses.
void run_ptx(const cuda::KernelSource& source, int sm, cuda::Dim3 grid, cuda::Dim3 threads,
             int shared_bytes, void** args);

}  // namespace brrr::test
