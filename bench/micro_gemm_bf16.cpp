// gemm() on bf16 operands against oneDNN and against itself in f32, interleaved in one run. Packing
// is counted: all operands are plain row-major. oneDNN runs with plain weights and with weights
// reordered into its own layout in every call; the faster of the two medians is shown.
//
//   micro_gemm_bf16 [--reps N] [--filter TEXT]
//
// Products of many rows: TFLOP/s, and the share of the fastest measured bf16 instruction. Products
// of one row (decode) are bound by reading the weights, which rotate through 256 MB so that no
// cache holds them: GB/s, and the share of a plain read of the same bytes.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/peaks_kernels.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace brrr {
namespace {

struct Shape {
  const char* what;
  int64_t m, k, n;
  bool trans_a = false, trans_b = false;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k); }
};

// GPT-2 124M at batch 4 x 1024.
const Shape kShapes[] = {
    {"qkv", 4096, 768, 2304},
    {"proj", 4096, 768, 768},
    {"fc", 4096, 768, 3072},
    {"fc2", 4096, 3072, 768},
    {"head", 4096, 768, 50304, false, true},
    {"dX qkv", 4096, 2304, 768, false, true},
    {"dX fc", 4096, 3072, 768, false, true},
    {"dX head", 4096, 50304, 768},
    {"dW qkv", 768, 4096, 2304, true},
    {"dW proj", 768, 4096, 768, true},
    {"dW fc", 768, 4096, 3072, true},
    {"dW head", 50304, 4096, 768, true},
    {"decode qkv", 1, 768, 2304},
    {"decode fc", 1, 768, 3072},
    {"decode fc2", 1, 3072, 768},
    {"decode head [V,C]", 1, 768, 50304, false, true},
    {"decode head [C,V]", 1, 768, 50304},
};

using Numbers = std::vector<uint16_t>;

Numbers random_numbers(int64_t count, uint32_t seed) {
  Numbers v(static_cast<size_t>(count));
  parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    RngStream rng({seed, 0}, 0, static_cast<uint64_t>(begin));
    for (int64_t i = begin; i < end; ++i) v[i] = bf16_from_float(2 * rng.next_uniform() - 1);
  });
  return v;
}

std::vector<float> widened(const Numbers& v) {
  std::vector<float> wide(v.size());
  for (size_t i = 0; i < v.size(); ++i) wide[i] = float_from_bf16(v[i]);
  return wide;
}

cpu::GemmArgs arguments(const Shape& s, DType dtype, const void* a, const void* b, void* c) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .dtype = dtype,
          .a = a,
          .lda = s.trans_a ? s.m : s.k,
          .trans_a = s.trans_a,
          .b = b,
          .ldb = s.trans_b ? s.k : s.n,
          .trans_b = s.trans_b,
          .c_dtype = dtype,
          .c = c,
          .ldc = s.n};
}

/// oneDNN's matmul on bf16, with plain weights or with a reorder in each call.
class Onednn {
 public:
  Onednn(const Shape& s, const Numbers& a, const Numbers& b, Numbers& c, bool blocked) {
    using dnnl::memory;
    const auto desc = [](int64_t rows, int64_t cols, bool trans) {
      return memory::desc({rows, cols}, memory::data_type::bf16,
                          trans ? memory::dims{1, rows} : memory::dims{cols, 1});
    };
    const memory::desc da = desc(s.m, s.k, s.trans_a), db = desc(s.k, s.n, s.trans_b),
                       dc = desc(s.m, s.n, false);
    const memory::desc any({s.k, s.n}, memory::data_type::bf16, memory::format_tag::any);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc pd(engine_, da, blocked ? any : db, dc);
#else
    const dnnl::matmul::primitive_desc pd({da, blocked ? any : db, dc}, engine_);
#endif
    matmul_ = dnnl::matmul(pd);
    plain_ = memory(db, engine_, const_cast<uint16_t*>(b.data()));
    weights_ = blocked ? memory(pd.weights_desc(), engine_) : plain_;
    if (blocked) reorder_ = dnnl::reorder(plain_, weights_);
    memories_ = {{DNNL_ARG_SRC, memory(da, engine_, const_cast<uint16_t*>(a.data()))},
                 {DNNL_ARG_WEIGHTS, weights_},
                 {DNNL_ARG_DST, memory(dc, engine_, c.data())}};
  }
  void run() {
    if (reorder_) reorder_.execute(stream_, plain_, weights_);
    matmul_.execute(stream_, memories_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  dnnl::reorder reorder_;
  dnnl::memory plain_, weights_;
  std::unordered_map<int, dnnl::memory> memories_;
};

std::optional<Onednn> make_onednn(const Shape& s, const Numbers& a, const Numbers& b, Numbers& c,
                                  bool blocked) {
  try {
    return std::optional<Onednn>(std::in_place, s, a, b, c, blocked);
  } catch (const dnnl::error&) {
    return std::nullopt;  // no bf16 on this processor
  }
}

struct Stats {
  double median = 0, spread = 0;
};
Stats stats(std::vector<double> v) {
  if (v.empty()) return {};
  std::sort(v.begin(), v.end());
  const auto at = [&](double q) {
    return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1) + 0.5)];
  };
  return {at(0.5), (at(0.75) - at(0.25)) / at(0.5)};
}

