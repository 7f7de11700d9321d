#include "backend/cuda/launch.h"

#include <span>
#include <utility>

namespace brrr {

std::span<const std::pair<std::string_view, std::string_view>> embedded_backend_cuda_kernels();

namespace cuda {

std::optional<GpuDescription> gpu_description(std::string_view name) {
  const GpuDescription known[] = {{"cuda:sm_80", 80, 108, 163 * 1024, 40 << 20},
                                  {"cuda:sm_89", 89, 142, 99 * 1024, 96 << 20, int64_t{48} << 30},
                                  {"cuda:sm_90", 90, 132, 227 * 1024, 50 << 20}};
  for (const GpuDescription& gpu : known)
    if (gpu.name == name) return gpu;
  return std::nullopt;
}

std::string_view device_header(std::string_view name) {
  for (const auto& [file, text] : embedded_backend_cuda_kernels())
    if (file == name) return text;
  BRRR_CHECK(false, "there is no device header '{}'", name);
  return {};
}

std::string KernelSource::text() const {
  std::string all;
  for (const std::string& header : headers) all += device_header(header);
  return all + body;
}

std::vector<std::string> compile_options() { return {"--std=c++17", "--fmad=false"}; }

}  // namespace cuda
}  // namespace brrr
