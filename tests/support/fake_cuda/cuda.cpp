// A driver (libcuda.so.1) for tests on machines without one: its one GPU is the host's memory.
// Streams keep what is queued until the host waits, and then take turns in an order that is allowed
// but unkind: the stream that was created last runs ahead as far as events let it, or stays behind
// for as long as they do (fake_set_order). While a stream captures, it keeps its work for the
// graph, and what is no work of a stream (memory, modules, waiting) is refused and spoils the
// capture, as in the driver's strict modes. Launches are held against the limits of sm_90. Kernels
// are run by whoever sets fake_launcher. Allocations are counted and poisoned, so what is read
// before it is written shows.

#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/cuda_context.h"
#include "support/fake_cuda/fake_cuda.h"

namespace {

struct Event {
  bool has_time = true;
  int64_t recorded = 0, reached = 0;  // how often that was queued, how often it has happened
  int64_t clock = 0;                  // when, last
};
struct Operation {
  std::function<void()> run;  // or one of these two:
  Event* waits = nullptr;     // until it has happened `number` times
  Event* happens = nullptr;   // for the `number`th time
  int64_t number = 0;
};
struct Stream {
  std::deque<Operation> queue;
};
struct Graph {
  std::vector<Operation> steps;
};

constexpr size_t kMemoryBytes = size_t{4} << 30;
constexpr int kPlainSharedBytes = 48 << 10, kMostSharedBytes = 227 << 10;  // of a block

struct State {
  std::map<CUdeviceptr, size_t> blocks;
  size_t allocated = 0;
  std::map<const void*, size_t> pinned;
  std::vector<std::unique_ptr<Stream>> streams;  // in the order of their creation
  bool last_runs_ahead = true, refuses_tensors = false;
  int multiprocessors = 132;
  std::function<void()> on_copy_in;
  int64_t clock = 0;  // milliseconds: all that a stream runs takes one
  Graph* capturing = nullptr;
  CUstream captured = nullptr;  // the stream that does
  bool is_spoilt = false;       // by a call that no capture allows
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
  // As the compiler was told, who then gives no thread more registers than as many have room for.
  unsigned most_threads = 1024;
  int shared_bytes = kPlainSharedBytes;
};

/// Of "BRRR_KERNEL(256) entry(" (or BRRR_KERNEL_ALONE) the number; 0: the text has no such kernel.
unsigned launch_bound(const std::string& text, const std::string& entry) {
  const std::string end = ") " + entry + "(";
  for (size_t at = 0; (at = text.find(end, at)) != std::string::npos; at += end.size()) {
    const size_t number = text.rfind('(', at);
    if (number == std::string::npos) continue;
    for (const std::string name : {"BRRR_KERNEL", "BRRR_KERNEL_ALONE"})
      if (number >= name.size() && text.compare(number - name.size(), name.size(), name) == 0)
        return static_cast<unsigned>(std::strtoul(text.c_str() + number + 1, nullptr, 10));
  }
  return 0;
}

/// Runs what stands first in the stream; false: it is empty or waits.
bool advance(Stream& s) {
  if (s.queue.empty()) return false;
  const Operation& first = s.queue.front();
  if (first.waits != nullptr && first.waits->reached < first.number) return false;
  const Operation now = std::move(s.queue.front());
  s.queue.pop_front();
  if (now.run) {
    ++state().clock;
    now.run();
  }
  if (now.happens != nullptr) {
    now.happens->reached = now.number;
    now.happens->clock = state().clock;
  }
  return true;
}

/// Lets the streams go on until `done`, each as far as it gets in its turn.
bool run_until(const std::function<bool()>& done) {
  State& s = state();
  while (!done()) {
    bool any = false;
    for (size_t i = 0; i < s.streams.size() && !any; ++i) {
      const size_t turn = s.last_runs_ahead ? s.streams.size() - 1 - i : i;
      any = advance(*s.streams[turn]);
    }
    if (!any) return false;
  }
  return true;
}
bool is_idle() {
  for (const auto& stream : state().streams)
    if (!stream->queue.empty()) return false;
  return true;
}

Stream& of(CUstream s) { return *reinterpret_cast<Stream*>(s); }

bool is_captured(CUstream s) { return state().capturing != nullptr && s == state().captured; }

/// Whether something is captured; then the capture comes to nothing.
bool spoils_capture() {
  if (state().capturing == nullptr) return false;
  ++state().counts.refused_in_captures;
  return state().is_spoilt = true;
}

void queue(std::function<void()> step, CUstream on) {
  if (is_captured(on))
    state().capturing->steps.push_back({std::move(step)});
  else
    of(on).queue.push_back({std::move(step)});
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
void fake_set_order(bool last_stream_runs_ahead) {
  state().last_runs_ahead = last_stream_runs_ahead;
}
void fake_set_multiprocessors(int count) { state().multiprocessors = count > 0 ? count : 132; }
void fake_refuse_tensors(bool refuses) { state().refuses_tensors = refuses; }
void fake_on_copy_in(const std::function<void()>& f) { state().on_copy_in = f; }
brrr::test::FakeCounts fake_counts() {
  state().counts.live_blocks = static_cast<int64_t>(state().blocks.size());
  return state().counts;
}
void fake_queue(const std::function<void()>& step, void* stream) {
  ++state().counts.library_calls;
  queue(step, stream != nullptr ? static_cast<CUstream>(stream)
                                : reinterpret_cast<CUstream>(state().streams.front().get()));
}
bool fake_is_device(const void* p, size_t bytes) {
  return is_inside(reinterpret_cast<CUdeviceptr>(p), bytes);
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult result, const char** text) {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
      *text = "CUDA_ERROR_INVALID_VALUE";
      break;
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      *text = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
      break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
      *text = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      break;
    default:
      *text = "CUDA_ERROR_FAKE";
  }
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
  *bytes = kMemoryBytes;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = state().multiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = kMostSharedBytes;
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
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kMemoryBytes - state().allocated) return CUDA_ERROR_OUT_OF_MEMORY;
  void* data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(data, 0xff, bytes);
  *p = reinterpret_cast<CUdeviceptr>(data);
  state().blocks[*p] = bytes;
  state().allocated += bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  run_until(is_idle);
  const auto block = state().blocks.find(p);
  if (block == state().blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  state().allocated -= block->second;
  state().blocks.erase(block);
  std::free(host(p));
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void** p, size_t bytes) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *p = std::malloc(bytes);
  state().pinned[*p] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* p) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  run_until(is_idle);
  if (state().pinned.erase(p) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(p);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t bytes, CUstream stream) {
  if (!is_inside(p, bytes)) return CUDA_ERROR_INVALID_VALUE;
  queue([=] { std::memset(host(p), value, bytes); }, stream);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (!is_inside(to, bytes) || state().capturing) return CUDA_ERROR_INVALID_VALUE;
  ++state().counts.copies_in;
  if (state().pinned.contains(from)) {
    queue(
        [=] {
          if (state().on_copy_in) state().on_copy_in();
          std::memcpy(host(to), from, bytes);
        },
        stream);
  } else {  // what is not pinned has been read when the call returns
    const auto* begin = static_cast<const char*>(from);
    queue([=, data = std::vector<char>(
                  begin, begin + bytes)] { std::memcpy(host(to), data.data(), bytes); },
          stream);
  }
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (!is_inside(from, bytes) || state().capturing) return CUDA_ERROR_INVALID_VALUE;
  ++state().counts.copies_out;
  queue([=] { std::memcpy(to, host(from), bytes); }, stream);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (!is_inside(from, bytes) || !is_inside(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  queue([=] { std::memcpy(host(to), host(from), bytes); }, stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* s, unsigned) {
  state().streams.push_back(std::make_unique<Stream>());
  *s = reinterpret_cast<CUstream>(state().streams.back().get());
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream s) {
  run_until(is_idle);
  std::erase_if(state().streams, [&](const auto& stream) { return stream.get() == &of(s); });
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream s) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return run_until([&] { return of(s).queue.empty(); }) ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_TIMEOUT;
}
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  // The event was recorded outside the graph: it may not wait for that.
  if (is_captured(s) && spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  auto* event = reinterpret_cast<Event*>(e);
  of(s).queue.push_back({{}, event, nullptr, event->recorded});
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode) {
  if (state().capturing != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  state().capturing = new Graph;
  state().captured = s;
  state().is_spoilt = false;
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph* graph) {
  if (!is_captured(s)) return CUDA_ERROR_ILLEGAL_STATE;
  const std::unique_ptr<Graph> captured(std::exchange(state().capturing, nullptr));
  *graph = nullptr;
  if (state().is_spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = reinterpret_cast<CUgraph>(new Graph(*captured));
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* status) {
  *status = is_captured(s) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  ++state().counts.graphs;
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  ++state().counts.graph_launches;
  for (Operation step : reinterpret_cast<Graph*>(exec)->steps) {
    if (step.happens != nullptr) step.number = ++step.happens->recorded;
    of(stream).queue.push_back(std::move(step));
  }
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

CUresult cuEventCreate(CUevent* e, unsigned flags) {
  *e = reinterpret_cast<CUevent>(new Event{(flags & CU_EVENT_DISABLE_TIMING) == 0});
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent e) {
  run_until(is_idle);
  delete reinterpret_cast<Event*>(e);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent e, CUstream s) {
  if (is_captured(s) && spoils_capture()) return CUDA_ERROR_INVALID_VALUE;  // as below
  auto* event = reinterpret_cast<Event*>(e);
  of(s).queue.push_back({{}, nullptr, event, ++event->recorded});
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent e) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto* event = reinterpret_cast<Event*>(e);
  const int64_t number = event->recorded;
  return run_until([&] { return event->reached >= number; }) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_LAUNCH_TIMEOUT;
}
CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) {
  const bool captures = is_captured(s);
  // A captured event that is not external orders work within the graph: nobody needs that here.
  if (captures != (flags == CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  if (!captures) return cuEventRecord(e, s);
  state().capturing->steps.push_back({{}, nullptr, reinterpret_cast<Event*>(e)});
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  const auto* from = reinterpret_cast<Event*>(start);
  const auto* to = reinterpret_cast<Event*>(end);
  for (const Event* e : {from, to}) {
    if (e->recorded == 0 || !e->has_time) return CUDA_ERROR_INVALID_HANDLE;
    if (e->reached < e->recorded) return CUDA_ERROR_NOT_READY;
  }
  *ms = static_cast<float>(to->clock - from->clock);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto* text = new std::string(static_cast<const char*>(image));
  *module = reinterpret_cast<CUmodule>(text);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  if (spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  delete reinterpret_cast<std::string*>(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* entry) {
  const std::string& text = *reinterpret_cast<std::string*>(module);
  const unsigned bound = launch_bound(text, entry);
  if (bound == 0) return CUDA_ERROR_NOT_FOUND;
  // Functions live as long as the process: there are few.
  static std::vector<std::unique_ptr<Function>> all;
  all.push_back(std::make_unique<Function>(Function{text, entry, bound}));
  *function = reinterpret_cast<CUfunction>(all.back().get());
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      value > kMostSharedBytes)
    return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Function*>(function)->shared_bytes = value;
  return CUDA_SUCCESS;
}
/// Refuses what the documentation forbids; what it writes is for the emulator.
CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                                void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* every,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  emulated::TensorMap map{};
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % 64 == 0 &&
                          reinterpret_cast<uintptr_t>(base) % 16 == 0 && fake_is_device(base, 1);
  const bool is_16_bit =
      type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if (state().refuses_tensors || !is_aligned || !is_16_bit || rank != 4 ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  for (int k = 0; k < 4; ++k) {
    if (sizes[k] == 0 || sizes[k] > (cuuint64_t{1} << 31) - 1 || every[k] != 1 || box[k] == 0 ||
        box[k] > 256)
      return CUDA_ERROR_INVALID_VALUE;
    map.sizes[k] = static_cast<int>(sizes[k]);
  }
  for (int k = 0; k < 3; ++k) {
    if (strides[k] % 16 != 0 || strides[k] >= (cuuint64_t{1} << 40))
      return CUDA_ERROR_INVALID_VALUE;
    map.strides[k] = static_cast<long long>(strides[k]);
  }
  if (box[0] * 2 > 128 || box[0] * 2 % 16 != 0 || box[2] != 1 || box[3] != 1)
    return CUDA_ERROR_INVALID_VALUE;
  map.base = static_cast<unsigned char*>(base);
  map.columns = static_cast<int>(box[0]);
  map.rows = static_cast<int>(box[1]);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void** parameters, void** extra) {
  const auto& f = *reinterpret_cast<Function*>(function);
  constexpr unsigned kMostGridX = 0x7fffffffu, kMostGridYz = 65535;
  if (extra != nullptr || shared > static_cast<unsigned>(f.shared_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (gx == 0 || gy == 0 || gz == 0 || gx > kMostGridX || gy > kMostGridYz || gz > kMostGridYz)
    return CUDA_ERROR_INVALID_VALUE;
  if (bx == 0 || by == 0 || bz == 0 || bx > 1024 || by > 1024 || bz > 64 || bx * by * bz > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  if (bx * by * bz > f.most_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (state().launcher == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  ++state().counts.launches;
  brrr::test::FakeLaunch launch{
      f.text.c_str(), f.entry.c_str(), {gx, gy, gz}, {bx, by, bz}, static_cast<int>(shared)};
  std::function<void()> run = state().launcher(launch, parameters);  // copies the parameters
  queue(std::move(run), stream);
  return CUDA_SUCCESS;
}

}  // extern "C"
