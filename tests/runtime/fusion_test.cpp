// Fused programs against unfused ones on the CPU: the same bits, whatever was fused, for any number
// of threads, with operands overwritten in place or not.

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <map>

#include "backend/cpu/isa.h"
#include "backend/cpu/target.h"
#include "ir/text.h"
#include "optim/adamw.h"
#include "passes/pipeline.h"
#include "support/engine_run.h"
#include "support/gpt2.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::Bytes;
using test::Random;
using test::run_on_cpu;

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

/// Fuses, and compares: returns how many clusters there were.
size_t check(const Graph& g, const reference::Tensors& in) {
  const Backend backend = cpu::cpu_backend();
  const Graph plain = simplify(decompose(g, backend.target()));
  const Graph fused = fuse(plain, backend.target());
  verify(fused);
  EXPECT_TRUE(fuse(plain, backend.target()) == fused) << "not the same every time";
  EXPECT_EQ(print(parse(print(fused), find_op)), print(fused));
  omp_set_num_threads(2);
  const Bytes expected = run_on_cpu(plain, in, true);
  for (bool reuse : {true, false})
    for (int threads : {1, 3}) {
      omp_set_num_threads(threads);
      const Bytes got = run_on_cpu(fused, in, reuse);
      for (const auto& [name, bytes] : expected)
        EXPECT_TRUE(got.at(name) == bytes)
            << name << ", threads " << threads << ", reuse " << reuse << "\n"
            << print(fused);
      if (testing::Test::HasFailure()) break;
    }
  omp_set_num_threads(omp_get_num_procs());
  return count_ops(fused, "fused");
}

class Fusion : public testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::machine_isa())
      GTEST_SKIP() << "this machine has no " << cpu::isa_name(GetParam());
    cpu::best_isa();
    cpu::limit_isa(GetParam());
  }
  void TearDown() override { cpu::limit_isa(cpu::machine_isa()); }
};
INSTANTIATE_TEST_SUITE_P(Isa, Fusion,
                         testing::ValuesIn(cpu::all_isas().begin(), cpu::all_isas().end()),
                         [](const auto& row) { return std::string(cpu::isa_name(row.param)); });

TEST_P(Fusion, ChangesNoBitOfRandomGraphs) {
  size_t clusters = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomGraph(seed).graph();
    clusters += check(g, test::random_inputs(g, seed, -1, 1, 5));
    if (HasFailure()) return;
  }
  EXPECT_GT(clusters, 150u);
}

/// Element-wise ops of all dtypes, broadcasts, row functions and sums over rows on one shape, large
/// enough for many tiles.
class RandomRows {
 public:
  explicit RandomRows(uint32_t seed) : random_(seed) {
    constexpr int64_t kWidths[] = {1, 2, 7, 33, 64, 100, 257, 768, 1029, 5000};
    const int64_t width = kWidths[random_.below(10)];
    const int64_t rows = 1 + random_.below(std::max<int64_t>(3, 20000 / width));
    shape_ = random_.coin() ? Shape{rows, width} : Shape{2, rows, width};
    floats_.push_back(g_.input("x", shape_, f32));
    floats_.push_back(g_.input("r", shape_, f32));
    halves_.push_back(g_.input("h", shape_, random_.coin() ? bf16 : f16));
    ints_.push_back(g_.input("i", shape_, i32));
    masks_.push_back(g_.input("m", shape_, boolean));
    key_ = g_.input("key", {2}, i32);
    weight_ = g_.input("w", {width}, f32);
    bias_ = g_.input("b", {width}, f32);
    Shape column = shape_;
    column[-1] = Dim(1);
    small_ = {weight_, g_.input("c", column, f32), g_.input("s", {}, f32), scalar(g_, 0.75)};
    Shape statistic = shape_;
    statistic.erase(statistic.rank() - 1);
    mean_ = g_.input("mean", statistic, f32);
    rstd_ = g_.input("rstd", statistic, f32);
    const int64_t nodes = 2 + random_.below(18);
    for (int64_t i = 0; i < nodes; ++i) grow();
    for (int i = 0; i < 2; ++i) output(pick(floats_));
    output(pick(halves_));
    if (random_.coin()) output(pick(masks_));
    if (random_.coin()) output(pick(ints_));
  }
  const Graph& graph() const { return g_; }

