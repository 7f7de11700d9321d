// A driver (libcuda.so.1) for tests on machines without one: its one GPU is the host's memory,
// streams do everything at once or, while they capture, keep it. Kernels are run by whoever sets
// fake_launcher. Allocations are counted and poisoned, so what is read before it is written shows.

#include <cuda.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/fake_cuda/fake_cuda.h"

namespace {

struct Graph {
  std::vector<std::function<void()>> steps;
};

struct State {
  std::map<CUdeviceptr, size_t> blocks;
  Graph* capturing = nullptr;
  brrr::test::FakeLauncher launcher = nullptr;
  brrr::test::FakeCounts counts;
  std::map<const void*, std::string> modules;  // the image of each
};
State& state() {
  static State s;
  return s;
}

struct Function {
  std::string text, entry;
  int shared_bytes = 0;
};

void queue(std::function<void()> step) {
  State& s = state();
  if (s.capturing != nullptr)
    s.capturing->steps.push_back(std::move(step));
  else
    step();
}

bool is_inside(CUdeviceptr at, size_t bytes) {
  auto next = state().blocks.upper_bound(at);
  if (next == state().blocks.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

void* host(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

}  // namespace

extern "C" {

void fake_set_launcher(brrr::test::FakeLauncher launcher) { state().launcher = launcher; }
brrr::test::FakeCounts fake_counts() {
  state().counts.live_blocks = static_cast<int64_t>(state().blocks.size());
  return state().counts;
}
void fake_queue(const std::function<void()>& step) { queue(step); }
bool fake_is_device(const void* p, size_t bytes) {
  return is_inside(reinterpret_cast<CUdeviceptr>(p), bytes);
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** text) {
  *text = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
  *n = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int i) {
  *device = i;
  return i == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int room, CUdevice) {
  std::strncpy(name, "Fake H200", static_cast<size_t>(room));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = size_t{4} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 227 * 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = 50 << 20;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int room, CUdevice) {
  std::strncpy(id, "0000:00:00.0", static_cast<size_t>(room));
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&state());
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
  return context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemAlloc(CUdeviceptr* p, size_t bytes) {
  if (bytes > (size_t{4} << 30)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(data, 0xff, bytes);
  *p = reinterpret_cast<CUdeviceptr>(data);
  state().blocks[*p] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  if (state().blocks.erase(p) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(host(p));
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void** p, size_t bytes) {
  *p = std::malloc(bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* p) {
  std::free(p);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t bytes, CUstream) {
  if (!is_inside(p, bytes)) return CUDA_ERROR_INVALID_VALUE;
  queue([=] { std::memset(host(p), value, bytes); });
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  if (!is_inside(to, bytes) || state().capturing) return CUDA_ERROR_INVALID_VALUE;
  ++state().counts.copies_in;
  std::memcpy(host(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  if (!is_inside(from, bytes) || state().capturing) return CUDA_ERROR_INVALID_VALUE;
  ++state().counts.copies_out;
  std::memcpy(to, host(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  if (!is_inside(from, bytes) || !is_inside(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  queue([=] { std::memcpy(host(to), host(from), bytes); });
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* s, unsigned) {
  *s = reinterpret_cast<CUstream>(&state());
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) {
  return state().capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream, CUstreamCaptureMode) {
  state().capturing = new Graph;
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  *graph = reinterpret_cast<CUgraph>(state().capturing);
  state().capturing = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  ++state().counts.graphs;
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream) {
  ++state().counts.graph_launches;
  for (const auto& step : reinterpret_cast<Graph*>(exec)->steps) step();
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  delete reinterpret_cast<Graph*>(exec);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* e, unsigned) {
  *e = reinterpret_cast<CUevent>(&state());
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* ms, CUevent, CUevent) {
  *ms = 1;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  auto* text = new std::string(static_cast<const char*>(image));
  *module = reinterpret_cast<CUmodule>(text);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<std::string*>(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* entry) {
  // Functions live as long as the process: there are few.
  static std::vector<std::unique_ptr<Function>> all;
  all.push_back(
      std::make_unique<Function>(Function{*reinterpret_cast<std::string*>(module), entry}));
  *function = reinterpret_cast<CUfunction>(all.back().get());
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int value) {
  reinterpret_cast<Function*>(function)->shared_bytes = value;
  return value <= 227 * 1024 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream, void** parameters,
                        void** extra) {
  const auto& f = *reinterpret_cast<Function*>(function);
  const unsigned most = f.shared_bytes > 0 ? static_cast<unsigned>(f.shared_bytes) : 48u << 10;
  if (extra != nullptr || shared > most || bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (gx == 0 || gy == 0 || gz == 0) return CUDA_ERROR_INVALID_VALUE;
  if (state().launcher == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  ++state().counts.launches;
  brrr::test::FakeLaunch launch{
      f.text.c_str(), f.entry.c_str(), {gx, gy, gz}, {bx, by, bz}, static_cast<int>(shared)};
  std::function<void()> run = state().launcher(launch, parameters);  // copies the parameters
  queue(std::move(run));
  return CUDA_SUCCESS;
}

}  // extern "C"