template <typename Body>
double seconds_of(int calls, Body&& body) {
  const double start = now_seconds();
  for (int i = 0; i < calls; ++i) body();
  return (now_seconds() - start) / calls;
}

/// Operations per second of all threads with the fastest bf16 (else f32) instruction.
double peak() {
  static const std::vector<cpu::ComputeKernel> kernels = cpu::compute_kernels();
  static volatile float sink = 0;
  double best = 0;
  for (const char* type : {"bf16", "f32"}) {
    for (const cpu::ComputeKernel& kernel : kernels) {
      if (std::strcmp(kernel.type, type) != 0) continue;
      constexpr int64_t kRounds = 100'000;
      const double seconds = seconds_of(1, [&] {
#pragma omp parallel
        {
          const float value = kernel.loop(kRounds);
#pragma omp critical
          sink = sink + value;
        }
      });
      best = std::max(best, kernel.ops_per_round * kRounds * thread_count() / seconds);
    }
  }
  return best;
}

void read_all(const Numbers& v) {
  static volatile uint64_t sink = 0;
  const auto address = reinterpret_cast<uintptr_t>(v.data());
  const auto* data = reinterpret_cast<const std::byte*>((address + 63) / 64 * 64);
  const auto bytes = (static_cast<int64_t>(v.size() * sizeof(uint16_t)) - 64) / 512 * 512;
  parallel_for(bytes / 512, 1, [&](int64_t begin, int64_t end) {
    const uint64_t value = cpu::memory_kernels().read(data + begin * 512, (end - begin) * 512);
#pragma omp critical
    sink = sink + value;
  });
}

double largest_difference(const Numbers& x, const Numbers& y) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(float_from_bf16(x[i])) -
                                   static_cast<double>(float_from_bf16(y[i]))));
  return most;
}

void decode_row(const Shape& s, int reps) {
  const int64_t elements = s.k * s.n;
  const auto copies = static_cast<size_t>(std::max<int64_t>(1, (int64_t{128} << 20) / elements));
  const Numbers a = random_numbers(s.k, 1);
  // 64-byte alignment for the plain read.
  std::vector<Numbers> weights(copies, random_numbers(elements, 2));
  Numbers c(static_cast<size_t>(s.n));
  size_t next = 0;
  const auto calls = static_cast<int>(copies);
  std::vector<double> ours, reads;
  for (int r = 0; r < reps; ++r) {
    ours.push_back(seconds_of(calls, [&] {
      const Numbers& b = weights[next++ % copies];
      cpu::gemm(arguments(s, DType::bf16, a.data(), b.data(), c.data()));
    }));
    reads.push_back(seconds_of(calls, [&] { read_all(weights[next++ % copies]); }));
  }
  const Stats o = stats(ours), t = stats(reads);
  const double gigabytes = 2e-9 * static_cast<double>(elements);
  fmt::print("| {} | 1 x {} x {}{} | {:.1f} GB/s | {:.0f}% | {:.0f}% of {:.1f} GB/s | | |\n",
             s.what, s.k, s.n, s.trans_b ? " B^T" : "", gigabytes / o.median, 100 * o.spread,
             100 * t.median / o.median, gigabytes / t.median);
}

