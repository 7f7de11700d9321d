#pragma once
// NVRTC: CUDA C++ to machine code of one architecture.

#include <nvrtc.h>

#include <string>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/live/library.h"

namespace brrr::cuda {

#define BRRR_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)               \
  X(nvrtcGetErrorString)        \
  X(nvrtcCreateProgram)         \
  X(nvrtcDestroyProgram)        \
  X(nvrtcCompileProgram)        \
  X(nvrtcGetCUBINSize)          \
  X(nvrtcGetCUBIN)              \
  X(nvrtcGetProgramLogSize)     \
  X(nvrtcGetProgramLog)

class Nvrtc {
 public:
  /// Looks it up; returns why not, "" when it is ready.
  std::string load();
  std::string version() const;  // "13.0"
  /// Safe from several threads. `architecture`: "sm_90a". InternalError with the compiler's log
  /// when the text does not compile: it is ours.
  std::string compile(const std::string& text, const std::vector<std::string>& options,
                      const std::string& architecture) const;

 private:
  struct Table {
    BRRR_NVRTC_FUNCTIONS(BRRR_DECLARE_FUNCTION)
  };
  void check(nvrtcResult result, const char* call) const;
  Table f_;
};

/// What NVRTC calls the machine code of a GPU: "sm_80", "sm_90a".
std::string architecture_of(const GpuDescription& gpu);

}  // namespace brrr::cuda