 private:
  void output(Value v) { g_.output(fmt::format("y{}", outputs_++), v); }
  Value pick(const std::vector<Value>& from) {
    const auto n = static_cast<int64_t>(from.size());
    return from[static_cast<size_t>(n - 1 - std::min(random_.below(n), random_.below(n)))];
  }
  Value other() { return random_.below(3) == 0 ? pick(small_) : pick(floats_); }
  void rows_sum(Value v) {
    std::vector<int64_t> axes;
    for (int axis = 0; axis + 1 < shape_.rank(); ++axis) axes.push_back(axis);
    if (random_.coin())
      output(sum(reshape(v, {shape_.elements() / shape_.size(-1), shape_.size(-1)}), {0}));
    else
      output(sum(v, axes));
  }
  void grow() {
    Value a = pick(floats_), b = other();
    switch (random_.below(26)) {
      case 0:
        return floats_.push_back(a + b);
      case 1:
        return floats_.push_back(random_.coin() ? a - b : b - a);
      case 2:
        return floats_.push_back(a * b);
      case 3:
        return floats_.push_back(random_.coin() ? a / (square(b) + 1.0) : b / (square(a) + 1.0));
      case 4:
        return floats_.push_back(random_.coin() ? maximum(a, b) : minimum(b, a));
      case 5:
        return floats_.push_back(gelu(a, random_.coin() ? Gelu::tanh : Gelu::erf));
      case 6:
        return floats_.push_back(
            call1("gelu_grad", {a, pick(floats_)},
                  {{"approximate", std::string(random_.coin() ? "tanh" : "none")}}));
      case 7: {
        constexpr const char* kNames[] = {"neg", "exp",  "tanh",   "erf", "sigmoid",
                                          "abs", "relu", "square", "sin", "cos"};
        return floats_.push_back(call1(kNames[random_.below(10)], {tanh(a)}));
      }
      case 8:
        return floats_.push_back(dropout(a, key_, 0.3, random_.below(3)));
      case 9:
        return masks_.push_back(random_.coin() ? less(a, b) : greater_equal(b, a));
      case 10:
        return floats_.push_back(random_.coin() ? where(pick(masks_), a, b)
                                                : where(pick(masks_), b, a));
      case 11:
        return masks_.push_back(random_.coin() ? logical_not(pick(masks_))
                                               : logical_and(pick(masks_), pick(masks_)));
      case 12:
        return ints_.push_back(pick(ints_) + pick(ints_));
      case 13:
        return masks_.push_back(less_equal(pick(ints_), scalar(g_, 2, i32)));
      case 14:
        return floats_.push_back(cast(random_.coin() ? pick(ints_) : pick(masks_), f32));
      case 15:
        return halves_.push_back(cast(a, random_.coin() ? bf16 : f16));
      case 16:
        return floats_.push_back(cast(pick(halves_), f32));
      case 17: {
        Value h = pick(halves_);
        return halves_.push_back(random_.coin() ? tanh(h) + h : h * scalar(g_, 0.3, h.dtype()));
      }
      case 18: {
        Value h = pick(halves_), k = pick(halves_);
        return halves_.push_back(where(pick(masks_), h, cast(k, h.dtype())));
      }
      case 19:
        return floats_.push_back(softmax(a));
      case 20:
        return floats_.push_back(call1("softmax_grad", {a, pick(floats_)}));
      case 21: {
        const LayerNorm norm = layer_norm(a, weight_, bias_, 0.01);
        if (random_.coin()) output(norm.rstd);
        return floats_.push_back(norm.y);
      }
      case 22: {
        const Value in[] = {a, pick(floats_), weight_, mean_, rstd_};
        const auto out = call("layer_norm_grad", in);
        output(out[1]);
        if (random_.coin()) output(out[2]);
        return floats_.push_back(out[0]);
      }
      case 23:
        return rows_sum(a);
      case 24: {
        Value h = pick(halves_);
        if (h.dtype() != bf16) return;
        return rows_sum(h);
      }
      default:
        return floats_.push_back(a + broadcast_to(weight_, shape_));
    }
  }

  Random random_;
  Graph g_;
  Shape shape_;
  std::vector<Value> floats_, halves_, ints_, masks_, small_;
  Value key_, weight_, bias_, mean_, rstd_;
  int outputs_ = 0;
};

TEST_P(Fusion, ChangesNoBitOfRowsOfAllKinds) {
  size_t clusters = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = RandomRows(seed).graph();
    clusters += check(g, test::random_inputs(g, seed, -1.5, 1.5, 2));
    if (HasFailure()) return;
  }
  EXPECT_GT(clusters, 150u);
}

TEST(FusionOfGpt2, ChangesNoLossAndNoGradient) {
  for (const bool bias : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      auto config = test::tiny_gpt2(bias, dropout);
      config.n_embd = 36;
      const Graph g = nn::gpt2_loss_graph(config, 3, 7);
      const Graph full = simplify(differentiate(g));
      EXPECT_GT(check(full, test::gpt2_inputs(full, config, 5)), 8u);
    }
}

TEST(FusionOfGpt2, IsAPassThatCanBeSwitchedOff) {
  const auto config = test::tiny_gpt2(true, 0.1);
  const Graph g = nn::gpt2_loss_graph(config, 2, 5);
  const Backend backend = cpu::cpu_backend();
  PipelineOptions options;
  options.loss = "loss";
  options.verify = true;
  options.optimizer = [](Graph& graph) { optim::attach_adamw(graph, {}); };
  const Graph with = run_pipeline(g, backend.target(), options);
  options.disabled = {"fuse"};
  const Graph without = run_pipeline(g, backend.target(), options);
  EXPECT_GT(count_ops(with, "fused"), 8u);
  EXPECT_EQ(count_ops(without, "fused"), 0u);
  auto in = test::gpt2_inputs(with, config, 3);
  in["adam_step"].data = {1};
  const Bytes a = run_on_cpu(with, in), b = run_on_cpu(without, in);
  for (const auto& [name, bytes] : b) EXPECT_TRUE(a.at(name) == bytes) << name;
}

}  // namespace
}  // namespace brrr
