// Every op of the table on a GPU of this machine, against the reference interpreter, and every way
// of every node of training steps; skipped where there is none.

#include <gtest/gtest.h>

#include "backend/cuda/target.h"
#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/cuda_ways.h"
#include "support/on_gpu.h"
#include "support/panel_samples.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace brrr::cuda {
namespace {

class OnGpu : public test::OnGpuTest {
 protected:
  /// One node on the device; terms: of the longest sum.
  static void check(const OpDef& op, const Sample& sample, const std::string& what) {
    Graph g;
    std::vector<ValueId> operands;
    for (const Sample::Operand& o : sample.in)
      operands.push_back(g.input(fmt::format("x{}", operands.size()), o.type).id);
    const NodeId id = g.add(op, operands, sample.attrs);
    for (uint32_t i = 0; i < g.node(id).results.size(); ++i)
      g.output(fmt::format("y{}", i), g.value(id, i));
    std::vector<RefTensor> in = test::operands_of(sample, 11);
    reference::Tensors named;
    int64_t terms = 1;
    for (size_t i = 0; i < in.size(); ++i) {
      for (double& x : in[i].data) x = rounded_to(in[i].type.dtype, x);
      named[fmt::format("x{}", i)] = in[i];
      terms = std::max(terms, in[i].type.shape.elements());
    }
    const Backend backend = backend_named("cuda");
    Engine engine(backend);
    const size_t p = engine.add(decompose(g, backend.target()));
    engine.allocate();
    for (size_t i = 0; i < in.size(); ++i) {
      std::vector<std::byte> bytes(static_cast<size_t>(in[i].type.bytes()));
      write_tensor(in[i], bytes.data());
      engine.set_input<std::byte>(p, fmt::format("x{}", i), bytes);
    }
    engine.run(p);
    const auto wanted = reference::evaluate(g, named);
    std::vector<std::byte> room;
    for (const Output& o : g.outputs()) {
      const auto bytes = engine.read_output(p, o.name, room);
      const RefTensor& w = wanted.at(o.name);
      double top = 1e-30;
      for (double x : w.data)
        if (std::isfinite(x)) top = std::max(top, std::fabs(x));
      // The unit of 8 bits keeps about 14 bits of its sums.
      const double unit = op.name == "scaled_matmul" ? std::ldexp(1.0, -11) : 0;
      const double bound = 2 * top * (test::tolerance(w.type.dtype, terms) + unit);
      const RefTensor seen = read_tensor(w.type, bytes.data());
      if (is_integer(w.type.dtype)) {
        for (size_t i = 0; i < w.size(); ++i)
          ASSERT_EQ(seen.bits(i), w.bits(i)) << what << ": " << o.name << '[' << i << ']';
      }
      for (size_t i = 0; i < w.data.size(); ++i) {
        const double got = seen.data[i];
        if (got == w.data[i] || (std::isnan(got) && std::isnan(w.data[i]))) continue;
        ASSERT_NEAR(got, w.data[i], bound) << what << ": " << o.name << '[' << i << ']';
      }
    }
  }
};

// One test for each sample of each op, "OnGpuOp.AsTheReference/matmul_3": an op may be run in a
// process of its own, and one that crashes is left out of the next. Where there is no GPU there is
// one test, which says so.
struct OpSample {
  const OpDef* op = nullptr;
  Sample sample;
  std::string name;
};
std::vector<OpSample> samples_here() {
  std::vector<OpSample> all;
  if (!live_gpus().gpus.empty())
    for (const OpDef* op : all_ops()) {
      if (op->name == "input" || op->runs_regions || !op->samples) continue;
      const std::vector<Sample> samples = op->samples();
      for (size_t i = 0; i < samples.size(); ++i)
        if (!test::concerns_panels(*op, samples[i]))
          all.push_back({op, samples[i], fmt::format("{}_{}", op->name, i)});
    }
  if (all.empty()) all.push_back({nullptr, {}, "none"});
  return all;
}

class OnGpuOp : public OnGpu, public testing::WithParamInterface<OpSample> {};

TEST_P(OnGpuOp, AsTheReference) { check(*GetParam().op, GetParam().sample, GetParam().name); }

INSTANTIATE_TEST_SUITE_P(Table, OnGpuOp, testing::ValuesIn(samples_here()),
                         [](const auto& sample) { return sample.param.name; });

models::Gpt2Config one_layer(int64_t head_width) {
  models::Gpt2Config config;
  config.n_layer = 1;
  config.n_head = 2;
  config.n_embd = 2 * head_width;
  config.n_positions = 192;
  config.vocab_size = 517;
  config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0;
  return config;
}

// Training steps as they are compiled: products with their epilogues, clusters, attention by every
// unit there is, with heads of 64 and 128.
TEST_F(OnGpu, EveryWayOfEveryNodeOfAStep) {
  const Backend backend = backend_named("cuda");
  struct Case {
    int64_t width;  // of a head; f32 computes attention in one way
    DType precision;
    bool fp8 = false;
  };
  for (const auto& [width, precision, fp8] : {Case{64, DType::bf16},
                                              {64, DType::bf16, true},
                                              {64, DType::f16},
                                              {64, DType::f32},
                                              {128, DType::bf16},
                                              {128, DType::f16}}) {
    const models::Gpt2Config config = one_layer(width);
    PipelineOptions options;
    options.precision = precision;
    options.fp8 = fp8;
    test::tell(test::WaysOfAStep(backend, config, 2, config.n_positions, options).check());
  }
}

TEST_F(OnGpu, SanitizedOps) {
  int checked = 0;
  for (const OpDef* op : all_ops()) {
    if (op->name == "input" || op->runs_regions || !op->samples) continue;
    const std::vector<Sample> samples = op->samples();
    if (samples.empty() || test::concerns_panels(*op, samples[0])) continue;
    try {
      check(*op, samples[0], std::string(op->name));
      ++checked;
    } catch (const std::exception& e) {
      ADD_FAILURE() << op->name << ": " << e.what();
    }
  }
  EXPECT_GT(checked, 40);
}

TEST_F(OnGpu, SanitizedStep) {
  PipelineOptions options;
  options.precision = DType::bf16;
  const models::Gpt2Config config = one_layer(64);
  test::tell(
      test::WaysOfAStep(backend_named("cuda"), config, 2, config.n_positions, options).check());
}

}  // namespace
}  // namespace brrr::cuda
