#pragma once
// A node's plan on a device: functions loaded, addresses filled in, ready to be queued.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/live/cublaslt.h"
#include "backend/cuda/live/driver.h"
#include "backend/cuda/live/sdpa.h"
#include "backend/cuda/node_plan.h"

namespace brrr::cuda {

/// The value of one parameter, aligned for what the driver asks of any.
class ArgumentBytes {
 public:
  std::byte* data() { return blocks_.front().bytes; }
  /// Room for more; no address that was given before holds.
  std::byte* add(size_t bytes);

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  std::vector<Block> blocks_;
  size_t size_ = 0;
};

/// The driver does not describe such a tensor to the copy engine; the reason names the tensor.
struct TensorRefusal {
  std::string reason;
};

/// The values of a kernel's parameters, as cuLaunchKernel takes them.
class BoundLaunch {
 public:
  /// `function` was loaded from the launch's source; may be told of its shared memory. Throws
  /// TensorRefusal.
  BoundLaunch(const Driver& driver, CUfunction function, const Launch& launch,
              const KernelArgs& args, CUdeviceptr error);
  void run(const Driver& driver, CUstream stream);

 private:
  CUfunction function_;
  Dim3 grid_, block_;
  unsigned shared_bytes_;
  std::deque<ArgumentBytes> values_;
  std::vector<void*> parameters_;
};

/// Where an argument lies on the device.
std::byte* address_of(const LaunchArg& arg, const KernelArgs& args);
MatmulAddresses addresses_of(const MatmulCall& call, const KernelArgs& args,
                             const GpuDescription& gpu);
SdpaAddresses addresses_of(const SdpaCall& call, const KernelArgs& args);

}  // namespace brrr::cuda
