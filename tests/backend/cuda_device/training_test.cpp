// Whole graphs on a driver that tests/support/fake_cuda plays and kernels that the emulation runs:
// training as on the CPU, and every way of every node.

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/cpu/target.h"
#include "backend/cuda_device/emulated_kernels.h"
#include "backend/cuda_device/on_fake_gpu.h"
#include "insight/profile/profile.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/parameters.h"
#include "support/cuda_ways.h"
#include "support/gpt2.h"
#include "support/long_proof.h"

namespace brrr::cuda {
namespace {

struct Trained {
  std::vector<float> figures;
  std::map<std::string, std::vector<float>> weights;
};

/// Steps of two micro-batches with dropout, clipping and AdamW.
Trained train(const Backend& backend, DType precision, int64_t accumulation, bool fp8 = false) {
  models::Gpt2Config config = test::tiny_gpt2(true, 0.1);
  if (fp8) {
    config.n_embd = 16;
    config.n_head = 2;
  }
  Engine engine(backend);
  const auto build = [&](optim::Accumulation a) {
    PipelineOptions p;
    p.precision = precision;
    p.fp8 = fp8;
    p.loss = "loss";
    p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, {}, a); };
    return engine.add(run_pipeline(config.model()->loss(2, 8), backend.target(), p));
  };
  std::vector<size_t> programs;
  if (accumulation == 1) programs = {build(optim::Accumulation::none)};
  if (accumulation == 2)
    programs = {build(optim::Accumulation::first), build(optim::Accumulation::last)};
  engine.expect_calls(accumulation);
  engine.allocate();
  load_parameters(engine, [&](std::string_view name, std::span<float> out) {
    models::initial_weights(*config.model(), 1)(name, out);
  });
  Trained t;
  for (int32_t step = 0; step < 3; ++step) {
    const float rate = 1e-2f, scale = 1.0f / static_cast<float>(16 * accumulation);
    const int32_t number = step + 1;
    std::vector<std::vector<int32_t>> ids(programs.size());
    std::vector<std::array<int32_t, 2>> keys(programs.size());
    std::vector<Call> calls;
    for (size_t i = 0; i < programs.size(); ++i) {
      for (int32_t j = 0; j < 16; ++j)
        ids[i].push_back((7 * step + 3 * j + static_cast<int32_t>(i)) % 13);
      keys[i] = {1, 2 * step + static_cast<int32_t>(i)};
      calls.push_back({programs[i], {}, {"loss"}});
      calls[i].set("tokens", std::span<const int32_t>(ids[i]));
      calls[i].set("targets", std::span<const int32_t>(ids[i]));
      calls[i].set("loss_scale", std::span(&scale, 1));
      calls[i].set("rng_key", std::span<const int32_t>(keys[i]));
    }
    calls.back().scalars.push_back("grad_norm");
    calls.back().set("learning_rate", std::span(&rate, 1));
    calls.back().set("optimizer_step", std::span(&number, 1));
    for (const auto& scalars : engine.run(calls))
      t.figures.insert(t.figures.end(), scalars.begin(), scalars.end());
  }
  std::vector<std::byte> room;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() != InputKind::parameter) continue;
    const auto bytes = engine.read_state(s.name, room);
    auto& values = t.weights[s.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return t;
}

/// The CPU, asked for the roundings of the GPU.
Backend on_the_host() {
  Backend backend = cpu::cpu_backend();
  backend.rounds_activations = true;
  return backend;
}

// By the library's epilogue, and by a kernel behind the product.
TEST_F(OnFakeGpu, BiasGradientsAreThoseOfTheReference) {
  for (const DType t : {DType::bf16, DType::f16})
    for (const bool left : {false, true})
      for (const bool accumulates : {false, true})
        for (const size_t way : {size_t{0}, size_t{1}}) {
          Graph g;
          const Value x = g.input("x", {37, 16}, t), dy = g.input("dy", {37, 24}, t);
          Value dw = left ? matmul(dy, x, true, false, f32) : matmul(x, dy, true, false, f32);
          if (accumulates) dw = g.input("sum", dw.shape(), f32) + dw;
          g.output("dw", dw);
          g.output("db", sum(cast(dy, f32), {0}));
          Backend backend = all_kernels();
          for (KernelEntry& e : backend.kernels)
            e.prepare = [prepare = e.prepare, way](const NodeView& view) {
              const auto kernel = prepare(view);
              const auto& ways = dynamic_cast<CudaKernel&>(*kernel).ways();
              return std::make_unique<CudaKernel>(view, std::vector{ways.at(way)});
            };
          const Target target = backend.target();
          const Graph fused = fuse_epilogues(fuse_bias_gradients(g, target), target);
          size_t nodes = 0;
          for (NodeId id = 0; id < fused.size(); ++id) nodes += !fused.is_input(id);
          ASSERT_EQ(nodes, 1u) << print(fused);
          const int64_t launches = fake_counts().launches;
          expect_as_reference(fused, backend, 37);
          EXPECT_EQ(fake_counts().launches, launches + (way == 1 ? 2 : 0));
        }
}

