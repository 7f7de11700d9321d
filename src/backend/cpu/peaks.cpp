#include "backend/cpu/peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/cpu/peaks_kernels.h"
#include "base/clock.h"
#include "base/threads/parallel.h"

namespace brrr::cpu {
namespace {

// Shorter than a time slice, so that some windows go undisturbed by whatever else runs.
constexpr double kWindowSeconds = 0.0025;
std::atomic<float> sink_float;  // results end here, so that no loop is optimised away
std::atomic<uint64_t> sink_word;

/// A barrier for `count` threads that polls, because a thread that must be woken would start its
/// measurement late.
class PollingBarrier {
 public:
  explicit PollingBarrier(int count) : count_(count) {}
  void wait() {
    const int64_t ticket = arrived_.fetch_add(1);
    const int64_t all = (ticket / count_ + 1) * count_;
    while (arrived_.load() < all) std::this_thread::yield();
  }

 private:
  int64_t count_;
  std::atomic<int64_t> arrived_{0};
};

/// body(thread) does a little work (well below a window) and returns how much; repeated on all
/// threads at once for about `seconds`. Work per second, all threads together, in the best window.
/// It starts its own threads, because in the thread team one thread may run several pieces while
/// another runs none.
double best_rate(double seconds, const std::function<double(int thread)>& body) {
  std::atomic<int> count{0};  // known when all threads are there that the system gives
  std::optional<PollingBarrier> barrier_of_all;
  std::vector<double> rates(static_cast<size_t>(thread_count()));
  double best = 0, end = 0;
  bool is_over = false;
  const auto measure = [&](int thread) {
    while (count.load() == 0) std::this_thread::yield();
    PollingBarrier& barrier = *barrier_of_all;
    do {
      body(thread);  // wakes the units
      barrier.wait();
      const double begin = now_seconds();
      double work = 0, now = begin;
      do {
        work += body(thread);
        now = now_seconds();
      } while (now - begin < kWindowSeconds);
      rates[static_cast<size_t>(thread)] = work / (now - begin);
      barrier.wait();
      if (thread == 0) {
        best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
        is_over = now_seconds() >= end;
      }
      barrier.wait();
    } while (!is_over);
  };
  std::vector<std::jthread> others;
  try {
    for (int thread = 1; thread < thread_count(); ++thread) others.emplace_back(measure, thread);
  } catch (const std::system_error&) {  // fewer are measured
  }
  barrier_of_all.emplace(static_cast<int>(others.size()) + 1);
  end = now_seconds() + seconds;
  count.store(static_cast<int>(others.size()) + 1);
  measure(0);
  return best;
}

/// Anonymous memory, in huge pages where the system gives them, touched by the threads that use it.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::munmap(data_, bytes_); }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace

const ComputePeak* fastest(const std::vector<ComputePeak>& peaks, std::string_view type) {
  const ComputePeak* best = nullptr;
  for (const ComputePeak& p : peaks)
    if (p.type == type && (best == nullptr || p.ops_per_second > best->ops_per_second)) best = &p;
  return best;
}

double fastest_rate(const std::vector<ComputePeak>& peaks, std::string_view type) {
  const ComputePeak* best = fastest(peaks, type);
  return best != nullptr ? best->ops_per_second : 0;
}

std::vector<ComputePeak> measure_compute_peaks(double seconds) {
  constexpr int64_t kRounds = 20'000;  // 20 to 100 microseconds between looks at the clock
  std::vector<ComputePeak> peaks;
  for (const ComputeKernel& kernel : compute_kernels()) {
    const double ops = best_rate(seconds, [&](int) {
      sink_float.store(kernel.loop(kRounds), std::memory_order_relaxed);
      return kernel.ops_per_round * static_cast<double>(kRounds);
    });
    peaks.push_back({kernel.type, kernel.accumulate, kernel.instruction, ops});
  }
  std::stable_sort(peaks.begin(), peaks.end(), [](const ComputePeak& a, const ComputePeak& b) {
    const auto order = [](const ComputePeak& p) {
      return p.type == "f32" ? 0 : p.type == "f16" ? 1 : p.type == "bf16" ? 2 : 3;
    };
    return order(a) != order(b) ? order(a) < order(b) : a.ops_per_second > b.ops_per_second;
  });
  return peaks;
}

Bandwidth measure_bandwidth(int64_t l2_bytes, int64_t l3_bytes, int64_t memory_limit,
                            double seconds) {
  const MemoryKernels kernels = memory_kernels();
  const int64_t threads = thread_count();
  constexpr int64_t kPage = 4096;
  Bandwidth result;

  // Two buffers that the caches cannot hold, but no more than an eighth of the memory each.
  int64_t part = std::max<int64_t>(int64_t{64} << 20, 4 * l3_bytes);
  part = std::min({part, int64_t{512} << 20, memory_limit / 8});
  part = part / threads / kPage * kPage;  // per thread
  part = std::max(part, kPage);
  const auto bytes = static_cast<size_t>(part * threads);
  const Buffer from(bytes), to(bytes);
  parallel_pieces(threads, threads, [&](int64_t thread, int) {
    kernels.write(from.data() + thread * part, part);
    kernels.write(to.data() + thread * part, part);
  });
  result.buffer_bytes = static_cast<int64_t>(bytes);
  // Each thread goes through its part slice by slice, round and round: a slice comes back only
  // after the whole part, when the caches have long lost it.
  const int64_t slice = std::min<int64_t>(part, int64_t{1} << 20) / kPage * kPage;
  const int64_t slices = part / slice;
  struct alignas(64) Position {
    int64_t next = 0;
  };
  std::vector<Position> positions(static_cast<size_t>(threads));
  const auto offset = [&](int thread) {
    int64_t& next = positions[static_cast<size_t>(thread)].next;
    next = (next + 1) % slices;
    return thread * part + next * slice;
  };
  const auto work = static_cast<double>(slice);
  result.read = best_rate(seconds, [&](int t) {
    sink_word.store(kernels.read(from.data() + offset(t), slice), std::memory_order_relaxed);
    return work;
  });
  result.write = best_rate(seconds, [&](int t) {
    kernels.write(to.data() + offset(t), slice);
    return work;
  });
  result.copy = best_rate(seconds, [&](int t) {
    const int64_t here = offset(t);
    kernels.copy(to.data() + here, from.data() + here, slice);
    return 2 * work;
  });

  const int64_t half = std::max<int64_t>(l2_bytes > 0 ? l2_bytes / 2 : 256 << 10, 32 << 10);
  const int64_t small = std::min(half, part) / kPage * kPage;
  result.l2_read = best_rate(seconds, [&](int t) {
    for (int i = 0; i < 4; ++i)
      sink_word.store(kernels.read(from.data() + t * part, small), std::memory_order_relaxed);
    return 4 * static_cast<double>(small);
  });
  return result;
}

}  // namespace brrr::cpu
