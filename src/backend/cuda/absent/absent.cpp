// What a build without the toolkit's headers has instead of live/.

#include "backend/cuda/device.h"
#include "base/errors.h"

namespace brrr::cuda {

LiveGpus live_gpus() {
  return {{},
          "this build has no CUDA: the toolkit's headers (cuda.h, nvrtc.h, cublasLt.h of CUDA 12 "
          "or 13) were not found when it was configured"};
}

std::string missing_libraries() { return live_gpus().reason; }

std::string missing_extras() { return ""; }

std::optional<DeviceReading> read_gpu(int) { return std::nullopt; }

std::unique_ptr<Device> open_gpu(int, const GpuDescription&) {
  throw UserError(live_gpus().reason);
}

}  // namespace brrr::cuda
