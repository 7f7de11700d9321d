// A driver that takes compiled kernels and nothing else: cuDNN hands over what it has compiled for
// a GPU that is only described, and has its plan. Everything else says that this is a stub.

#include <cstdint>

namespace {
constexpr int kSuccess = 0, kInvalidValue = 1, kStubLibrary = 34;  // CUresult
int loaded = 0;
}  // namespace

// What cuDNN looks up when it is loaded, by exported names: cuda.h would rename some of them.
#define BRRR_STUB(name) \
  int name() { return kStubLibrary; }

extern "C" {

/// How many kernels were loaded.
int fake_loaded() { return loaded; }

int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*,
                      unsigned) {
  if (code == nullptr) return kInvalidValue;
  ++loaded;
  *library = &loaded;
  return kSuccess;
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return kSuccess;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}
int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }
int cuGetErrorString(int, const char** text) {
  *text = "the driver only loads";
  return kSuccess;
}
int cuGetErrorName(int, const char** text) { return cuGetErrorString(0, text); }

BRRR_STUB(cuInit)
BRRR_STUB(cuCtxGetCurrent)
BRRR_STUB(cuCtxGetLimit)
BRRR_STUB(cuCtxPopCurrent)
BRRR_STUB(cuCtxPushCurrent)
BRRR_STUB(cuDeviceGet)
BRRR_STUB(cuDeviceGetAttribute)
BRRR_STUB(cuDeviceGetCount)
BRRR_STUB(cuDeviceGetName)
BRRR_STUB(cuDriverGetVersion)
BRRR_STUB(cuFuncGetAttribute)
BRRR_STUB(cuFuncSetAttribute)
BRRR_STUB(cuKernelGetAttribute)
BRRR_STUB(cuLaunchCooperativeKernel)
BRRR_STUB(cuLaunchKernel)
BRRR_STUB(cuLaunchKernelEx)
BRRR_STUB(cuLibraryLoadFromFile)
BRRR_STUB(cuLinkAddData)
BRRR_STUB(cuLinkComplete)
BRRR_STUB(cuLinkCreate)
BRRR_STUB(cuLinkDestroy)
BRRR_STUB(cuOccupancyMaxPotentialClusterSize)
BRRR_STUB(cuStreamGetCtx)

}  // extern "C"