void product_row(const Shape& s, int reps, double* log_ratio, int* compared) {
  const Numbers a = random_numbers(s.m * s.k, 1), b = random_numbers(s.k * s.n, 2);
  const std::vector<float> wide_a = widened(a), wide_b = widened(b);
  Numbers c(static_cast<size_t>(s.m * s.n)), other(c.size());
  std::vector<float> wide_c(c.size());
  const auto ours = [&] { cpu::gemm(arguments(s, DType::bf16, a.data(), b.data(), c.data())); };
  const auto f32 = [&] {
    cpu::gemm(arguments(s, DType::f32, wide_a.data(), wide_b.data(), wide_c.data()));
  };
  std::optional<Onednn> plain = make_onednn(s, a, b, other, false);
  std::optional<Onednn> blocked = make_onednn(s, a, b, other, true);
  ours();
  f32();
  if (plain) {
    plain->run();
    const double most = largest_difference(c, other);
    if (most > 0.02 * std::sqrt(static_cast<double>(s.k))) {
      fmt::print("{}: differs from oneDNN by {}\n", s.what, most);
      std::exit(1);
    }
  }
  const int calls = static_cast<int>(std::clamp(1e9 / s.flops(), 1.0, 100.0));
  std::vector<double> t_ours, t_f32, t_plain, t_blocked, peaks;
  for (int r = 0; r < reps; ++r) {
    peaks.push_back(peak());
    t_ours.push_back(seconds_of(calls, ours));
    t_f32.push_back(seconds_of(calls, f32));
    if (plain) t_plain.push_back(seconds_of(calls, [&] { plain->run(); }));
    if (blocked) t_blocked.push_back(seconds_of(calls, [&] { blocked->run(); }));
  }
  const Stats o = stats(t_ours), f = stats(t_f32), p = stats(t_plain), q = stats(t_blocked);
  double theirs = p.median;
  if (q.median > 0 && (theirs == 0 || q.median < theirs)) theirs = q.median;
  fmt::print(
      "| {} | {} x {} x {}{}{} | {:.3f} TFLOP/s | {:.0f}% | {:.0f}% of peak | {:.2f} | {} |\n",
      s.what, s.m, s.k, s.n, s.trans_a ? " A^T" : "", s.trans_b ? " B^T" : "",
      1e-12 * s.flops() / o.median, 100 * o.spread,
      100 * s.flops() / o.median / stats(peaks).median, f.median / o.median,
      theirs > 0 ? fmt::format("{:.2f}", theirs / o.median) : "no bf16");
  if (theirs > 0) {
    *log_ratio += std::log(theirs / o.median);
    ++*compared;
  }
}

void table(int reps, const std::string& filter) {
  fmt::print("isa {}, {} threads\n\n", cpu::isa_name(cpu::best_isa()), thread_count());
  fmt::print(
      "| shape | M x K x N | brrr bf16 | spread | bound | against brrr f32 | against oneDNN bf16 "
      "|\n|---|---|---|---|---|---|---|\n");
  double log_ratio = 0;
  int compared = 0;
  for (const Shape& s : kShapes) {
    if (std::string(s.what).find(filter) == std::string::npos) continue;
    if (s.m == 1) {
      decode_row(s, reps);
    } else {
      product_row(s, reps, &log_ratio, &compared);
    }
    std::fflush(stdout);
  }
  if (compared > 0)
    fmt::print("\nGeometric mean against oneDNN: {:.3f}\n", std::exp(log_ratio / compared));
}

}  // namespace
}  // namespace brrr

int main(int argc, char** argv) {
  int reps = 7;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--reps" && i + 1 < argc) {
      reps = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--filter" && i + 1 < argc) {
      filter = argv[++i];
    } else {
      fmt::print(stderr, "usage: micro_gemm_bf16 [--reps N] [--filter TEXT]\n");
      return 2;
    }
  }
  brrr::table(reps, filter);
}