TEST_F(OnFakeGpu, TrainsAsTheCpuDoes) {
  const Backend gpu = all_kernels();
  for (const int64_t accumulation : {1, 2}) {
    const auto before = fake_counts();
    const Trained there = train(gpu, DType::f32, accumulation);
    const Trained here = train(on_the_host(), DType::f32, accumulation);
    ASSERT_EQ(there.figures.size(), here.figures.size());
    for (size_t i = 0; i < here.figures.size(); ++i)
      EXPECT_NEAR(there.figures[i], here.figures[i], 2e-4 * std::fabs(here.figures[i])) << i;
    for (const auto& [name, w] : here.weights)
      for (size_t i = 0; i < w.size(); ++i)
        ASSERT_NEAR(there.weights.at(name)[i], w[i], 2e-3) << name << '[' << i << ']';
    EXPECT_EQ(fake_counts().graphs - before.graphs, 1) << "a step is one recording";
    EXPECT_EQ(fake_counts().graph_launches - before.graph_launches, 2)
        << "after the first of three";
  }
}

TEST_F(OnFakeGpu, GraphsCanBeSwitchedOff) {
  const Trained with = train(all_kernels(), DType::f32, 1);
  for (const auto& [name, value] :
       {std::pair{"BRRR_CUDA_GRAPHS", "0"}, {"CUDA_LAUNCH_BLOCKING", "1"}}) {
    ::setenv(name, value, 1);
    const auto before = fake_counts();
    const Trained without = train(all_kernels(), DType::f32, 1);
    ::unsetenv(name);
    EXPECT_EQ(without.figures, with.figures) << name;
    EXPECT_EQ(fake_counts().graphs, before.graphs) << name;
  }
}

TEST_F(OnFakeGpu, TheSameBitsEveryTime) {
  const Backend gpu = all_kernels();
  for (const int64_t accumulation : {1, 2}) {
    const Trained a = train(gpu, DType::bf16, accumulation),
                  b = train(gpu, DType::bf16, accumulation);
    EXPECT_EQ(a.figures, b.figures);
    EXPECT_TRUE(a.weights == b.weights);
    const Trained here = train(on_the_host(), DType::bf16, accumulation);
    for (size_t i = 0; i < here.figures.size(); ++i)
      EXPECT_NEAR(a.figures[i], here.figures[i], 0.02 * std::fabs(here.figures[i])) << i;
  }
}

/// On the device 8 bits are multiplied, on the CPU the same numbers in bf16.
TEST_F(OnFakeGpu, TrainsIn8BitsAsTheEmulationDoes) {
  const Backend gpu = all_kernels();
  for (const int64_t accumulation : {1, 2}) {
    const Trained there = train(gpu, DType::bf16, accumulation, true);
    const Trained again = train(gpu, DType::bf16, accumulation, true);
    const Trained here = train(on_the_host(), DType::bf16, accumulation, true);
    EXPECT_EQ(there.figures, again.figures);
    EXPECT_TRUE(there.weights == again.weights);
    for (size_t i = 0; i < here.figures.size(); ++i)
      EXPECT_NEAR(there.figures[i], here.figures[i], 0.02 * std::fabs(here.figures[i])) << i;
  }
}

test::WaysChecked check_ways(models::Gpt2Config config, int64_t length, DType precision, bool fp8) {
  config.n_positions = length;
  PipelineOptions options;
  options.precision = precision;
  options.fp8 = fp8;
  const auto done = test::WaysOfAStep(all_kernels(), config, 2, length, options).check();
  EXPECT_GT(done.ways, done.nodes);
  EXPECT_TRUE(done.names.contains("attention: cudnn"));
  EXPECT_TRUE(done.refused.empty()) << *done.refused.begin();
  return done;
}

