// gemm_f32 against the processor's measured multiply-add peak and oneDNN's matmul with plain
// row-major weights, interleaved in one run. GFLOP/s from the median of the repetitions; the spread
// is (third quartile - first quartile) / median.
//
//   micro_gemm [--cpu-time] [--reps N] [--filter TEXT]
//       Table for the shapes of GPT-2 training, in Markdown. --cpu-time: one thread, timed by the
//       processor time it got, for machines that are busy with other work. When they are, read the
//       ratio of the bests.
//   micro_gemm [--cpu-time] --serve
//       One shape per line on stdin, its milliseconds on stdout: lets another program interleave
//       its own measurements (bench/peers/gemm_torch.py).

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <dnnl.hpp>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/cpu/isa.h"
#include "backend/cpu/products/gemm.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/threads/parallel.h"

namespace brrr {
namespace {

struct Shape {
  const char* what;
  int64_t m, k, n;
  bool trans_a = false, trans_b = false;
  int64_t batch = 1;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k * batch); }
};

// GPT-2 124M at batch 4 x 256, the small character model at 12 x 64, decoding.
const Shape kShapes[] = {
    {"124M qkv", 1024, 768, 2304},
    {"124M proj", 1024, 768, 768},
    {"124M fc", 1024, 768, 3072},
    {"124M fc2", 1024, 3072, 768},
    {"124M head W[C,V]", 1024, 768, 50257},
    {"124M head W[V,C]^T", 1024, 768, 50257, false, true},
    {"124M dX qkv", 1024, 2304, 768, false, true},
    {"124M dX proj", 1024, 768, 768, false, true},
    {"124M dX fc", 1024, 3072, 768, false, true},
    {"124M dX fc2", 1024, 768, 3072, false, true},
    {"124M dX head W[V,C]", 1024, 50257, 768},
    {"124M dW qkv", 768, 1024, 2304, true},
    {"124M dW proj", 768, 1024, 768, true},
    {"124M dW fc", 768, 1024, 3072, true},
    {"124M dW fc2", 3072, 1024, 768, true},
    {"124M dW head", 50257, 1024, 768, true},
    {"124M q k^T", 256, 64, 256, false, true, 48},
    {"124M p v", 256, 256, 64, false, false, 48},
    {"124M p^T dy", 256, 256, 64, true, false, 48},
    {"char qkv", 768, 128, 384},
    {"char proj", 768, 128, 128},
    {"char fc", 768, 128, 512},
    {"char fc2", 768, 512, 128},
    {"char head", 768, 128, 65},
    {"char head^T", 768, 128, 65, false, true},
    {"char dX fc", 768, 512, 128, false, true},
    {"char dX fc2", 768, 128, 512, false, true},
    {"char dX head", 768, 65, 128, false, true},
    {"char dW qkv", 128, 768, 384, true},
    {"char dW proj", 128, 768, 128, true},
    {"char dW fc", 128, 768, 512, true},
    {"char dW fc2", 512, 768, 128, true},
    {"char dW head", 128, 768, 65, true},
    {"char q k^T", 64, 32, 64, false, true, 48},
    {"char p v", 64, 64, 32, false, false, 48},
    {"char p^T dy", 64, 64, 32, true, false, 48},
    {"decode qkv", 1, 768, 2304},
    {"decode fc", 1, 768, 3072},
    {"decode fc2", 1, 3072, 768},
    {"decode head W[V,C]^T", 1, 768, 50257, false, true},
    {"decode head W[C,V]", 1, 768, 50257},
    {"4 rows fc", 4, 768, 3072},
    {"16 rows fc", 16, 768, 3072},
    {"16 rows head^T", 16, 768, 50257, false, true},
};

std::vector<float> random_matrix(int64_t count, uint32_t seed) {
  std::vector<float> v(static_cast<size_t>(count));
  parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    RngStream rng({seed, 0}, 0, static_cast<uint64_t>(begin));
    for (int64_t i = begin; i < end; ++i) v[i] = 2.0f * rng.next_uniform() - 1.0f;
  });
  return v;
}

struct Problem {
  Shape shape;
  std::vector<float> a, b, c;
  cpu::GemmArgs args;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  std::unordered_map<int, dnnl::memory> memories;

