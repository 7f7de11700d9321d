// What a device reaches: programs of one kernel, by its own clock.

#include <algorithm>
#include <cstring>
#include <random>

#include "base/clock.h"
#include "insight/machine/timing.h"
#include "insight/profile/verdict.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr::insight {
namespace {

constexpr int64_t kSmallProduct = 256;  // whose time tells whether the large one is for this device
constexpr double kLongProduct = 4;      // seconds that are too many for one run
constexpr int64_t kStreamed = int64_t{1} << 30;  // bytes that no cache holds
constexpr double kAwake = 0.1;  // seconds of work after which an idle GPU has its clock

/// Programs of one kernel on one device, and their times.
class Bench {
 public:
  explicit Bench(const Backend& backend) : engine_(backend) {}

  /// A number for seconds(); nothing where the backend has no kernel for it.
  std::optional<size_t> add(const Graph& g, const PipelineOptions& options = {}) {
    Graph compiled = run_pipeline(g, engine_.backend().target(), options);
    for (NodeId id = 0; id < compiled.size(); ++id)
      if (!compiled.is_input(id) && !view_offset(compiled, compiled.node(id)) &&
          engine_.backend().choose(NodeView(compiled, id)).entry == nullptr)
        return std::nullopt;
    return engine_.add(std::move(compiled));
  }

  void allocate() {
    engine_.allocate();
    // Zeros would take less power, and so a higher clock, than a model does.
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    constexpr size_t kNumbers = (size_t{1} << 20) + 7;
    for (const StateInfo& s : engine_.states()) {
      std::vector<std::byte> numbers(kNumbers * bytes_of(s.type.dtype));
      for (size_t i = 0; i < kNumbers; ++i)
        store_from_double(s.type.dtype, numbers.data(), static_cast<int64_t>(i), uniform(random));
      engine_.fill_state(s.name, [&](std::span<std::byte> to) {
        for (size_t done = 0; done < to.size(); done += numbers.size())
          std::memcpy(to.data() + done, numbers.data(), std::min(numbers.size(), to.size() - done));
      });
    }
  }

  /// The median of the kernel's times in about so many seconds.
  double seconds(size_t program, double about) {
    constexpr size_t kLeastRuns = 5;
    std::vector<double> times;
    // At least two runs to get ready: the libraries' first, and the first as a recording.
    const double awake = about > 0 ? kAwake : 0;
    int runs = 0;
    for (const Stopwatch watch; runs < 2 || watch.seconds() < awake; ++runs) run(program);
    for (const Stopwatch watch; times.size() < kLeastRuns || watch.seconds() < about;)
      times.push_back(run(program));
    return timing_of(std::move(times)).median;
  }
  std::string device() const { return engine_.device().name(); }

 private:
  double run(size_t program) {
    Timeline timeline;
    engine_.run(program, &timeline);
    double sum = 0;
    for (const TimelineRecord& r : timeline.records) sum += r.seconds;
    return sum;
  }

