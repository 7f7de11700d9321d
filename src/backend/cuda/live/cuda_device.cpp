#include "backend/cuda/live/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <utility>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/live/recordings.h"
#include "base/cache.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/tell.h"

namespace brrr::cuda {
namespace {

constexpr size_t kLandingBytes = size_t{4} << 20;
constexpr size_t kMostErrors = 4096;

CUdeviceptr on_device(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

// Of the addresses that an algorithm may care about.
std::string alignments_of(const MatmulAddresses& at) {
  std::string text = "aligned";
  for (const void* p : {at.a, at.b, at.addend, static_cast<const void*>(at.y)})
    text += fmt::format(" {}", p == nullptr ? 0u : alignment_of(p));
  return text;
}

std::string key_of(const KernelSource& source) { return source.entry + '\n' + source.text(); }

}  // namespace

// -- life
// ----------------------------------------------------------------------------------------

std::unique_ptr<Device> open_gpu(int ordinal, const GpuDescription& gpu) {
  return std::make_unique<CudaDevice>(ordinal, gpu);
}

CudaDevice::CudaDevice(int ordinal, GpuDescription gpu) : gpu_(std::move(gpu)) {
  // Half a gigabyte that would otherwise be mapped after the driver has made its context.
  const auto early = std::async(std::launch::async, CublasLt::find);
  for (const std::string& reason : {Driver::load(d_), nvrtc_.load()})
    if (!reason.empty()) throw UserError(reason);
  BRRR_CU(d_, cuDeviceGet(&device_, ordinal));
  BRRR_CU(d_, cuDevicePrimaryCtxRetain(&context_, device_));
  enter();
  if (const std::string reason = cublaslt_.load(); !reason.empty()) throw UserError(reason);
  char model[256] = {};
  BRRR_CU(d_, cuDeviceGetName(model, sizeof(model) - 1, device_));
  name_ = fmt::format("cuda:{} ({})", ordinal, model);
  BRRR_CU(d_, cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  BRRR_CU(d_, cuStreamCreate(&copies_, CU_STREAM_NON_BLOCKING));
  for (Landing& l : landings_) {
    BRRR_CU(d_, cuMemAllocHost(&l.host, kLandingBytes));
    BRRR_CU(d_, cuMemAlloc(&l.device, kLandingBytes));
    for (CUevent* e : {&l.sent, &l.taken}) BRRR_CU(d_, cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
  }
  void* read = nullptr;
  BRRR_CU(d_, cuMemAllocHost(&read, kMostErrors * sizeof(uint32_t)));
  errors_read_ = static_cast<uint32_t*>(read);
  BRRR_CU(d_, cuMemAlloc(&errors_, (kMostErrors + 1) * sizeof(uint32_t)));
  BRRR_CU(d_, cuMemsetD8Async(errors_, 0, kMostErrors * sizeof(uint32_t), stream_));
  char bus[32] = {};
  BRRR_CU(d_, cuDeviceGetPCIBusId(bus, sizeof(bus) - 1, device_));
  nvml_ = std::make_unique<Nvml>(bus);
  tunes_ = env::get("BRRR_AUTOTUNE") != "0";
  waits_ = env::get("CUDA_LAUNCH_BLOCKING") == "1";
  keeps_ = !waits_ && env::get("BRRR_CUDA_GRAPHS") != "0";
  autotune_ = std::make_unique<Autotune>(
      cache_folder() / "cuda" / fmt::format("autotune-{}-{}.txt", gpu_.name.substr(5), model));
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  d_.cuCtxSetCurrent(context_);
  bench_.reset();
  if (stream_ != nullptr) d_.cuStreamSynchronize(stream_);
  for (CUmodule m : modules_) d_.cuModuleUnload(m);
  sdpa_plans_.clear();
  cudnn_.reset();
  cublaslt_.close();
  if (copies_ != nullptr) d_.cuStreamSynchronize(copies_);
  for (const Landing& l : landings_) {
    if (l.host != nullptr) d_.cuMemFreeHost(l.host);
    if (l.device != 0) d_.cuMemFree(l.device);
    for (CUevent e : {l.sent, l.taken})
      if (e != nullptr) d_.cuEventDestroy(e);
  }
  if (copies_ != nullptr) d_.cuStreamDestroy(copies_);
  if (errors_read_ != nullptr) d_.cuMemFreeHost(errors_read_);
  if (errors_ != 0) d_.cuMemFree(errors_);
  if (stream_ != nullptr) d_.cuStreamDestroy(stream_);
  d_.cuDevicePrimaryCtxRelease(device_);
}

void CudaDevice::enter() const { BRRR_CU(d_, cuCtxSetCurrent(context_)); }

// -- memory
// --------------------------------------------------------------------------------------

std::byte* CudaDevice::allocate(int64_t bytes) {
  enter();
  CUdeviceptr data = 0;
  BRRR_CU(d_, cuMemAlloc(&data, static_cast<size_t>(bytes)));
  BRRR_CU(d_, cuMemsetD8Async(data, 0, static_cast<size_t>(bytes), stream_));
  return reinterpret_cast<std::byte*>(data);
}

void CudaDevice::release(std::byte* data, int64_t) noexcept {
  if (d_.cuCtxSetCurrent(context_) != CUDA_SUCCESS) return;
  d_.cuStreamSynchronize(stream_);
  d_.cuMemFree(on_device(data));
}

void CudaDevice::copy_in(std::byte* to, const void* from, int64_t bytes) {
  enter();
  const auto all = static_cast<size_t>(bytes);
  for (size_t done = 0; done < all; done += kLandingBytes) {
    const size_t n = std::min(kLandingBytes, all - done);
    Landing& l = landings_[next_landing_];
    next_landing_ = 1 - next_landing_;
    BRRR_CU(d_, cuEventSynchronize(l.sent));
    std::memcpy(l.host, static_cast<const std::byte*>(from) + done, n);
    BRRR_CU(d_, cuStreamWaitEvent(copies_, l.taken, 0));
    BRRR_CU(d_, cuMemcpyHtoDAsync(l.device, l.host, n, copies_));
    BRRR_CU(d_, cuEventRecord(l.sent, copies_));
    BRRR_CU(d_, cuStreamWaitEvent(stream_, l.sent, 0));
    BRRR_CU(d_, cuMemcpyDtoDAsync(on_device(to + done), l.device, n, stream_));
    BRRR_CU(d_, cuEventRecord(l.taken, stream_));
  }
}

void CudaDevice::copy_out(void* to, const std::byte* from, int64_t bytes) {
  enter();
  BRRR_CU(d_, cuMemcpyDtoHAsync(to, on_device(from), static_cast<size_t>(bytes), stream_));
  synchronise();
}

void CudaDevice::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  enter();
  BRRR_CU(d_,
          cuMemcpyDtoDAsync(on_device(to), on_device(from), static_cast<size_t>(bytes), stream_));
}

void CudaDevice::synchronise() {
  enter();
  const size_t errors = error_texts_.size();
  if (errors > 0)
    BRRR_CU(d_, cuMemcpyDtoHAsync(errors_read_, errors_, errors * sizeof(uint32_t), stream_));
  BRRR_CU(d_, cuStreamSynchronize(stream_));
  throw_errors();
}

CUdeviceptr CudaDevice::error_cell(const LaunchArg& arg, const std::string& scope) {
  BRRR_CHECK(error_texts_.size() < kMostErrors, "too many kernels that check their data");
  error_texts_.push_back(scope.empty() ? arg.text : fmt::format("{} (at {})", arg.text, scope));
  errors_read_[error_texts_.size() - 1] = 0;
  return errors_ + (error_texts_.size() - 1) * sizeof(uint32_t);
}

void CudaDevice::throw_errors() {
  for (size_t i = 0; i < error_texts_.size(); ++i) {
    if (errors_read_[i] == 0) continue;
    BRRR_CU(d_, cuMemsetD8Async(errors_, 0, error_texts_.size() * sizeof(uint32_t), stream_));
    throw UserError(error_texts_[i]);
  }
}

// -- nodes
// ---------------------------------------------------------------------------------------

class CudaDevice::Prepared final : public CudaKernel::Prepared {
 public:
  using Step = std::variant<BoundLaunch, std::unique_ptr<BoundMatmul>, BoundSdpa>;
  std::vector<Step> steps;

  /// False when a library refuses.
  bool run(const Driver& d, CUstream stream) {
    for (Step& step : steps) {
      if (auto* launch = std::get_if<BoundLaunch>(&step))
        launch->run(d, stream);
      else if (auto* matmul = std::get_if<std::unique_ptr<BoundMatmul>>(&step);
               matmul != nullptr ? !(*matmul)->run(stream) : !std::get<BoundSdpa>(step).run())
        return false;
    }
    return true;
  }
};

// A stretch of memory full of numbers that are neither zero nor equal, two events, and the time
// between them.
class CudaDevice::Bench {
 public:
  /// `last_run`: when something was measured last, in seconds.
  Bench(const Driver& d, CUstream stream, double& last_run)
      : d_(d), stream_(stream), last_run_(last_run) {
    BRRR_CU(d_, cuEventCreate(&start_, CU_EVENT_DEFAULT));
    BRRR_CU(d_, cuEventCreate(&end_, CU_EVENT_DEFAULT));
  }
  ~Bench() {
    if (data_ != 0) d_.cuMemFree(data_);
    d_.cuEventDestroy(start_);
    d_.cuEventDestroy(end_);
  }
  /// At least that many bytes; false when there is no room for them beside the arena.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_) return true;
    if (data_ != 0) d_.cuMemFree(data_);
    data_ = bytes_ = 0;
    if (d_.cuMemAlloc(&data_, bytes) != CUDA_SUCCESS) return false;
    bytes_ = bytes;
    fill();
    return true;
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(data_); }
  /// Of one run; infinity when it does not run.
  double milliseconds(const std::function<bool()>& run) {
    // What is over sooner runs as often as fills such a time: launches and events have their own.
    constexpr double kEnough = 0.5;  // milliseconds
    constexpr double kMostRuns = 32;
    if (!run()) return std::numeric_limits<double>::infinity();
    wake(run);
    const double one = timed(1, run);
    if (one >= kEnough) return one;
    return timed(static_cast<int>(std::min(kMostRuns, std::ceil(kEnough / one))), run);
  }

 private:
  double timed(int runs, const std::function<bool()>& run) {
    BRRR_CU(d_, cuEventRecord(start_, stream_));
    for (int i = 0; i < runs; ++i) run();
    BRRR_CU(d_, cuEventRecord(end_, stream_));
    BRRR_CU(d_, cuEventSynchronize(end_));
    float ms = 0;
    d_.check(d_.event_elapsed_time(&ms, start_, end_), "cuEventElapsedTime");
    return static_cast<double>(ms) / runs;
  }
  // An idle GPU runs at a fraction of its clock, and what is measured first would look slow.
  void wake(const std::function<bool()>& run) {
    constexpr double kAsleep = 0.5, kSeconds = 0.1;
    const double start = now_seconds();
    if (start - last_run_ > kAsleep)
      while (now_seconds() - start < kSeconds) timed(8, run);
    last_run_ = now_seconds();
  }
  // Halves in (-1, 1) as bf16: two of them are an f32 of such size, and each is an f16, too.
  void fill() {
    std::vector<uint16_t> pattern((size_t{8} << 20) / sizeof(uint16_t));
    uint32_t x = 12345;
    for (uint16_t& half : pattern) {
      x = x * 1664525u + 1013904223u;
      half = static_cast<uint16_t>(((x >> 16) & 0x8000u) | 0x3f00u | ((x >> 24) & 0x7fu));
    }
    const size_t first = std::min(pattern.size() * sizeof(uint16_t), bytes_);
    BRRR_CU(d_, cuMemcpyHtoDAsync(data_, pattern.data(), first, stream_));
    for (size_t done = first; done < bytes_;) {
      const size_t more = std::min(done, bytes_ - done);
      BRRR_CU(d_, cuMemcpyDtoDAsync(data_ + done, data_, more, stream_));
      done += more;
    }
    BRRR_CU(d_, cuStreamSynchronize(stream_));
  }
  const Driver& d_;
  CUstream stream_;
  CUevent start_ = nullptr, end_ = nullptr;
  CUdeviceptr data_ = 0;
  size_t bytes_ = 0;
  double& last_run_;
};

// The ways of a node, and under which key it is remembered which of them is fastest.
struct CudaDevice::Ways {
  std::vector<const NodePlan*> all, rivals;  // rivals: all but the last resorts
  std::vector<std::string> names;            // of the rivals
  std::string key;
  bool has_products = false, has_sdpa = false;

