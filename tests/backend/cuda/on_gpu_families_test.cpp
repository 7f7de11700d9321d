// The families of what runs on a GPU, one test each, to be run in a process of its own: the
// smallest case against the reference first, then larger ones by the device's clock.
// `scripts/gpu_check` reads the lines of JSON that they print. Skipped where there is no GPU.

#include <array>
#include <cstdlib>

#include "backend/cuda/target.h"
#include "base/human.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "support/attention_attrs.h"
#include "support/cuda_measured.h"
#include "support/on_gpu.h"

namespace brrr::cuda {
namespace {

using test::GraphOnGpu;
using test::tell;

Value state(Graph& g, std::string_view name, Shape shape, DType dtype = DType::bf16) {
  return g.input(name, std::move(shape), dtype, InputKind::state);
}

/// One size of a family. `flops` and `bytes` are what it does; a family's cases compare by `work`.
struct FamilyCase {
  std::string what;
  double work = 0;
  std::function<Graph()> graph;
  double flops = 0, bytes = 0;
};

class OnGpuFamily : public test::OnGpuTest {
 protected:
  static constexpr double kMostSeconds = 0.5;                      // of one run of a larger case
  static constexpr double kSixteenBits = 1e-2, kEightBits = 7e-2;  // relative errors that may be

  /// The first case against the reference; then each is timed, the larger ones only where the time
  /// of the one before promises that a run takes less than kMostSeconds. `way`: every node that has
  /// a way of that name has no other, and one node must have it.
  static void climb(std::string_view family, const std::vector<FamilyCase>& cases, double bound,
                    const std::string& way = "") {
    double seconds = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const FamilyCase& c = cases[i];
      if (i > 0) seconds *= c.work / cases[i - 1].work;
      if (seconds > kMostSeconds) {
        std::cout << fmt::format("{}: {} and what follows are left out: a run would take {:.0f} s",
                                 family, c.what, seconds)
                  << std::endl;
        return;
      }
      const auto taken = std::make_shared<int>(0);
      Backend backend = backend_named("cuda");
      if (!way.empty()) backend = test::by_way(std::move(backend), way, taken);
      GraphOnGpu on_gpu(c.graph(), backend);
      ASSERT_TRUE(way.empty() || *taken > 0) << c.what << ": no node has the way " << way;
      std::vector<std::pair<std::string_view, double>> figures;
      if (i == 0) {
        const double error = on_gpu.error();
        figures.emplace_back("error", error);
        EXPECT_LE(error, bound) << c.what;
        tell(family, c.what, figures);
      }
      on_gpu.fill();
      seconds = on_gpu.wall_seconds();
      const double ms = on_gpu.ms();
      figures.emplace_back("ms", ms);
      if (c.flops > 0) figures.emplace_back("tflops", 1e-9 * c.flops / ms);
      if (c.bytes > 0) figures.emplace_back("gbytes_per_second", 1e-6 * c.bytes / ms);
      tell(family, c.what, figures);
    }
  }

  static std::vector<FamilyCase> products(DType dtype) {
    std::vector<FamilyCase> cases;
    for (const int64_t n : {64, 512, 2048, 8192}) {
      const double flops = 2.0 * static_cast<double>(n * n) * static_cast<double>(n);
      const auto graph = [n, dtype] {
        Graph g;
        const Value a = state(g, "a", {n, n}, dtype), b = state(g, "b", {n, n}, dtype);
        if (!is_fp8(dtype)) {
          g.output("y", matmul(a, b));
          return g;
        }
        const std::vector<Value> in{a, b, state(g, "scale a", {}, f32),
                                    state(g, "scale b", {}, f32)};
        const Attrs attrs{{"dtype", bf16}, {"fast_accumulation", true}, {"bias", false}};
        g.output("y", call(Op::scaled_matmul, in, attrs)[0]);
        return g;
      };
      cases.push_back({fmt::format("{0} x {0} x {0}", n), flops, graph, flops});
    }
    return cases;
  }

