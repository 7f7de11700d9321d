#pragma once
// The part of the toolkit's compiler that tests use, found at run time.

#include <dlfcn.h>

#include <string>
#include <vector>

#include "backend/cuda/launch.h"
#include "base/errors.h"

namespace brrr::test {

class Nvrtc {
 public:
  /// Null where libnvrtc is not installed.
  static const Nvrtc* get() {
    static const Nvrtc n;
    return n.library_ != nullptr ? &n : nullptr;
  }
  struct Result {
    bool good = false;
    std::string log;
    size_t cubin_bytes = 0;
    std::string ptx;
  };
  /// "13.0"
  std::string version() const {
    int major = 0, minor = 0;
    version_(&major, &minor);
    return std::to_string(major) + "." + std::to_string(minor);
  }
  /// Machine code, with the assembler's report of registers and spills in the log.
  Result compile(const cuda::KernelSource& source, int sm) const {
    return compile(source.text(), "sm_" + architecture(sm), true);
  }
  /// PTX alone.
  Result compile_to_ptx(const cuda::KernelSource& source, int sm) const {
    return compile(source.text(), "compute_" + architecture(sm), false);
  }

 private:
  static std::string architecture(int sm) {
    return std::to_string(sm) + (sm == cuda::kSmOfWgmma ? "a" : "");
  }
  Result compile(const std::string& text, const std::string& architecture, bool assemble) const {
    void* program = nullptr;
    Result result;
    if (create_(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr) != 0) return result;
    std::vector<std::string> options = cuda::compile_options();
    options.push_back("--gpu-architecture=" + architecture);
    if (assemble) options.emplace_back("--ptxas-options=-v");
    std::vector<const char*> pointers;
    for (const std::string& o : options) pointers.push_back(o.c_str());
    result.good = compile_(program, static_cast<int>(pointers.size()), pointers.data()) == 0;
    const auto take = [&](int (*size_of)(void*, size_t*), int (*read)(void*, char*)) {
      size_t size = 0;
      size_of(program, &size);
      std::string taken(size, '\0');
      read(program, taken.data());
      while (!taken.empty() && taken.back() == '\0') taken.pop_back();
      return taken;
    };
    result.log = take(log_size_, log_);
    if (result.good && assemble) cubin_size_(program, &result.cubin_bytes);
    if (result.good && !assemble) result.ptx = take(ptx_size_, ptx_);
    destroy_(&program);
    return result;
  }
  Nvrtc() {
    for (const char* name :
         {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so",
          "/usr/local/cuda/lib/libnvrtc.so"})
      if ((library_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    if (library_ == nullptr) return;
    find("nvrtcVersion", version_);
    find("nvrtcCreateProgram", create_);
    find("nvrtcCompileProgram", compile_);
    find("nvrtcGetProgramLogSize", log_size_);
    find("nvrtcGetProgramLog", log_);
    find("nvrtcGetCUBINSize", cubin_size_);
    find("nvrtcGetPTXSize", ptx_size_);
    find("nvrtcGetPTX", ptx_);
    find("nvrtcDestroyProgram", destroy_);
  }
  template <typename F>
  void find(const char* name, F& f) {
    f = reinterpret_cast<F>(::dlsym(library_, name));
    BRRR_CHECK(f != nullptr, "libnvrtc has no {}", name);
  }
  void* library_ = nullptr;
  int (*version_)(int*, int*) = nullptr;
  int (*create_)(void**, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*log_size_)(void*, size_t*) = nullptr;
  int (*log_)(void*, char*) = nullptr;
  int (*cubin_size_)(void*, size_t*) = nullptr;
  int (*ptx_size_)(void*, size_t*) = nullptr;
  int (*ptx_)(void*, char*) = nullptr;
  int (*destroy_)(void**) = nullptr;
};

}  // namespace brrr::test
