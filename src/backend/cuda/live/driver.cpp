#include "backend/cuda/live/driver.h"

#include "base/errors.h"

namespace brrr::cuda {

std::string Driver::load(Driver& table) {
  SharedLibrary library({"libcuda.so.1"});
  if (!library.is_open()) return "no NVIDIA driver: " + library.reason();
  bool all = true;
  BRRR_DRIVER_FUNCTIONS(BRRR_FIND_FUNCTION)
  if (!library.find("cuEventElapsedTime_v2", table.event_elapsed_time))
    all = library.find("cuEventElapsedTime", table.event_elapsed_time) && all;
  if (!all) return "the NVIDIA driver does not do: " + library.reason();
  if (const CUresult result = table.cuInit(0); result != CUDA_SUCCESS)
    return fmt::format("the NVIDIA driver found no usable GPU: cuInit said {}",
                       table.name_of(result));
  return "";
}

std::string Driver::name_of(CUresult result) const {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name != nullptr ? name : std::to_string(result);
}

void Driver::check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw UserError(
        "the GPU has not enough free memory: make the batch, the context or the model smaller, or "
        "end what else uses it",
        ExitCode::kNoMemory);
  const std::string_view name = std::string_view(call).substr(0, std::string_view(call).find('('));
  throw InternalError(fmt::format("the NVIDIA driver: {} said {}", name, name_of(result)));
}

}  // namespace brrr::cuda
