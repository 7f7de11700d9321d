// What the driver says of the GPUs of this machine.

#include <array>

#include "backend/cuda/device.h"
#include "backend/cuda/live/cublaslt.h"
#include "backend/cuda/live/cudnn.h"
#include "backend/cuda/live/driver.h"
#include "backend/cuda/live/nvml.h"
#include "backend/cuda/live/nvrtc.h"
#include "base/errors.h"

namespace brrr::cuda {

LiveGpus live_gpus() {
  LiveGpus all;
  Driver d;
  all.reason = Driver::load(d);
  int count = 0;
  if (!all.reason.empty()) return all;
  if (const CUresult result = d.cuDeviceGetCount(&count); result != CUDA_SUCCESS) {
    all.reason = fmt::format("cuDeviceGetCount said {}", d.name_of(result));
    return all;
  }
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    std::array<char, 256> model{};
    size_t bytes = 0;
    if (d.cuDeviceGet(&device, i) != CUDA_SUCCESS ||
        d.cuDeviceGetName(model.data(), static_cast<int>(model.size()) - 1, device) !=
            CUDA_SUCCESS ||
        d.cuDeviceTotalMem(&bytes, device) != CUDA_SUCCESS)
      continue;
    const auto attribute = [&](CUdevice_attribute which) {
      int value = 0;
      return d.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
    };
    LiveGpu gpu;
    gpu.model = model.data();
    GpuDescription& g = gpu.description;
    g.memory_bytes = static_cast<int64_t>(bytes);
    g.sm = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
           attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    g.name = fmt::format("cuda:sm_{}", g.sm);
    g.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    g.shared_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    g.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    all.gpus.push_back(std::move(gpu));
  }
  if (all.gpus.empty()) all.reason = "the NVIDIA driver lists no GPU";
  return all;
}

std::optional<DeviceReading> read_gpu(int ordinal) {
  Driver d;
  CUdevice device = 0;
  char bus[32] = {};
  if (!Driver::load(d).empty() || d.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
      d.cuDeviceGetPCIBusId(bus, sizeof(bus) - 1, device) != CUDA_SUCCESS)
    return std::nullopt;
  return Nvml(bus).read();
}

std::string missing_libraries() {
  for (const std::string& reason : {Nvrtc().load(), CublasLt::find()})
    if (!reason.empty()) return reason;
  return "";
}

std::string missing_extras() {
  const std::string reason = cudnn::Library().load();
  return reason.empty() ? "" : reason + ": attention by our own kernels alone";
}

}  // namespace brrr::cuda
