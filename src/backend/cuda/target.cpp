#include "backend/cuda/target.h"

#include <charconv>

#include "backend/cuda/device.h"
#include "backend/cuda/kernel_list.h"

namespace brrr::cuda {
namespace {

constexpr int kLeastSm = 80;

Backend backend_of(const GpuDescription& gpu) {
  Backend backend;
  backend.name = gpu.name;
  backend.kernels = cuda_kernels(gpu);
  backend.alignment = LaunchPlan::kAlignment;
  backend.gains_by_epilogue = by_views(gains_by_epilogue);
  backend.gains_by_bias_gradient = by_views(gains_by_bias_gradient);
  backend.runs_reference = false;
  backend.has_tf32 = true;
  backend.rounds_activations = true;
  backend.memory_bytes = gpu.memory_bytes;
  backend.cache_bytes = gpu.l2_bytes;
  return backend;
}

std::optional<int> ordinal_of(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  int ordinal = 0;
  const char *begin = name.data() + 5, *end = name.data() + name.size();
  const auto [stop, failure] = std::from_chars(begin, end, ordinal);
  if (failure != std::errc() || stop != end || ordinal < 0) return std::nullopt;
  return ordinal;
}

}  // namespace

Backend described_backend(const GpuDescription& gpu) {
  Backend backend = backend_of(gpu);
  backend.open_device = [name = gpu.name]() -> std::unique_ptr<Device> {
    user_error("{} describes a GPU to plan for; to run on one, name it: --device cuda", name);
  };
  return backend;
}

bool is_name(const std::string& name) {
  return ordinal_of(name).has_value() || gpu_description(name).has_value();
}

Backend backend_named(const std::string& name) {
  if (const auto described = gpu_description(name)) return described_backend(*described);
  const std::optional<int> ordinal = ordinal_of(name);
  BRRR_CHECK(ordinal.has_value(), "'{}' names no GPU", name);
  const LiveGpus live = live_gpus();
  if (live.gpus.empty())
    user_error("{}: {}. To plan for a GPU, name what it is: cuda:sm_90", name, live.reason);
  if (*ordinal >= static_cast<int>(live.gpus.size()))
    user_error("{}: there {} here, counted from 0", name,
               live.gpus.size() == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", live.gpus.size()));
  const LiveGpu& gpu = live.gpus[static_cast<size_t>(*ordinal)];
  if (gpu.description.sm < kLeastSm)
    user_error("{}: {} has compute capability {}.{}; 8.0 or later is needed", name, gpu.model,
               gpu.description.sm / 10, gpu.description.sm % 10);
  Backend backend = backend_of(gpu.description);
  backend.open_device = [ordinal = *ordinal, description = gpu.description] {
    return open_gpu(ordinal, description);
  };
  return backend;
}

}  // namespace brrr::cuda