  Ways(CudaDevice& device, const CudaKernel& kernel) {
    std::string described;
    for (const NodePlan& way : kernel.ways()) {
      all.push_back(&way);
      for (const Command& c : way.commands) {
        has_products |= std::holds_alternative<MatmulCall>(c);
        has_sdpa |= std::holds_alternative<SdpaCall>(c);
      }
      if (way.is_last_resort) continue;
      rivals.push_back(&way);
      names.push_back(way.name);
      described += fmt::format(" | {}", describe(way));
    }
    key = fmt::format("way {}", device.cublaslt_.version());
    if (has_sdpa) {
      const cudnn::Library* cudnn = device.cudnn();
      key += fmt::format(" cudnn {}", cudnn != nullptr ? cudnn->version() : "none");
    }
    key += described;
  }
};

void CudaDevice::prepare(std::span<const Task> tasks) {
  enter();
  load_functions(tasks);
  bench_ = std::make_unique<Bench>(d_, stream_, last_bench_);
  try {
    for (const Task& task : tasks) {
      auto& kernel = dynamic_cast<CudaKernel&>(*task.kernel);
      kernel.prepared = fastest(kernel, task);
    }
  } catch (...) {
    autotune_->save();
    throw;
  }
  autotune_->save();
  bench_.reset();
}

// What may be run: the way that is remembered, or all that are measured. Others are loaded when
// those refuse.
void CudaDevice::load_functions(std::span<const Task> tasks) {
  std::vector<const NodePlan*> ways;
  for (const Task& task : tasks) {
    const Ways known(*this, dynamic_cast<const CudaKernel&>(*task.kernel));
    if (known.rivals.empty()) {
      ways.push_back(known.all.front());
    } else if (const auto best = autotune_->remembered(known.key, known.names); best || !tunes_) {
      ways.push_back(known.rivals[best.value_or(0)]);
    } else {
      ways.insert(ways.end(), known.rivals.begin(), known.rivals.end());
    }
  }
  load_functions_of(ways);
}

void CudaDevice::load_functions_of(const std::vector<const NodePlan*>& ways) {
  std::map<std::string, const KernelSource*> wanted;
  for (const NodePlan* way : ways)
    for (const Command& command : way->commands)
      if (const auto* launch = std::get_if<Launch>(&command))
        if (std::string key = key_of(launch->source); !functions_.contains(key))
          wanted.emplace(std::move(key), &launch->source);
  if (wanted.empty()) return;
  const std::string arch = architecture_of(gpu_);
  const std::vector<std::string> options = compile_options();
  const CubinCache cache(cache_folder() / "cuda", fmt::format("nvrtc {} {} {}", nvrtc_.version(),
                                                              arch, fmt::join(options, " ")));
  std::vector<std::string> texts;
  for (const auto& [key, source] : wanted) texts.push_back(source->text());
  const auto codes = cache.get(
      texts, [&](const std::string& text) { return nvrtc_.compile(text, options, arch); });
  size_t i = 0;
  for (const auto& [key, source] : wanted) {
    CUmodule module = nullptr;
    BRRR_CU(d_, cuModuleLoadData(&module, codes[i++].data()));
    modules_.push_back(module);
    BRRR_CU(d_, cuModuleGetFunction(&functions_[key], module, source->entry.c_str()));
  }
}

// The algorithm that is remembered or, where `measures`, measured; false: the library has none.
bool CudaDevice::choose_algorithm(BoundMatmul& matmul, const MatmulCall& call,
                                  const MatmulAddresses& at, bool measures) {
  constexpr int kMostAlgorithms = 8;
  const auto algorithms = matmul.algorithms(kMostAlgorithms);
  if (algorithms.empty()) return false;
  std::vector<std::string> names;
  for (const auto& a : algorithms) names.push_back(name_of(a));
  const std::string key =
      fmt::format("algorithm {} {} {}", cublaslt_.version(), describe(call), alignments_of(at));
  size_t best = autotune_->remembered(key, names).value_or(0);
  if (measures)
    best = autotune_->choose(key, names, [&](size_t i) {
      matmul.set_algorithm(algorithms[i]);
      return bench_->milliseconds([&] { return matmul.run(stream_); });
    });
  matmul.set_algorithm(algorithms[best]);
  return true;
}

// Null where there is none: it is sought when a node may want it, and opened, which takes longer,
// when one does.
const cudnn::Library* CudaDevice::cudnn() {
  if (!std::exchange(sought_cudnn_, true)) {
    auto library = std::make_unique<cudnn::Library>();
    if (library->load().empty()) cudnn_ = std::move(library);
  }
  return cudnn_.get();
}

bool CudaDevice::opened_cudnn() {
  if (cudnn() == nullptr) return false;
  if (cudnn_->handle() != nullptr) return true;
  const std::string reason = cudnn_->open(stream_);
  if (reason.empty()) return true;
  complain(fmt::format("cuDNN is here and does not open: {}; attention goes without it", reason));
  cudnn_.reset();
  return false;
}

// Null where cuDNN does not do that.
std::shared_ptr<const SdpaPlan> CudaDevice::sdpa_plan(const SdpaCall& call) {
  if (!opened_cudnn()) return nullptr;
  const auto [at, is_new] = sdpa_plans_.try_emplace(describe(call));
  if (is_new) try {
      at->second = std::make_shared<SdpaPlan>(*cudnn_, call);
    } catch (const cudnn::Refusal& refusal) {  // another way is taken
      complain(fmt::format("cuDNN does not do {}: {}", describe(call), refusal.reason));
    }
  return at->second;
}

void CudaDevice::complain(const std::string& what) {
  if (complaints_.insert(what).second) tell("brrr: {}\n", what);
}

std::unique_ptr<CudaDevice::Prepared> CudaDevice::bind(const NodePlan& plan, const KernelArgs& args,
                                                       const std::string& scope, bool measures) {
  load_functions_of({&plan});
  auto bound = std::make_unique<Prepared>();
  for (const Command& command : plan.commands) {
    if (const auto* launch = std::get_if<Launch>(&command)) {
      // Numbers to measure with are no data: nobody looks at the last cell.
      CUdeviceptr error = errors_ + kMostErrors * sizeof(uint32_t);
      for (const LaunchArg& a : launch->args)
        if (a.kind == LaunchArg::Kind::error && !measures) error = error_cell(a, scope);
      try {
        bound->steps.emplace_back(
            BoundLaunch(d_, functions_.at(key_of(launch->source)), *launch, args, error));
      } catch (const TensorRefusal& refusal) {  // another way is taken
        complain(fmt::format("the kernel \"{}\" is left out: {}", plan.name, refusal.reason));
        return nullptr;
      }
    } else if (const auto* product = std::get_if<MatmulCall>(&command)) {
      const MatmulAddresses at = addresses_of(*product, args, gpu_);
      auto matmul = std::make_unique<BoundMatmul>(cublaslt_, *product, at);
      if (!choose_algorithm(*matmul, *product, at, measures)) return nullptr;
      bound->steps.emplace_back(std::move(matmul));
    } else {
      const auto& call = std::get<SdpaCall>(command);
      auto compiled = sdpa_plan(call);
      if (compiled == nullptr) return nullptr;
      try {
        bound->steps.emplace_back(BoundSdpa(std::move(compiled), addresses_of(call, args)));
      } catch (const cudnn::Refusal& refusal) {
        complain(fmt::format("cuDNN does not do {}: {}", describe(call), refusal.reason));
        return nullptr;
      }
    }
  }
  return bound;
}

// Operands, results and scratch memory of a node within the bench's memory, apart from each other.
// No value: there is no room for them.
struct CudaDevice::BenchArgs {
  std::vector<const void*> in;
  std::vector<void*> out;
  std::byte* scratch = nullptr;
  KernelArgs args() const { return {in, out, scratch}; }
};

std::optional<CudaDevice::BenchArgs> CudaDevice::bench_args(const CudaKernel& kernel) {
  const auto rounded = [](int64_t bytes) {
    return (static_cast<size_t>(bytes) / LaunchPlan::kAlignment + 1) * LaunchPlan::kAlignment;
  };
  size_t total = rounded(kernel.scratch_bytes());
  for (const auto& list : {kernel.in_bytes(), kernel.out_bytes()})
    for (int64_t bytes : list) total += rounded(bytes);
  if (!bench_->reserve(total)) return std::nullopt;
  BenchArgs at;
  std::byte* next = bench_->data();
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + rounded(bytes)); };
  for (int64_t bytes : kernel.in_bytes()) at.in.push_back(take(bytes));
  for (size_t i : kernel.positions())
    BRRR_CU(d_,
            cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(at.in[i]), 0, sizeof(int32_t), stream_));
  for (int64_t bytes : kernel.out_bytes()) at.out.push_back(take(bytes));
  at.scratch = take(kernel.scratch_bytes());
  return at;
}