  /// Packed causal attention of heads of 64 as GPT-2 calls it, forward and backward.
  static void attention_by(const std::string& way) {
    if (const std::string reason = way == "cudnn" ? missing_extras() : ""; !reason.empty())
      GTEST_SKIP() << reason;
    const int sm = live_gpus().gpus.at(0).description.sm;
    if ((way == "tma" || way == "wgmma") && sm != kSmOfWgmma)
      GTEST_SKIP() << way << " is for sm_90 alone, and this is sm_" << sm;
    for (const bool backward : {false, true}) {
      std::vector<FamilyCase> cases;
      for (const auto& [batch, heads, t] :
           {std::array<int64_t, 3>{1, 2, 192}, {4, 4, 512}, {32, 12, 1024}}) {
        const auto graph = [batch, heads, t, backward] {
          Graph g;
          const Shape rows{batch, t, 3 * heads * 64}, y_rows{batch, t, heads * 64};
          Attrs attrs = test::attention_in_one(heads, 64);
          attrs.set("causal", true);
          const Value qkv = state(g, "qkv", rows), dy = state(g, "dy", y_rows);
          const std::vector<Value> in{qkv};
          const auto out = call(Op::attention, in, attrs);
          g.output("y", out[0]);
          if (!backward) return g;
          attrs.set("dlse", false);
          const std::vector<Value> grad_in{qkv, out[0], out[1], dy};
          g.output("dqkv", call(Op::attention_grad, grad_in, attrs)[0]);
          return g;
        };
        // Half of the scores are computed: two products forward, five more backward.
        const double scores = 0.5 * static_cast<double>(batch * heads * t * t);
        const double flops = scores * 2 * 64 * (backward ? 7 : 2);
        cases.push_back({fmt::format("{} x {} heads, {} tokens{}", batch, heads, t,
                                     backward ? ", with its gradient" : ""),
                         scores, graph, flops});
      }
      climb("attention by " + way, cases, kSixteenBits, way);
    }
  }
};

TEST_F(OnGpuFamily, Copies) {
  const auto device = open_gpu(0, live_gpus().gpus.at(0).description);
  for (const int64_t bytes : {int64_t{4}, int64_t{4097}, int64_t{1} << 20, int64_t{1} << 28}) {
    std::vector<std::byte> sent(static_cast<size_t>(bytes)), got(sent.size());
    test::Random random(3);
    for (size_t i = 0; i < sent.size(); ++i)
      sent[i] = i < 4096 ? static_cast<std::byte>(random.below(256)) : sent[i - 4093];
    std::byte* a = device->allocate(bytes);
    std::byte* b = device->allocate(bytes);
    device->synchronise();
    const auto gbytes_per_second = [&](const auto& copy) {
      const Stopwatch watch;
      copy();
      device->synchronise();
      return 1e-9 * static_cast<double>(bytes) / watch.seconds();
    };
    const double in = gbytes_per_second([&] { device->copy_in(a, sent.data(), bytes); });
    const double within = 2 * gbytes_per_second([&] { device->copy(b, a, bytes); });
    const double out = gbytes_per_second([&] { device->copy_out(got.data(), b, bytes); });
    double wrong = 0;
    for (size_t i = 0; i < sent.size(); ++i) wrong += sent[i] != got[i];
    tell("copies", fmt::format("{} bytes", with_commas(bytes)),
         {{"error", wrong},
          {"in_gbytes_per_second", in},
          {"within_gbytes_per_second", within},
          {"out_gbytes_per_second", out}});
    device->release(a, bytes);
    device->release(b, bytes);
    EXPECT_EQ(wrong, 0) << bytes << " bytes";
  }
}

// The residual sum, its layer norm and a GELU behind it, as the pass `fuse` joins them.
TEST_F(OnGpuFamily, FusedCluster) {
  std::vector<FamilyCase> cases;
  for (const int64_t rows : {33, 2048, 65536}) {
    constexpr int64_t kWidth = 768;
    const auto graph = [rows] {
      Graph g;
      const Value x = state(g, "x", {rows, kWidth}), y = state(g, "y", {rows, kWidth}),
                  w = state(g, "w", {kWidth}, f32), b = state(g, "b", {kWidth}, f32);
      const Value sum = cast(x, f32) + cast(y, f32);
      g.output("sum", cast(sum, DType::bf16));
      g.output("z", cast(gelu(layer_norm(sum, w, b).y), DType::bf16));
      const Backend backend = backend_named("cuda");  // the target refers to it
      return run_pipeline(g, backend.target(), {});
    };
    const auto elements = static_cast<double>(rows * kWidth);
    cases.push_back({fmt::format("{} rows of {}", rows, kWidth), elements, graph, 0, 8 * elements});
  }
  climb("fused cluster", cases, kSixteenBits);
}

TEST_F(OnGpuFamily, CublasLtBf16) { climb("cublaslt bf16", products(DType::bf16), kSixteenBits); }

TEST_F(OnGpuFamily, CublasLtFp8) {
  const int sm = live_gpus().gpus.at(0).description.sm;
  if (sm < kLeastSmOfFp8) GTEST_SKIP() << "products of fp8 are multiplied from sm_89 on";
  climb("cublaslt fp8", products(DType::f8e4m3), kEightBits);
}

// A weight's gradient and its bias' in one call: dW = x^T dY in f32, db = the sum over dY's rows.
TEST_F(OnGpuFamily, BiasGradient) {
  std::vector<FamilyCase> cases;
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{48, 64, 80}, {1024, 768, 768}, {32768, 768, 3072}}) {
    const auto graph = [rows, in, out] {
      Graph g;
      const Value x = state(g, "x", {rows, in}), dy = state(g, "dy", {rows, out});
      g.output("dw", matmul(x, dy, true, false, f32));
      g.output("db", sum(cast(dy, f32), {0}));
      const Backend backend = backend_named("cuda");  // the target refers to it
      const Target target = backend.target();
      return fuse_epilogues(fuse_bias_gradients(g, target), target);
    };
    const double flops = 2 * static_cast<double>(rows * in) * static_cast<double>(out);
    cases.push_back({fmt::format("{} rows, {} x {}", rows, in, out), flops, graph, flops});
  }
  climb("bias gradient", cases, kSixteenBits, "cublaslt with its epilogue");
  climb("bias gradient by a kernel of its own", cases, kSixteenBits, "cublaslt, then a sum");
}

