// What a GPU would run, decided without one: the kernels of whole training steps and their memory,
// for three architectures, as texts in tests/golden/dispatch. Look at a difference, then write the
// files again with BRRR_UPDATE=1.

#include <gtest/gtest.h>

#include "backend/cuda/device.h"
#include "backend/cuda/node_plan.h"
#include "backend/cuda/target.h"
#include "base/env.h"
#include "base/file.h"
#include "models/gpt2/gpt2_config.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/bert.h"
#include "support/tensors.h"

namespace brrr::cuda {
namespace {

const fs::path kGoldens = fs::path(BRRR_SOURCE_DIR) / "tests/golden/dispatch";

struct DispatchCase {
  const char* name;
  models::Gpt2Config config;
  int64_t batch = 8, length = 0;
  DType precision = DType::bf16;
  const char* gpu = "cuda:sm_90";
  bool trains = true;
  bool fp8 = false;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  std::optional<test::BertConfig> bert = std::nullopt;  // instead of GPT-2
};

models::Gpt2Config gpt2(int64_t layers, int64_t heads, int64_t width, int64_t vocab = 50257,
                        int64_t context = 1024) {
  models::Gpt2Config c;
  c.n_layer = layers;
  c.n_head = heads;
  c.n_embd = width;
  c.vocab_size = vocab;
  c.n_positions = context;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = 0;  // as it is measured
  return c;
}

std::vector<DispatchCase> cases() {
  DispatchCase odd{"odd_shapes", gpt2(2, 3, 111, 997, 37), 3};
  odd.config.resid_pdrop = odd.config.embd_pdrop = odd.config.attn_pdrop = 0.1;
  DispatchCase dropout{"gpt2_124m_bf16_dropout", gpt2(12, 12, 768), 32};
  dropout.config.resid_pdrop = dropout.config.embd_pdrop = dropout.config.attn_pdrop = 0.1;
  DispatchCase f32{"gpt2_124m_fp32", gpt2(12, 12, 768), 4};
  f32.precision = DType::f32;
  DispatchCase a100{"gpt2_124m_bf16_sm80", gpt2(12, 12, 768), 8};
  a100.gpu = "cuda:sm_80";
  DispatchCase l40{"gpt2_124m_bf16_sm89", gpt2(12, 12, 768), 8};
  l40.gpu = "cuda:sm_89";
  DispatchCase tf32{"gpt2_124m_tf32", gpt2(12, 12, 768), 4};
  tf32.precision = DType::f32;
  tf32.matmul_precision = MatmulPrecision::high;
  DispatchCase fp8{"gpt2_1558m_fp8", gpt2(48, 25, 1600), 4},
      fp8_l40{"gpt2_124m_fp8_sm89", gpt2(12, 12, 768), 8},
      no_fp8{"gpt2_124m_fp8_sm80", gpt2(12, 12, 768), 8};
  fp8.fp8 = fp8_l40.fp8 = no_fp8.fp8 = true;
  fp8_l40.gpu = "cuda:sm_89";
  no_fp8.gpu = "cuda:sm_80";
  DispatchCase bert{"bert_base_bf16", {}, 32, 512}, bert_l40{"bert_large_bf16_sm89", {}, 8, 512};
  bert.bert = test::BertConfig{};
  bert_l40.bert = test::BertConfig{24, 16, 1024};
  bert_l40.gpu = "cuda:sm_89";
  DispatchCase decode{"gpt2_124m_decode", gpt2(12, 12, 768), 1};
  decode.trains = false;
  return {{"gpt2_124m_bf16", gpt2(12, 12, 768), 32},
          {"gpt2_350m_bf16", gpt2(24, 16, 1024), 16},
          {"gpt2_774m_bf16", gpt2(36, 20, 1280), 8},
          {"gpt2_1558m_bf16", gpt2(48, 25, 1600), 4},
          dropout,
          f32,
          a100,
          l40,
          tf32,
          fp8,
          fp8_l40,
          no_fp8,
          bert,
          bert_l40,
          odd,
          decode};
}

/// The library's calls of the first way of each node, and how many there are of each.
std::string calls_of(const Graph& g, const Backend& backend) {
  std::vector<std::pair<std::string, int>> calls;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id) || view_offset(g, g.node(id))) continue;
    const NodeView view(g, id);
    const auto kernel = backend.choose(view).entry->prepare(view);
    for (const Command& command : dynamic_cast<CudaKernel&>(*kernel).ways().front().commands) {
      const auto* call = std::get_if<MatmulCall>(&command);
      if (call == nullptr) continue;
      const std::string text = describe(*call);
      const auto at = std::find_if(calls.begin(), calls.end(),
                                   [&](const auto& other) { return other.first == text; });
      if (at == calls.end())
        calls.emplace_back(text, 1);
      else
        ++at->second;
    }
  }
  std::string text = "calls of cublaslt:\n";
  for (const auto& [call, count] : calls) text += fmt::format("{:4} {}\n", count, call);
  return text;
}

