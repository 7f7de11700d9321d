#pragma once
// The CUDA driver (libcuda.so.1) as a table of functions.

#include <cuda.h>

#include <string>

#include "backend/cuda/live/library.h"

namespace brrr::cuda {

#define BRRR_DRIVER_FUNCTIONS(X) \
  X(cuInit)                      \
  X(cuGetErrorName)              \
  X(cuDeviceGetCount)            \
  X(cuDeviceGet)                 \
  X(cuDeviceGetName)             \
  X(cuDeviceTotalMem)            \
  X(cuDeviceGetAttribute)        \
  X(cuDeviceGetPCIBusId)         \
  X(cuDevicePrimaryCtxRetain)    \
  X(cuDevicePrimaryCtxRelease)   \
  X(cuCtxSetCurrent)             \
  X(cuMemAlloc)                  \
  X(cuMemFree)                   \
  X(cuMemAllocHost)              \
  X(cuMemFreeHost)               \
  X(cuMemsetD8Async)             \
  X(cuMemcpyHtoDAsync)           \
  X(cuMemcpyDtoHAsync)           \
  X(cuMemcpyDtoDAsync)           \
  X(cuStreamCreate)              \
  X(cuStreamDestroy)             \
  X(cuStreamSynchronize)         \
  X(cuStreamWaitEvent)           \
  X(cuStreamBeginCapture)        \
  X(cuStreamEndCapture)          \
  X(cuStreamIsCapturing)         \
  X(cuEventCreate)               \
  X(cuEventDestroy)              \
  X(cuEventRecord)               \
  X(cuEventRecordWithFlags)      \
  X(cuEventSynchronize)          \
  X(cuGraphInstantiate)          \
  X(cuGraphLaunch)               \
  X(cuGraphDestroy)              \
  X(cuGraphExecDestroy)          \
  X(cuModuleLoadData)            \
  X(cuModuleUnload)              \
  X(cuModuleGetFunction)         \
  X(cuFuncSetAttribute)          \
  X(cuLaunchKernel)              \
  X(cuTensorMapEncodeTiled)

struct Driver {
  BRRR_DRIVER_FUNCTIONS(BRRR_DECLARE_FUNCTION)
  // The same function under two names: drivers before 12.8 have the older one alone.
  CUresult (*event_elapsed_time)(float* ms, CUevent start, CUevent end) = nullptr;

  /// Looks everything up and initialises the driver; returns why not, "" when it is ready.
  static std::string load(Driver& table);
  /// UserError (exit 3) when there is not enough memory, InternalError for other failures.
  void check(CUresult result, const char* call) const;
  std::string name_of(CUresult result) const;
};

}  // namespace brrr::cuda

/// Calls a function of the driver table `d`, checked.
#define BRRR_CU(d, call) (d).check((d).call, #call)
