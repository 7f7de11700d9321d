#include <dlfcn.h>

#include <array>

#include "backend/cuda/device.h"
#include "base/errors.h"
#include "insight/machine/machine.h"

namespace brrr::insight {
namespace {

// The few calls of the CUDA driver's stable C interface that are needed to list devices; prototypes
// of our own, since no header of CUDA's is needed to build.
struct Driver {
  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*device_count)(int*);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*device_memory)(size_t*, int);
  int (*device_attribute)(int*, int attribute, int device);
  int (*error_name)(int, const char**);
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// What a GPU that is there is used for.
std::string usage() {
  const std::string missing = cuda::missing_libraries();
  if (!missing.empty()) return "present, not used: " + missing;
  const std::string extras = cuda::missing_extras();
  return "used with --device cuda (the default computes on the CPU)" +
         (extras.empty() ? extras : "; " + extras);
}

}  // namespace

Gpus find_gpus() {
  Gpus gpus;
  // Never closed: the driver keeps threads of its own.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    gpus.reason = "no NVIDIA driver: libcuda.so.1 was not found";
    return gpus;
  }
  Driver driver{};
  if (!find(library, "cuInit", driver.init) ||
      !find(library, "cuDeviceGetCount", driver.device_count) ||
      !find(library, "cuDeviceGet", driver.device_get) ||
      !find(library, "cuDeviceGetName", driver.device_name) ||
      !find(library, "cuDeviceTotalMem_v2", driver.device_memory) ||
      !find(library, "cuDeviceGetAttribute", driver.device_attribute) ||
      !find(library, "cuGetErrorName", driver.error_name)) {
    gpus.reason = "the NVIDIA driver is too old: libcuda.so.1 lacks a function";
    return gpus;
  }
  const auto failed = [&](const char* call, int code) {
    const char* name = nullptr;
    driver.error_name(code, &name);
    gpus.reason = fmt::format("the NVIDIA driver found no usable GPU: {} said {}", call,
                              name != nullptr ? name : std::to_string(code));
    return gpus;
  };
  if (const int code = driver.init(0); code != 0) return failed("cuInit", code);
  int version = 0, count = 0;
  if (find(library, "cuDriverGetVersion", driver.driver_version) &&
      driver.driver_version(&version) == 0)
    gpus.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  if (const int code = driver.device_count(&count); code != 0)
    return failed("cuDeviceGetCount", code);
  for (int i = 0; i < count; ++i) {
    int device = 0, major = 0, minor = 0;
    size_t bytes = 0;
    std::array<char, 256> name{};
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
    if (driver.device_get(&device, i) != 0 ||
        driver.device_name(name.data(), static_cast<int>(name.size()) - 1, device) != 0 ||
        driver.device_memory(&bytes, device) != 0 ||
        driver.device_attribute(&major, kMajor, device) != 0 ||
        driver.device_attribute(&minor, kMinor, device) != 0)
      continue;
    gpus.devices.push_back({name.data(), fmt::format("{}.{}", major, minor),
                            static_cast<int64_t>(bytes), cuda::read_gpu(i)});
  }
  gpus.reason = gpus.devices.empty() ? "the NVIDIA driver lists no GPU" : usage();
  return gpus;
}

}  // namespace brrr::insight