  Engine engine_;
};

/// A product of two square matrices. Operands are states, which no run writes over.
Graph product(int64_t size, DType dtype) {
  Graph g;
  const Shape square{size, size};
  const Value a = g.input("a", square, dtype, InputKind::state),
              b = g.input("b", square, dtype, InputKind::state);
  if (is_fp8(dtype)) {
    const Value sa = g.input("scale a", {}, f32, InputKind::state),
                sb = g.input("scale b", {}, f32, InputKind::state);
    const std::vector<Value> in{a, b, sa, sb};
    const Attrs attrs{{"dtype", bf16}, {"fast_accumulation", true}, {"bias", false}};
    g.output("y", call(Op::scaled_matmul, in, attrs)[0]);
  } else {
    g.output("y", matmul(a, b));
  }
  return g;
}

/// y = -x, that many bytes read and written together.
Graph stream(int64_t bytes) {
  Graph g;
  g.output("y", neg(g.input(fmt::format("x of {}", bytes), {std::max<int64_t>(bytes / 8, 1)}, f32,
                            InputKind::state)));
  return g;
}

PipelineOptions allowing(bool tf32) {
  PipelineOptions options;
  if (tf32) options.matmul_precision = MatmulPrecision::high;
  return options;
}

double rate_of_product(int64_t size, double seconds) {
  const auto n = static_cast<double>(size);
  return seconds > 0 ? 2 * n * n * n / seconds : 0;
}

/// Seconds; nothing where the backend has no kernel for it.
std::optional<double> product_seconds(const Backend& backend, int64_t size, DType dtype, bool tf32,
                                      double about) {
  Bench bench(backend);
  const auto program = bench.add(product(size, dtype), allowing(tf32));
  if (!program) return std::nullopt;
  bench.allocate();
  return bench.seconds(*program, about);
}

/// Operations per second of the largest product that has room and does not take too long; 0: no
/// kernel for it.
double product_rate(const Backend& backend, DType dtype, bool tf32, int64_t memory_limit,
                    double about) {
  const auto small = product_seconds(backend, kSmallProduct, dtype, tf32, 0);
  if (!small) return 0;
  double best = rate_of_product(kSmallProduct, *small);
  const auto element = static_cast<int64_t>(bytes_of(dtype));
  const int64_t bytes = 2 * element + std::max<int64_t>(element, 2);
  for (int64_t size = kLargeProduct; size > kSmallProduct; size /= 2) {
    const double times = rate_of_product(size, 1) / rate_of_product(kSmallProduct, 1);
    if (*small * times > kLongProduct || bytes * size * size > memory_limit) continue;
    return std::max(
        best, rate_of_product(size, product_seconds(backend, size, dtype, tf32, about).value()));
  }
  return best;
}

}  // namespace

double product_peak(const Backend& backend, DType dtype, bool tf32) {
  return product_rate(backend, dtype, tf32, backend.memory_bytes / 2, 0.5);
}

Ceilings measure_device(const Backend& backend, int64_t memory_limit, double seconds) {
  Ceilings c;
  Bench bench(backend);
  const int64_t most = std::min(kStreamed, memory_limit);
  const int64_t cached = std::min(backend.cache_bytes / 2, most / 4);
  const auto one = bench.add(stream(1));
  BRRR_CHECK(one.has_value(), "{} has no kernel for -x", backend.name);
  std::vector<std::pair<MemoryLevel, size_t>> levels;
  if (cached > 0) levels.push_back({{"L2", backend.cache_bytes, 0, 0}, *bench.add(stream(cached))});
  levels.push_back({{"memory", 0, 0, 0}, *bench.add(stream(most))});
  bench.allocate();
  c.device = bench.device();
  c.launch_seconds = bench.seconds(*one, seconds);
  for (auto& [level, program] : levels) {
    const bool is_memory = level.bytes == 0;
    // What fits into a cache is read in little more than it takes to start a kernel.
    const double taken = bench.seconds(program, seconds) - (is_memory ? 0 : c.launch_seconds);
    if (taken > 0)
      level.read = level.write = static_cast<double>(is_memory ? most : cached) / taken;
    c.levels.push_back(level);
  }
  const double memory = c.levels.back().read;
  std::erase_if(c.levels, [&](const MemoryLevel& l) { return l.bytes > 0 && l.read <= memory; });
  // The bench above keeps the device's context, which takes long to make.
  const auto rate = [&](DType dtype, bool tf32 = false) {
    return product_rate(backend, dtype, tf32, memory_limit, seconds);
  };
  c.f32 = rate(f32);
  if (backend.has_tf32) c.tf32 = rate(f32, true);
  c.bf16 = rate(bf16);
  c.f16 = rate(f16);
  c.f8 = rate(f8e4m3);
  return c;
}

}  // namespace brrr::insight
