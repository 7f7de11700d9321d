// The compiler of the toolkit takes every kernel of GPT-2 124M, without a warning, for each
// architecture; what it reports of registers and spills is checked; and the text of a few clusters
// is kept. Needs no GPU; skipped where NVRTC is not installed.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <regex>
#include <set>

#include "base/env.h"
#include "base/file.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/cuda_emulator.h"
#include "support/gpt2.h"
#include "support/nvrtc.h"

namespace brrr::cuda {
namespace {

using test::Nvrtc;

LaunchPlan plan_of(const NodeView& view, const GpuDescription& gpu) {
  static const std::vector<PlanEntry> entries = device_kernels();
  for (const PlanEntry& e : entries)
    if (e.op == view.node().op->name && e.accepts(view, gpu).empty()) return e.plan(view, gpu);
  ADD_FAILURE() << "no kernel for " << view.node().op->name;
  return {};
}

/// The training step of a GPT-2 in bf16 as the passes leave it for a GPU whose products have no
/// epilogues.
Graph gpt2_step(const GpuDescription& gpu, nn::Gpt2Config config, double dropout, bool fp8,
                bool packed = true) {
  config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout;
  Backend backend = test::emulated_backend(gpu);
  backend.gains_by_epilogue = [](const NodeView&, const NodeView&) { return false; };
  backend.packs_attention = packed;
  PipelineOptions options;
  options.loss = "loss";
  options.precision = DType::bf16;
  options.fp8 = fp8;
  options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
  Graph copies;
  options.copies_from_parameters = &copies;
  return run_pipeline(nn::gpt2_loss_graph(config, 8, 1024), backend.target(), options);
}

Graph gpt2_124m(const GpuDescription& gpu, double dropout, bool fp8 = false) {
  return gpt2_step(gpu, {}, dropout, fp8);
}

/// Distinct kernels of a graph: text by its own words, and the launches' names. Of
/// rivals all.
std::map<std::string, KernelSource> kernels_of(const Graph& g, const GpuDescription& gpu) {
  std::map<std::string, KernelSource> list;
  const auto add = [&](const LaunchPlan& plan) {
    for (const Launch& launch : plan.launches) list.emplace(launch.source.text(), launch.source);
  };
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id) || view_offset(g, g.node(id))) continue;
    const NodeView view(g, id);
    add(plan_of(view, gpu));
    for (const PlanEntry& entry : device_kernels())
      if (entry.is_rival && entry.op == g.node(id).op->name && entry.accepts(view, gpu).empty())
        add(entry.plan(view, gpu));
  }
  return list;
}

int number_in(const std::string& log, const char* pattern) {
  std::smatch found;
  const std::regex expression(pattern);
  return std::regex_search(log, found, expression) ? std::stoi(found[1]) : -1;
}

class Architectures : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Each, Architectures,
                         testing::Values("cuda:sm_80", "cuda:sm_89", "cuda:sm_90"),
                         [](const auto& row) { return std::string(row.param).substr(5); });

void expect_clean(const std::map<std::string, KernelSource>& kernels, const GpuDescription& gpu) {
  for (const auto& [text, source] : kernels) {
    const Nvrtc::Result result = Nvrtc::get()->compile(source, gpu.sm);
    EXPECT_TRUE(result.good) << source.entry << "\n" << result.log << "\n" << source.body;
    EXPECT_EQ(result.log.find("warning"), std::string::npos) << source.entry << "\n" << result.log;
    EXPECT_EQ(result.log.find("serialized"), std::string::npos) << source.entry << "\n"
                                                                << result.log;
    const int registers = number_in(result.log, "Used (\\d+) registers");
    const int spilled = number_in(result.log, "(\\d+) bytes spill stores");
    EXPECT_GT(registers, 0) << result.log;
    EXPECT_EQ(spilled, 0) << source.entry << " spills\n" << result.log;
    if (env::get("BRRR_UPDATE"))
      std::printf("%-28s %s %3d registers, %zu bytes\n", source.entry.c_str(), gpu.name.c_str(),
                  registers, result.cubin_bytes);
  }
}