// Which way is fastest, and with which algorithms, is measured on memory of its own: the arena's
// may hold a model.
void CudaDevice::measure(const CudaKernel& kernel, const std::string& key,
                         const std::vector<const NodePlan*>& ways,
                         const std::vector<std::string>& names) {
  const auto at = bench_args(kernel);
  if (!at) return;
  std::vector<std::unique_ptr<Prepared>> bound;
  for (const NodePlan* way : ways) bound.push_back(bind(*way, at->args(), "", true));
  autotune_->choose(key, names, [&](size_t i) {
    if (!bound[i]) return std::numeric_limits<double>::infinity();
    return bench_->milliseconds([&] { return bound[i]->run(d_, stream_); });
  });
}

std::unique_ptr<CudaDevice::Prepared> CudaDevice::fastest(const CudaKernel& kernel,
                                                          const Task& task) {
  Ways ways(*this, kernel);
  std::vector<const NodePlan*>& all = ways.all;
  // Which way, or which algorithm of a product.
  if ((ways.has_products || ways.rivals.size() > 1) && tunes_ &&
      !autotune_->remembered(ways.key, ways.names)) {
    // A cuDNN that is here and does not open is none: nothing is to be remembered of it.
    if (ways.has_sdpa && !opened_cudnn()) ways = Ways(*this, kernel);
    measure(kernel, ways.key, ways.rivals, ways.names);
  }
  if (!ways.rivals.empty()) {
    const size_t best = autotune_->remembered(ways.key, ways.names).value_or(0);
    std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(best),
                all.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  for (const NodePlan* way : all) {
    auto bound = bind(*way, task.args, task.scope, false);
    if (bound == nullptr) continue;
    if (way->is_last_resort && way != all.front())
      complain(
          fmt::format("no library computes {}: \"{}\" does, which is slow", ways.key, way->name));
    return bound;
  }
  throw InternalError(fmt::format("{} computes none of: {}", name_, ways.key));
}

void CudaDevice::run(const Task& task) {
  enter();
  auto& kernel = static_cast<CudaKernel&>(*task.kernel);
  BRRR_CHECK(kernel.prepared != nullptr, "a kernel that was not prepared");
  const auto run = [&] {
    BRRR_CHECK(static_cast<Prepared&>(*kernel.prepared).run(d_, stream_),
               "a library refused what it had accepted (at {})", task.scope);
  };
  if (!waits_) return run();
  try {
    run();
    BRRR_CU(d_, cuStreamSynchronize(stream_));
  } catch (const InternalError& e) {  // of the driver, which does not know where it is
    throw InternalError(fmt::format("{} (at {})", e.what(), task.scope));
  }
}

// -- recordings
// ----------------------------------------------------------------------------------

std::unique_ptr<Marks> CudaDevice::marks(size_t count) {
  if (waits_) return nullptr;
  enter();
  return std::make_unique<EventMarks>(d_, stream_, count);
}

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& work) {
  if (!keeps_) return nullptr;
  enter();
  return std::make_unique<GraphRecording>(d_, stream_, work);
}

void CudaDevice::replay(Recording& recording) {
  enter();
  static_cast<GraphRecording&>(recording).launch(stream_);
}

}  // namespace brrr::cuda