TEST_F(OnGpuFamily, AttentionByCudnn) { attention_by("cudnn"); }
TEST_F(OnGpuFamily, AttentionByTma) { attention_by("tma"); }
TEST_F(OnGpuFamily, AttentionByWgmma) { attention_by("wgmma"); }
TEST_F(OnGpuFamily, AttentionByMma) { attention_by("mma"); }

// The same steps queued one by one and replayed as a graph: the same bits, and what a small kernel
// costs in each.
TEST_F(OnGpuFamily, GraphReplay) {
  constexpr int kKernels = 200, kSteps = 6;
  Graph g;
  const Value x = state(g, "x", {256}, f32), a = g.input("a", {}, f32);
  Value y = x;
  for (int i = 0; i < kKernels; ++i) y = y * 0.5 + a;
  g.update(x, y);
  g.output("total", sum(y, {0}));
  std::vector<std::vector<float>> totals;
  for (const char* kept : {"0", "1"}) {
    ::setenv("BRRR_CUDA_GRAPHS", kept, 1);
    Engine engine(backend_named("cuda"));
    const size_t p = engine.add(decompose(g, engine.backend().target()));
    engine.allocate();
    auto& seen = totals.emplace_back();
    double ms = INFINITY;
    for (int i = 0; i < kSteps; ++i) {
      const float value = 1.0f / static_cast<float>(i + 3);
      brrr::Call call{p, {}, {"total"}};
      call.set("a", std::span(&value, 1));
      const Stopwatch watch;
      seen.push_back(engine.run(std::span(&call, 1)).at(0).at(0));
      ms = std::min(ms, watch.milliseconds());
    }
    tell("graph replay", *kept == '1' ? "as one graph" : "kernel by kernel",
         {{"ms", ms}, {"us_per_kernel", 1e3 * ms / (2 * kKernels)}});
    ::unsetenv("BRRR_CUDA_GRAPHS");
  }
  EXPECT_EQ(totals[0], totals[1]);
  // y = 0.5 y + a converges to 2 a.
  for (int i = 0; i < kSteps; ++i)
    EXPECT_NEAR(totals[1][static_cast<size_t>(i)], 512.0f / static_cast<float>(i + 3), 0.01);
}

// The products of GPT-2's head over its vocabulary as it is and padded to a multiple of 64.
TEST_F(OnGpuFamily, HeadProducts) {
  constexpr int64_t kWidth = 768;
  enum Kind { logits, dx, dw };
  const auto graph = [](Kind kind, int64_t rows, int64_t words) {
    Graph g;
    const auto x = [&] { return state(g, "x", {rows, kWidth}); };
    const auto w = [&] { return state(g, "w", {words, kWidth}); };
    const auto dy = [&] { return state(g, "dy", {rows, words}); };
    if (kind == logits)
      g.output("y", matmul(x(), w(), false, true));
    else if (kind == dx)
      g.output("y", matmul(dy(), w()));
    else
      g.output("y", matmul(dy(), x(), true, false, f32));
    return g;
  };
  constexpr const char* kNames[] = {"logits", "dX", "dW"};
  double seconds = 0, work = 0;  // of the product before
  for (const auto& [rows, words] : {std::pair<int64_t, int64_t>{16, 512},
                                    {512, 50257},
                                    {512, 50304},
                                    {8192, 50257},
                                    {8192, 50304}})
    for (const Kind kind : {logits, dx, dw}) {
      const double flops = 2.0 * static_cast<double>(rows * kWidth) * static_cast<double>(words);
      const std::string what = fmt::format("{} of {} rows, {}", kNames[kind], rows, words);
      if (work > 0 && seconds * flops > kMostSeconds * work) {
        std::cout << "head products: " << what << " is left out: it would take too long here"
                  << std::endl;
        continue;
      }
      GraphOnGpu on_gpu(graph(kind, rows, words), backend_named("cuda"));
      on_gpu.fill();
      seconds = on_gpu.wall_seconds();
      work = flops;
      const double ms = on_gpu.ms();
      tell("head products", what,
           {{"rows", static_cast<double>(rows)},
            {"words", static_cast<double>(words)},
            {"ms", ms},
            {"tflops", 1e-9 * flops / ms}});
    }
}

}  // namespace
}  // namespace brrr::cuda
