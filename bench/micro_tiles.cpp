// How well AMX products are fed, on a machine without AMX: the products of a GPT-2 124M step by
// tiles that move what tile instructions move and take a time, but compute nothing. A load is one
// access to each of its 16 lines, a store likewise; a product of two tiles occupies the divider,
// which works beside everything else as the tile unit does. What comes out is the share of the
// stand-in's own peak (operands in L1) that is left when operands come from where they lie, are
// packed, and results are finished. No figure of it is one of AMX.
//
//   micro_tiles [--tokens N] [--divisions N] [--reps N]
//       Table in Markdown, medians. A division of 8 doubles takes 16 cycles on Intel's processors
//       since Ice Lake, as the product of two tiles does, and about 9 on Zen 4, whose L1 cache
//       takes half as much from L2 in a cycle as Sapphire Rapids': 4 divisions keep the proportion.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/tile_product.h"
#include "base/clock.h"

namespace brrr::cpu {
namespace {

/// Tiles 4 to 7 are operands: of their registers the last four loads remain, which is what products
/// wait for. Sums are in registers that no compiler uses here.
template <int kDivisions>
class TimedTiles {
 public:
  static constexpr int64_t kBlockTiles = kAmxRate.block_tiles;

  template <int kTile>
  void zero() {}
  template <int kTile>
  void load(const void* from, int64_t stride) {
    const auto* p = static_cast<const char*>(from);
    for (int i = 0; i < 4; ++i, p += 4 * stride) {
      asm volatile(
          "vmovups (%0), %%ymm%c3\n\tvmovups (%0,%1), %%ymm%c4\n\t"
          "vmovups (%0,%1,2), %%ymm%c5\n\tvmovups (%0,%2), %%ymm%c6"
          :
          : "r"(p), "r"(stride), "r"(3 * stride), "i"(kFirst<kTile>), "i"(kFirst<kTile> + 1),
            "i"(kFirst<kTile> + 2), "i"(kFirst<kTile> + 3)
          : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
            "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    auto* p = static_cast<char*>(to);
    for (int i = 0; i < 4; ++i, p += 4 * stride) {
      asm volatile(
          "vmovups %%ymm%c3, (%0)\n\tvmovups %%ymm%c4, (%0,%1)\n\t"
          "vmovups %%ymm%c5, (%0,%1,2)\n\tvmovups %%ymm%c6, (%0,%2)"
          :
          : "r"(p), "r"(stride), "r"(3 * stride), "i"(kFirst<kTile>), "i"(kFirst<kTile> + 1),
            "i"(kFirst<kTile> + 2), "i"(kFirst<kTile> + 3)
          : "memory");
    }
  }
  template <int kSum, int kA, int kB>
  void dot() {
    for (int i = 0; i < kDivisions; ++i) {
      asm volatile("vdivpd %%zmm%c2, %%zmm%c1, %%zmm%c0"
                   :
                   : "i"(kFirst<kSum> + i % 4), "i"(kFirst<kA> + i % 4), "i"(kFirst<kB> + i % 4));
    }
  }

 private:
  template <int kTile>
  static constexpr int kFirst = kTile < 4 ? 16 + 4 * kTile : 4 * (kTile - 4);
};

struct Shape {
  std::string name;
  int64_t m, n, k;
  bool dw;
};
std::vector<Shape> shapes(int64_t tokens) {
  constexpr int64_t kWidth = 768, kVocab = 50304, kChunk = 1024;
  std::vector<Shape> all;
  const auto layer = [&](const std::string& name, int64_t in, int64_t out) {
    all.push_back({name + " y", tokens, out, in, false});
    all.push_back({name + " dx", tokens, in, out, false});
    all.push_back({name + " dw", in, out, tokens, true});
  };
  layer("attn.c_attn", kWidth, 3 * kWidth);
  layer("mlp.c_fc", kWidth, 4 * kWidth);
  layer("mlp.c_proj", 4 * kWidth, kWidth);
  all.push_back({"lm_head y", kChunk, kVocab, kWidth, false});
  all.push_back({"lm_head dx", kChunk, kWidth, kVocab, false});
  all.push_back({"lm_head dw", kVocab, kWidth, kChunk, true});
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Floating-point operations per second that the stand-in would do with its operands in L1.
template <class Tiles>
double peak() {
  std::atomic<double> sum = 0;
  const auto measure = [&] {
    constexpr int kTimes = 20000, kTilesDeep = 4;
    alignas(64) uint16_t a[kTilesDeep * 1024], b[kTilesDeep * 1024];
    for (uint16_t& x : a) x = 0x3f80;
    for (uint16_t& x : b) x = 0x3f80;
    Tiles tiles;
    std::vector<double> seconds;
    for (int round = 0; round < 5; ++round) {
      const double start = now_seconds();
      for (int i = 0; i < kTimes; ++i)
        for (int t = 0; t < kTilesDeep; ++t) {
          tiles.template load<4>(a + t * 1024, kTileRowBytes);
          tiles.template load<6>(b + t * 1024, kTileRowBytes);
          tiles.template dot<0, 4, 6>();
          tiles.template load<7>(b + t * 1024 + 512, kTileRowBytes);
          tiles.template dot<1, 4, 7>();
          tiles.template load<5>(a + t * 1024 + 512, kTileRowBytes);
          tiles.template dot<2, 5, 6>();
          tiles.template dot<3, 5, 7>();
        }
      seconds.push_back(now_seconds() - start);
    }
    sum += 65536.0 * kTilesDeep * kTimes / median(seconds);
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < thread_count(); ++i) threads.emplace_back(measure);
  threads.clear();  // waits for them
  return sum;
}

template <int kDivisions>
void run(int64_t tokens, int64_t reps) {
  using Tiles = TimedTiles<kDivisions>;
  const int64_t threads = thread_count();
  const double most = peak<Tiles>();
  fmt::print("Stand-in of {} divisions: peak {:.2f} TFLOP/s, {} threads\n\n", kDivisions,
             most / 1e12, threads);
  fmt::print("| | M x K x N | TFLOP/s | of the peak |\n|---|---|---|---|\n");
  double logs = 0;
  const std::vector<Shape> all = shapes(tokens);
  for (const Shape& s : all) {
    const auto numbers = [](const PackBuffer& buffer, int64_t words) {
      auto* p = reinterpret_cast<uint16_t*>(buffer.data());
      std::fill_n(p, words, uint16_t{0x3f80});  // ordinary ones, whatever they are read as
      return p;
    };
    const int64_t columns = round_up(s.n, kPanelColumns);
    const PackBuffer a(s.m * s.k * 2), b(s.k * columns * 2), c(s.m * s.n * 4);
    const std::vector<float> bias(static_cast<size_t>(s.n), 0.5f);
    GemmArgs g{.m = s.m, .n = s.n, .k = s.k, .dtype = DType::bf16};
    g.a = numbers(a, s.m * s.k);
    g.lda = s.dw ? s.m : s.k;
    g.trans_a = s.dw;
    g.b = numbers(b, s.k * columns);
    g.ldb = s.n;
    g.panels = !s.dw;
    g.c = numbers(c, s.m * s.n * 2);
    g.c_dtype = s.dw ? DType::f32 : DType::bf16;
    g.ldc = s.n;
    if (!s.dw) g.bias = bias.data();
    std::vector<double> seconds;
    for (int64_t i = 0; i <= reps; ++i) {
      const double start = now_seconds();
      multiply_tiles<Tiles>({g, 1, 0, 0, 0}, threads);
      if (i > 0) seconds.push_back(now_seconds() - start);
    }
    const double rate = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                        static_cast<double>(s.k) / median(seconds);
    logs += std::log(rate / most);
    fmt::print("| {} | {} x {} x {} | {:.2f} | {:.0f}% |\n", s.name, s.m, s.k, s.n, rate / 1e12,
               100 * rate / most);
  }
  fmt::print("| geometric mean | | | {:.0f}% |\n",
             100 * std::exp(logs / static_cast<double>(all.size())));
}

int main_of(int argc, char** argv) {
  int64_t tokens = 4096, divisions = 4, reps = 5;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    int64_t* value = option == "--tokens"      ? &tokens
                     : option == "--divisions" ? &divisions
                     : option == "--reps"      ? &reps
                                               : nullptr;
    if (value != nullptr && i + 1 < argc) *value = std::atol(argv[i + 1]);
    if (value == nullptr || i + 1 == argc || *value < 1 || divisions > 4) {
      fmt::print(stderr, "usage: micro_tiles [--tokens N] [--divisions 1..4] [--reps N]\n");
      return 2;
    }
  }
  if (best_isa() < Isa::kAvx512) {
    fmt::print(stderr, "micro_tiles: needs AVX-512\n");
    return 1;
  }
  constexpr void (*kRuns[])(int64_t, int64_t) = {run<1>, run<2>, run<3>, run<4>};
  kRuns[divisions - 1](tokens, reps);
  return 0;
}

}  // namespace
}  // namespace brrr::cpu

int main(int argc, char** argv) { return brrr::cpu::main_of(argc, argv); }