TEST_F(OnFakeGpu, EveryWayOfEveryNodeIsRight) {
  models::Gpt2Config config = test::tiny_gpt2(true, 0);
  config.n_embd = 32;
  config.n_head = 2;
  config.vocab_size = 40;
  for (const bool fp8 : {false, true}) check_ways(config, 8, DType::bf16, fp8);
}

/// With heads that the matrix unit takes.
TEST_F(OnFakeGpu, SlowEveryWayWithHeadsOf64) {
  models::Gpt2Config config = test::tiny_gpt2(true, 0);
  config.n_layer = 1;
  config.n_embd = 128;
  config.n_head = 2;
  config.vocab_size = 517;
  std::vector<DType> precisions{DType::bf16};
  if (test::is_long()) precisions.push_back(DType::f16);
  for (const DType precision : precisions) {
    const auto done = check_ways(config, 70, precision, false);
    for (const char* op : {"attention", "attention_grad"})
      for (const char* way : {"cudnn", "wgmma", "mma"})
        EXPECT_TRUE(done.names.contains(fmt::format("{}: {}", op, way))) << op << ' ' << way;
  }
}

TEST_F(OnFakeGpu, AnIdOutsideTheTableIsTheUsersError) {
  Graph g;
  {
    const Scope scope(g, "embed");
    const Value table = g.input("table", {5, 8}, DType::f32);
    g.output("y", embedding(table, g.input("ids", {3}, DType::i32)));
  }
  const Backend backend = all_kernels();
  Engine engine(backend);
  const size_t p = engine.add(decompose(g, backend.target()));
  engine.allocate();
  const std::vector<float> table(40, 1.0f);
  engine.set_input<float>(p, "table", table);
  std::vector<std::byte> room;
  for (int round = 0; round < 2; ++round) {
    engine.set_input<int32_t>(p, "ids", std::vector<int32_t>{1, 7, 2});
    engine.run(p);
    try {
      engine.read_output(p, "y", room);
      ADD_FAILURE() << "no error";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("(at embed)"), std::string::npos) << e.what();
    }
    engine.set_input<int32_t>(p, "ids", std::vector<int32_t>{1, 4, 2});
    engine.run(p);
    EXPECT_NO_THROW(engine.read_output(p, "y", room)) << "the flag is not taken back";
  }
}

/// Whatever this GPU runs takes a millisecond of its clock.
TEST_F(OnFakeGpu, ProfilesHoldKernelsAgainstTheDevicesCeilings) {
  const Backend backend = all_kernels();
  const int64_t memory = (int64_t{1} << 20) - 4096;  // for products of 256 x 256 alone
  const insight::Ceilings c = insight::measure_device(backend, memory, 0);
  EXPECT_EQ(c.device, "cuda:0 (Fake H200)");
  EXPECT_NEAR(c.launch_seconds, 1e-3, 1e-6);
  EXPECT_EQ(c.team_seconds, 0);
  const double product = 2 * std::pow(256.0, 3) / 1e-3;
  for (const double rate : {c.f32, c.tf32, c.bf16, c.f16, c.f8})
    EXPECT_NEAR(rate, product, 1e-3 * product);
  // The cache is no faster than starting a kernel here, so it is no level.
  ASSERT_EQ(c.levels.size(), 1u);
  EXPECT_EQ(c.levels[0].name, "memory");
  EXPECT_NEAR(c.levels[0].read, static_cast<double>(memory) / 1e-3, 1e-3 * c.levels[0].read);

  Graph g;
  const Value x = g.input("x", {32, 64}, bf16);
  g.output("y", exp(matmul(x, g.input("w", {64, 48}, bf16, InputKind::parameter))));
  const auto workload = insight::graph_workload(g, {}, backend);
  workload->allocate();
  const insight::Profile p = insight::profile(*workload, c, 0);
  EXPECT_TRUE(p.place().ends_with(" on cuda:0 (Fake H200)")) << p.place();
  EXPECT_EQ(p.other_processors, 0);
  ASSERT_EQ(p.kernels.size(), 2u);
  for (const insight::KernelProfile& k : p.kernels) {
    EXPECT_NEAR(k.ms, 1, 1e-3);
    EXPECT_EQ(k.verdict.bound, insight::Bound::overhead);
    EXPECT_NEAR(k.verdict.fraction(1e-3), 1, 1e-3);
  }
}

}  // namespace
}  // namespace brrr::cuda
