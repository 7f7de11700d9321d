#pragma once
// One GPU as a Device: its arena, one stream on which everything runs in order and one for what
// comes from the host, kernels compiled and chosen when a program is bound, recordings as CUDA
// graphs.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/live/bound_node.h"
#include "backend/cuda/live/nvml.h"
#include "backend/cuda/live/nvrtc.h"
#include "backend/cuda/products/autotune.h"

namespace brrr::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, GpuDescription gpu);
  ~CudaDevice() override;

  std::string name() const override { return name_; }
  std::optional<DeviceReading> reading() const override { return nvml_->read(); }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data, int64_t bytes) noexcept override;
  void copy_in(std::byte* to, const void* from, int64_t bytes) override;
  void copy_out(void* to, const std::byte* from, int64_t bytes) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void prepare(std::span<const Task> tasks) override;
  void run(const Task& task) override;
  void synchronise() override;
  std::unique_ptr<Marks> marks(size_t count) override;
  std::unique_ptr<Recording> record(const std::function<void()>& work) override;
  void replay(Recording& recording) override;

 private:
  class Prepared;  // of a node: what CudaKernel keeps
  class Bench;     // memory and events to measure ways of a node

  void enter() const;  // this thread uses the context
  void load_functions(std::span<const Task> tasks);
  void load_functions_of(const std::vector<const NodePlan*>& ways);
  struct Ways;
  struct BenchArgs;
  std::unique_ptr<Prepared> bind(const NodePlan& plan, const KernelArgs& args,
                                 const std::string& scope, bool measures);
  std::unique_ptr<Prepared> fastest(const CudaKernel& kernel, const Task& task);
  std::optional<BenchArgs> bench_args(const CudaKernel& kernel);
  void measure(const CudaKernel& kernel, const std::string& key,
               const std::vector<const NodePlan*>& ways, const std::vector<std::string>& names);
  bool choose_algorithm(BoundMatmul& matmul, const MatmulCall& call, const MatmulAddresses& at,
                        bool measures);
  const cudnn::Library* cudnn();
  bool opened_cudnn();
  void complain(const std::string& what);
  std::shared_ptr<const SdpaPlan> sdpa_plan(const SdpaCall& call);
  CUdeviceptr error_cell(const LaunchArg& arg, const std::string& scope);
  void throw_errors();

  Driver d_;
  Nvrtc nvrtc_;
  CublasLt cublaslt_;
  std::unique_ptr<cudnn::Library> cudnn_;  // where it is, once it was needed
  bool sought_cudnn_ = false;
  std::map<std::string, std::shared_ptr<const SdpaPlan>> sdpa_plans_;  // null: it refused
  GpuDescription gpu_;
  std::string name_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  // What comes from the host goes through two pairs of buffers in turns: over on a stream of its
  // own, so beside kernels that run, and to its place when its turn on the other stream has come.
  struct Landing {
    void* host = nullptr;  // pinned
    CUdeviceptr device = 0;
    CUevent sent = nullptr;   // the host's buffer may be filled again
    CUevent taken = nullptr;  // the device's buffer may be filled again
  };
  CUstream copies_ = nullptr;
  Landing landings_[2];
  size_t next_landing_ = 0;
  // One word for each argument of kind error, and what it means when it is set.
  CUdeviceptr errors_ = 0;
  uint32_t* errors_read_ = nullptr;  // pinned
  std::vector<std::string> error_texts_;
  std::map<std::string, CUfunction> functions_;  // by text and entry
  std::vector<CUmodule> modules_;
  std::set<std::string> complaints_;  // printed once: what is slow, what was refused and why
  bool tunes_ = true;                 // measures which way is fastest
  bool keeps_ = true;                 // records graphs
  bool waits_ = false;                // for every kernel
  std::unique_ptr<Autotune> autotune_;
  std::unique_ptr<Bench> bench_;
  double last_bench_ = -1e9;  // seconds
  std::unique_ptr<Nvml> nvml_;
};

}  // namespace brrr::cuda