  explicit Problem(const Shape& s, bool with_onednn = true)
      : shape(s),
        a(random_matrix(s.batch * s.m * s.k, 1)),
        b(random_matrix(s.batch * s.k * s.n, 2)),
        c(static_cast<size_t>(s.batch * s.m * s.n)) {
    args = {.m = s.m,
            .n = s.n,
            .k = s.k,
            .a = a.data(),
            .lda = s.trans_a ? s.m : s.k,
            .trans_a = s.trans_a,
            .b = b.data(),
            .ldb = s.trans_b ? s.k : s.n,
            .trans_b = s.trans_b,
            .c = c.data(),
            .ldc = s.n};
    if (!with_onednn) return;
    using dnnl::memory;
    const auto desc = [&](int64_t rows, int64_t cols, bool trans) {
      const int64_t row_stride = trans ? 1 : cols, col_stride = trans ? rows : 1;
      if (s.batch == 1) {
        return memory::desc({rows, cols}, memory::data_type::f32,
                            memory::dims{row_stride, col_stride});
      }
      return memory::desc({s.batch, rows, cols}, memory::data_type::f32,
                          memory::dims{rows * cols, row_stride, col_stride});
    };
    const auto da = desc(s.m, s.k, s.trans_a), db = desc(s.k, s.n, s.trans_b),
               dc = desc(s.m, s.n, false);
    matmul = dnnl::matmul({dnnl::matmul::desc(da, db, dc), engine});
    memories = {{DNNL_ARG_SRC, memory(da, engine, a.data())},
                {DNNL_ARG_WEIGHTS, memory(db, engine, b.data())},
                {DNNL_ARG_DST, memory(dc, engine, c.data())}};
  }
  void ours() {
    const Shape& s = shape;
    cpu::gemm_batched(args, s.batch, s.m * s.k, s.k * s.n, s.m * s.n);
  }
  void onednn() {
    matmul.execute(stream, memories);
    stream.wait();
  }
};

bool use_cpu_time = false;

/// Wall-clock seconds, or those that this thread spent on a processor.
double timer() {
  if (!use_cpu_time) return now_seconds();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of one call, from enough calls to last about a millisecond.
template <typename Body>
double time_calls(int calls, Body&& body) {
  const double start = timer();
  for (int i = 0; i < calls; ++i) body();
  return (timer() - start) / calls;
}

int calls_for(const Shape& s) { return static_cast<int>(std::clamp(2e8 / s.flops(), 1.0, 500.0)); }

struct Stats {
  double median = 0, spread = 0, best = 0;
};

Stats stats(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double q) {
    return seconds[static_cast<size_t>(q * static_cast<double>(seconds.size() - 1) + 0.5)];
  };
  return {at(0.5), (at(0.75) - at(0.25)) / at(0.5), seconds.front()};
}

#if defined(__x86_64__)
constexpr int64_t kPeakSteps = 200'000;
// Independent multiply-add chains: more than latency x throughput of any x86 so far, few enough to
// stay in registers.
#define BRRR_PEAK(NAME, TARGET, VEC, LANES, CHAINS, SET, FMA)                           \
  __attribute__((target(TARGET))) double NAME() {                                       \
    VEC x[CHAINS];                                                                      \
    for (int i = 0; i < CHAINS; ++i) x[i] = SET(static_cast<float>(i));                 \
    const VEC a = SET(0.999f), b = SET(0.001f);                                         \
    for (int64_t step = 0; step < kPeakSteps; ++step) {                                 \
      _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; ++i) x[i] = FMA(x[i], a, b); \
    }                                                                                   \
    VEC sum = x[0];                                                                     \
    for (int i = 1; i < CHAINS; ++i) sum = sum + x[i];                                  \
    float lanes[LANES];                                                                 \
    std::memcpy(lanes, &sum, sizeof(lanes));                                            \
    return lanes[0];                                                                    \
  }
BRRR_PEAK(peak_avx512, "avx512f", __m512, 16, 16, _mm512_set1_ps, _mm512_fmadd_ps)
BRRR_PEAK(peak_avx2, "avx2,fma", __m256, 8, 12, _mm256_set1_ps, _mm256_fmadd_ps)

/// FLOP/s of all threads with every operand in a register; 0 below AVX2.
double peak_flops() {
  const cpu::Isa isa = cpu::best_isa();
  if (isa < cpu::Isa::kAvx2) return 0;
  const bool wide = isa >= cpu::Isa::kAvx512;
  static std::atomic<double> sink = 0;
  const double start = timer();
  std::vector<std::jthread> threads;
  for (int i = 0; i < thread_count(); ++i)
    threads.emplace_back([&] { sink = wide ? peak_avx512() : peak_avx2(); });
  threads.clear();  // waits for them
  return 2.0 * (wide ? 16 * 16 : 12 * 8) * kPeakSteps * thread_count() / (timer() - start);
}
#else
double peak_flops() { return 0; }
#endif