std::string describe(const DispatchCase& c) {
  const Backend backend = described_backend(*gpu_description(c.gpu));
  PipelineOptions p;
  p.precision = c.precision;
  p.fp8 = c.fp8;
  p.matmul_precision = c.matmul_precision;
  Graph graph;
  if (c.trains) {
    p.loss = "loss";
    p.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
    p.refresher = Refresher::update;
    graph = c.bert
                ? test::bert_loss_graph(*c.bert, c.batch, c.length)
                : c.config.model()->loss(c.batch, c.length > 0 ? c.length : c.config.n_positions);
  } else {
    p.parameter_dtype = c.precision;
    graph = c.config.model()->decode({1, 1, c.config.n_positions, c.precision});
  }
  Engine engine(backend);
  ProgramOptions options;
  options.verify_memory = true;
  const size_t id = engine.add(run_pipeline(graph, backend.target(), p), options);
  const Program& program = engine.program(id);
  const MemoryForecast f = engine.forecast();
  std::string text = fmt::format(
      "{}, batch {}: {} bytes of weights, {} of optimizer and copies, {} of constants, {} of "
      "activations\n",
      backend.name, c.batch, f.parameter_bytes, f.state_bytes, f.constant_bytes, f.temporary_bytes);
  for (const std::string& line : summary(program.graph(), program.dispatch())) text += line + '\n';
  return text + calls_of(program.graph(), backend);
}

class Dispatch : public testing::TestWithParam<DispatchCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Dispatch, testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

TEST_P(Dispatch, IsAsWritten) {
  const std::string text = describe(GetParam());
  const fs::path file = kGoldens / fmt::format("{}.txt", GetParam().name);
  if (env::get("BRRR_UPDATE")) {
    create_folder(kGoldens);
    write_file_atomically(file, text);
  }
  ASSERT_TRUE(fs::exists(file)) << file << " is absent: BRRR_UPDATE=1 " << test::rerun();
  EXPECT_EQ(read_file(file), text) << "BRRR_UPDATE=1 " << test::rerun();
}

TEST(Targets, KnowTheirNames) {
  for (const char* name : {"cuda", "cuda:0", "cuda:12", "cuda:sm_80", "cuda:sm_89", "cuda:sm_90"})
    EXPECT_TRUE(is_name(name)) << name;
  for (const char* name : {"", "cud", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda: 1",
                           "cuda:sm_70", "cuda:sm_900", "cuda0", "CUDA"})
    EXPECT_FALSE(is_name(name)) << name;
}

TEST(Targets, ADescribedGpuPlansButDoesNotRun) {
  const Backend backend = described_backend(*gpu_description("cuda:sm_90"));
  EXPECT_EQ(backend.name, "cuda:sm_90");
  EXPECT_GT(backend.memory_bytes, int64_t{1} << 34);
  try {
    backend.open_device();
    ADD_FAILURE() << "opened";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("--device cuda"), std::string::npos) << e.what();
  }
}

// Without a GPU the answer is one line, with the reason and what does work.
TEST(Targets, SayWhatIsMissing) {
  const LiveGpus live = live_gpus();
  if (!live.gpus.empty()) GTEST_SKIP() << "this machine has a GPU";
  for (const char* name : {"cuda", "cuda:3"}) try {
      backend_named(name);
      ADD_FAILURE() << name << " was found";
    } catch (const UserError& e) {
      const std::string said = e.what();
      EXPECT_NE(said.find(live.reason), std::string::npos) << said;
      EXPECT_NE(said.find("cuda:sm_90"), std::string::npos) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    }
}

// An op without a kernel is refused when it is compiled, with its name and its place.
TEST(Targets, RefuseWhatTheyCannotRun) {
  Backend backend = described_backend(*gpu_description("cuda:sm_90"));
  std::erase_if(backend.kernels, [](const KernelEntry& e) { return e.op == Op::tanh; });
  std::erase_if(backend.kernels, [](const KernelEntry& e) { return e.op == Op::fused; });
  Graph g;
  {
    const Scope scope(g, "h.3.mlp");
    const Value x = g.input("x", {4}, DType::f32);
    g.output("y", tanh(tanh(x)) * 2.0);
  }
  try {
    Program program(decompose(g, backend.target()), backend);
    ADD_FAILURE() << "compiled";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()), "cuda:sm_90 has no kernel for tanh (2 times) (at h.3.mlp)");
  }
}

}  // namespace
}  // namespace brrr::cuda
