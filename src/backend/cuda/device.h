#pragma once
// The GPUs of this machine, and one of them as a Device. Everything of NVIDIA's is looked up when
// it is needed, so the program starts without a driver; without the toolkit's headers at build time
// (live/ needs them, absent/ stands in) there is only the reason why not.

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/launch.h"
#include "runtime/device.h"

namespace brrr::cuda {

struct LiveGpu {
  std::string model;  // "NVIDIA H200"
  GpuDescription description;
};

struct LiveGpus {
  std::vector<LiveGpu> gpus;  // by ordinal, as CUDA_VISIBLE_DEVICES leaves them
  std::string reason;         // why there is none; "" where there are
};

/// Never throws.
LiveGpus live_gpus();

/// What open_gpu() would miss besides a GPU: NVIDIA's libraries; "" when all are here.
std::string missing_libraries();

/// What is done without where it is missing, by slower kernels; "" when all is here.
std::string missing_extras();

/// What GPU `ordinal` is doing; nothing where that is not known.
std::optional<DeviceReading> read_gpu(int ordinal);

/// UserError when it cannot be used, with what is missing.
std::unique_ptr<Device> open_gpu(int ordinal, const GpuDescription& gpu);

}  // namespace brrr::cuda