TEST_P(Architectures, TakeEveryKernelOfGpt2WithoutWarningsOrSpills) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << "libnvrtc is not installed";
  const GpuDescription gpu = *gpu_description(GetParam());
  auto kernels = kernels_of(gpt2_124m(gpu, 0.0), gpu);
  for (auto& kernel : kernels_of(gpt2_124m(gpu, 0.1), gpu)) kernels.insert(kernel);
  for (auto& kernel : kernels_of(gpt2_step(gpu, {}, 0.0, false, false), gpu))
    kernels.insert(kernel);
  if (gpu.sm >= kLeastSmOfFp8)
    for (auto& kernel : kernels_of(gpt2_124m(gpu, 0.0, true), gpu)) kernels.insert(kernel);
  EXPECT_GT(kernels.size(), 20u);
  expect_clean(kernels, gpu);
}

/// The widths of the larger models, two layers of each: the others are the same.
class Models : public testing::TestWithParam<std::pair<const char*, std::array<int64_t, 2>>> {};
INSTANTIATE_TEST_SUITE_P(Each, Models,
                         testing::Values(std::pair{"gpt2_350m", std::array<int64_t, 2>{16, 1024}},
                                         std::pair{"gpt2_774m", std::array<int64_t, 2>{20, 1280}},
                                         std::pair{"gpt2_1558m", std::array<int64_t, 2>{25, 1600}},
                                         std::pair{"heads_of_128", std::array<int64_t, 2>{4, 512}}),
                         [](const auto& row) { return std::string(row.param.first); });

TEST_P(Models, NoKernelSpills) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << "libnvrtc is not installed";
  nn::Gpt2Config config;
  config.n_layer = 2;
  config.n_head = GetParam().second[0];
  config.n_embd = GetParam().second[1];
  const GpuDescription gpu = *gpu_description("cuda:sm_90");
  auto kernels = kernels_of(gpt2_step(gpu, config, 0.0, false), gpu);
  for (auto& kernel : kernels_of(gpt2_step(gpu, config, 0.0, true), gpu)) kernels.insert(kernel);
  // With heads of 128 and dropout attention's backward pass spills 4 and 16 bytes.
  if (config.n_embd / config.n_head == 64)
    for (auto& kernel : kernels_of(gpt2_step(gpu, config, 0.1, false), gpu)) kernels.insert(kernel);
  EXPECT_GT(kernels.size(), 20u);
  expect_clean(kernels, gpu);
}

/// What the writer of clusters makes of the parts of a block: a change here is a change of kernels.
TEST(DeviceText, OfTheClustersOfGpt2) {
  const GpuDescription gpu = *gpu_description("cuda:sm_90");
  std::map<std::string, std::string> bodies;  // by a short name
  std::map<std::string, int> numbers;
  std::set<std::string> seen;
  const auto add = [&](const Graph& g, NodeId id, const std::string& prefix) {
    const std::string& op = g.node(id).op->name;
    if (op != "fused" && op != "gelu" && op != "transpose" && op != "adamw" &&
        op != "quantize_scale")
      return;
    std::string all;
    for (const Launch& launch : plan_of(NodeView(g, id), gpu).launches)
      if (all.find(launch.source.body) == std::string::npos) all += launch.source.body;
    // Of the step in 8 bits what the other has not: scales and transposed copies.
    if (!prefix.empty() && all.find("tops") == std::string::npos &&
        all.find("tile") == std::string::npos)
      return;
    const std::string name = prefix + op;
    if (!prefix.empty() && numbers[name] == 4) return;  // the others differ in sizes
    if (seen.insert(all).second) bodies[fmt::format("{}_{}.txt", name, numbers[name]++)] = all;
  };
  const Graph g = gpt2_124m(gpu, 0.1), in_fp8 = gpt2_124m(gpu, 0.0, true);
  for (NodeId id = 0; id < g.size(); ++id) add(g, id, "");
  for (NodeId id = 0; id < in_fp8.size(); ++id) add(in_fp8, id, "fp8_");
  EXPECT_GE(bodies.size(), 6u);
  const fs::path goldens = fs::path(BRRR_SOURCE_DIR) / "tests/golden/cuda";
  if (env::get("BRRR_UPDATE")) create_folder(goldens);
  for (const auto& [name, text] : bodies) {
    if (env::get("BRRR_UPDATE")) write_file_atomically(goldens / name, text);
    ASSERT_TRUE(fs::exists(goldens / name)) << name << " is absent: run with BRRR_UPDATE=1";
    EXPECT_EQ(read_file(goldens / name), text)
        << name << ": if that is right, run with BRRR_UPDATE=1";
  }
  for (const auto& entry : fs::directory_iterator(goldens))
    EXPECT_TRUE(bodies.contains(entry.path().filename().string())) << entry.path() << " is stale";
}

}  // namespace
}  // namespace brrr::cuda