void table(int reps, const std::string& filter) {
  fmt::print("isa {}, {} threads\n\n", cpu::isa_name(cpu::best_isa()), thread_count());
  fmt::print(
      "| shape | batch x M x K x N | brrr GFLOP/s | spread | of peak (bests) | oneDNN | spread "
      "| ratio of medians | ratio of bests |\n|---|---|---|---|---|---|---|---|---|\n");
  struct Group {
    const char* prefix;
    double log_ratio = 0, log_best = 0;
    int count = 0;
  };
  Group groups[] = {{"124M"}, {"char"}, {""}};
  for (const Shape& s : kShapes) {
    if (std::string(s.what).find(filter) == std::string::npos) continue;
    Problem p(s);
    p.onednn();
    const std::vector<float> expected = p.c;
    p.ours();
    for (size_t i = 0; i < p.c.size(); ++i) {
      if (std::abs(p.c[i] - expected[i]) > 1e-5f * static_cast<float>(s.k + 10)) {
        fmt::print("{}: element {} is {}, oneDNN has {}\n", s.what, i, p.c[i], expected[i]);
        std::exit(1);
      }
    }
    const int calls = calls_for(s);
    std::vector<double> ours, theirs, peak;
    for (int r = 0; r < reps; ++r) {
      peak.push_back(1.0 / std::max(peak_flops(), 1.0));
      ours.push_back(time_calls(calls, [&] { p.ours(); }));
      theirs.push_back(time_calls(calls, [&] { p.onednn(); }));
    }
    const Stats o = stats(ours), t = stats(theirs), f = stats(peak);
    const double ratio = t.median / o.median, best_ratio = t.best / o.best;
    fmt::print(
        "| {} | {}{} x {} x {}{}{} | {:.1f} | {:.0f}% | {:.0f}% | {:.1f} | {:.0f}% | {:.2f} | "
        "{:.2f} |\n",
        s.what, s.batch > 1 ? fmt::format("{} x ", s.batch) : "", s.m, s.k, s.n,
        s.trans_a ? " A^T" : "", s.trans_b ? " B^T" : "", s.flops() / o.median / 1e9,
        100 * o.spread, 100 * s.flops() / o.best * f.best, s.flops() / t.median / 1e9,
        100 * t.spread, ratio, best_ratio);
    std::fflush(stdout);
    for (Group& g : groups) {
      if (std::strncmp(s.what, g.prefix, std::strlen(g.prefix)) != 0) continue;
      g.log_ratio += std::log(ratio);
      g.log_best += std::log(best_ratio);
      ++g.count;
    }
  }
  fmt::print("\nGeometric mean of brrr / oneDNN, medians (bests):");
  for (const Group& g : groups) {
    if (g.count > 0) {
      fmt::print(" {} {:.3f} ({:.3f})", *g.prefix ? g.prefix : "all",
                 std::exp(g.log_ratio / g.count), std::exp(g.log_best / g.count));
    }
  }
  fmt::print("\n");
}

/// "m k n trans_a trans_b batch" per line; a line with the same shape as the last reuses its data.
void serve() {
  std::string line, last;
  std::unique_ptr<Problem> problem;
  while (std::getline(std::cin, line)) {
    if (line != last) {
      Shape s{"", 0, 0, 0};
      int ta = 0, tb = 0;
      std::istringstream(line) >> s.m >> s.k >> s.n >> ta >> tb >> s.batch;
      s.trans_a = ta != 0;
      s.trans_b = tb != 0;
      problem = std::make_unique<Problem>(s, false);
      last = line;
    }
    problem->ours();
    const double seconds = time_calls(calls_for(problem->shape), [&] { problem->ours(); });
    fmt::print("{}\n", 1e3 * seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace brrr

int main(int argc, char** argv) {
  int reps = 11;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--serve") {
      brrr::serve();
      return 0;
    }
    if (arg == "--cpu-time") {
      brrr::use_cpu_time = true;
      brrr::set_thread_count(1);
    } else if (arg == "--reps" && i + 1 < argc) {
      reps = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--filter" && i + 1 < argc) {
      filter = argv[++i];
    } else {
      fmt::print(stderr, "usage: micro_gemm [--reps N] [--filter TEXT] [--cpu-time] | --serve\n");
      return 2;
    }
  }
  brrr::table(reps, filter);
}
