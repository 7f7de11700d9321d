#include "backend/cuda/live/nvrtc.h"

#include "base/errors.h"

namespace brrr::cuda {

std::string Nvrtc::load() {
  SharedLibrary library({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  if (!library.is_open())
    return "no CUDA toolkit: " + library.reason() + "; set CUDA_HOME to where CUDA 12 or 13 is";
  bool all = true;
  Table& table = f_;
  BRRR_NVRTC_FUNCTIONS(BRRR_FIND_FUNCTION)
  return all ? "" : library.reason();
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  check(f_.nvrtcVersion(&major, &minor), "nvrtcVersion");
  return fmt::format("{}.{}", major, minor);
}

void Nvrtc::check(nvrtcResult result, const char* call) const {
  if (result != NVRTC_SUCCESS)
    throw InternalError(fmt::format("{} said {}", call, f_.nvrtcGetErrorString(result)));
}

std::string Nvrtc::compile(const std::string& text, const std::vector<std::string>& options,
                           const std::string& architecture) const {
  const std::string arch = "--gpu-architecture=" + architecture;
  std::vector<const char*> all{arch.c_str()};
  for (const std::string& o : options) all.push_back(o.c_str());
  nvrtcProgram program = nullptr;
  check(f_.nvrtcCreateProgram(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  struct Guard {
    const Table& f;
    nvrtcProgram* program;
    ~Guard() { f.nvrtcDestroyProgram(program); }
  } guard{f_, &program};
  const nvrtcResult result =
      f_.nvrtcCompileProgram(program, static_cast<int>(all.size()), all.data());
  if (result != NVRTC_SUCCESS) {
    size_t bytes = 0;
    check(f_.nvrtcGetProgramLogSize(program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, '\0');
    check(f_.nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
    throw InternalError(fmt::format("a kernel does not compile for {}: {}", architecture, log));
  }
  size_t bytes = 0;
  check(f_.nvrtcGetCUBINSize(program, &bytes), "nvrtcGetCUBINSize");
  std::string cubin(bytes, '\0');
  check(f_.nvrtcGetCUBIN(program, cubin.data()), "nvrtcGetCUBIN");
  return cubin;
}

std::string architecture_of(const GpuDescription& gpu) {
  // 9.0 has instructions that no other GPU runs (wgmma): they need the "a".
  return fmt::format("sm_{}{}", gpu.sm, gpu.sm == 90 ? "a" : "");
}

}  // namespace brrr::cuda
