#pragma once
// Runs launch plans without a GPU: the same text, compiled by the host's compiler, many kernels to
// a file, kept by content from run to run. The threads of a block are fibers that take turns at
// barriers and shuffles, forwards and backwards in turn. Shared memory starts as NaN; blocks run in
// an order of no meaning. With BRRR_EMULATE=ptx in the environment the kernels are those of the
// toolkit's compiler instead, for the GPU that a plan is for, on the PTX machine (ptx_machine.h):
// not in a process whose libnvrtc is a fake.

#include <memory>
#include <vector>

#include "backend/cuda/launch.h"
#include "runtime/backend.h"

namespace brrr::test {

/// Who runs kernels from now on.
enum class Emulation { host_compiler, ptx };
/// Returns who did before.
Emulation set_emulation(Emulation emulation);

/// Kernels of the plan will be compiled with the next ones that are.
void emulate_later(const cuda::LaunchPlan& plan);
/// Compiles what is waiting.
void compile_emulated();
/// Runs a plan on host memory. Throws UserError where a kernel says that its data are bad.
/// `sm`: of the GPU that it is for.
void run_emulated(const cuda::LaunchPlan& plan, const KernelArgs& args,
                  int sm = cuda::GpuDescription{}.sm);
/// Runs one grid; `args` as cuLaunchKernel takes them.
void run_emulated(const cuda::KernelSource& source, cuda::Dim3 grid, cuda::Dim3 threads,
                  int shared_bytes, void** args, int sm = cuda::GpuDescription{}.sm);

/// An entry as one of the host: its kernels run under the emulation.
KernelEntry emulated_entry(const cuda::PlanEntry& entry, const cuda::GpuDescription& gpu);
/// All of device_kernels().
Backend emulated_backend(const cuda::GpuDescription& gpu = {});

}  // namespace brrr::test
