// Plans for attention_tma.cuh: sm_90, the copy engine, blocks of threads that stay where they are.

#include <algorithm>

#include "backend/cuda/attention/attention_node.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kRows = 128;  // Role::kRows
constexpr uint32_t kTmaThreads = 384;
const std::vector<std::string> kHeaders{
    "device.cuh", "mma.cuh", "wgmma.cuh", "tma.cuh", "attention_scores.cuh", "attention_tma.cuh"};
constexpr std::string_view kMap = "BRRR_GRID_CONSTANT const TensorMap ";

/// Boxes of `rows` rows of a matrix, of which each head has `length`.
LaunchArg boxes_of(const AttentionNode& n, const AttentionNode::Matrix& m, int64_t length,
                   int64_t rows) {
  const auto bytes = static_cast<int64_t>(bytes_of(n.dtype));
  return LaunchArg::tensor(m.at, {n.dtype,
                                  {n.width, length, n.heads_per_batch, n.batches},
                                  {m.row * bytes, m.head * bytes, m.batch * bytes},
                                  rows});
}

/// A kernel of attention_tma.cuh: `function`, with the number of stages among its constants.
struct TmaKernel {
  std::string name, function, parameters, call;
  std::vector<LaunchArg> args;
  int64_t own = 1;     // matrices of the block's rows
  int64_t length = 0;  // rows of a head, of that side
  int64_t other = 0;   // of the other side, whose two matrices come in tiles
  int64_t tile = 64;   // of so many rows
  int64_t most_stages = 4;
  int64_t numbers = 0;      // floats of a stage
  std::string constants{};  // more of them
};

Launch launch_of(const AttentionNode& n, const GpuDescription& gpu, const TmaKernel& kernel) {
  const int64_t row = n.width * 2, own = kernel.own * kRows * row;
  const int64_t stage = 2 * kernel.tile * row + 4 * kernel.numbers;
  const int64_t barriers = 8 * (2 + 3 * kernel.most_stages);
  const int64_t stages = std::min(kernel.most_stages, (gpu.shared_bytes - own - barriers) / stage);
  BRRR_CHECK(stages >= 2, "{}: {} bytes of shared memory", gpu.name, gpu.shared_bytes);
  // As many heads as leave half of L2 to the tiles of the other side.
  const int64_t section =
      std::clamp<int64_t>(gpu.l2_bytes / 2 / (2 * kernel.other * row), 1, n.heads);
  Launch l;
  l.source =
      n.source(kernel.name, kHeaders, kTmaThreads, kernel.parameters + ", i32 heads, i32 section",
               fmt::format("{}<Options, {}, {}, {}, {}{}>({}, heads, section, extra)",
                           kernel.function, stored_type(n.dtype), n.heads_per_batch, kernel.tile,
                           stages, kernel.constants, kernel.call),
               true);
  l.args = kernel.args;
  l.args.push_back(LaunchArg::i32(n.heads));
  l.args.push_back(LaunchArg::i32(section));
  if (!n.extras.empty()) l.args.push_back(n.extra());
  const int64_t blocks = n.heads * ((kernel.length + kRows - 1) / kRows);
  l.grid.x = static_cast<uint32_t>(std::min<int64_t>(blocks, gpu.multiprocessors));
  l.block.x = kTmaThreads;
  l.shared_bytes = static_cast<int>(own + stages * stage + barriers);
  return l;
}

/// Pads each head to whole blocks, so that the kernel needs no bounds checks for rows.
Launch statistics_launch(const AttentionNode& n, int64_t rows, const LaunchArg& statistics) {
  Launch l;
  l.source = n.source(
      "attention_grad_statistics", kHeaders, 256,
      fmt::format("const {0}* y, const {0}* dy, const f32* lse, {1}f32* statistics, i32 heads",
                  stored_type(n.dtype), n.has_dlse ? "const f32* dlse, " : ""),
      fmt::format("attention_tma_statistics<Options, {}, {}>(y, dy, lse, {}, statistics, heads, "
                  "extra)",
                  stored_type(n.dtype), rows,
                  n.has_dlse ? "dlse" : "static_cast<const f32*>(nullptr)"));
  l.args = {n.y.at, n.dy.at, n.lse};
  if (n.has_dlse) l.args.push_back(LaunchArg::in(n.dlse));
  l.args.push_back(statistics);
  l.args.push_back(LaunchArg::i32(n.heads));
  if (!n.extras.empty()) l.args.push_back(n.extra());
  l.grid.x = static_cast<uint32_t>((n.heads * rows + 7) / 8);
  l.block.x = 256;
  return l;
}

}  // namespace

LaunchPlan attention_tma_forward(const NodeView& node, const GpuDescription& gpu) {
  LaunchPlan plan;
  const AttentionNode n(node);
  constexpr int64_t kKeys = 128;
  plan.launches.push_back(launch_of(
      n, gpu,
      {.name = "attention",
       .function = "attention_tma_forward",
       .parameters = fmt::format("{0}q, {0}k, {0}v, {1}* y, f32* lse", kMap, stored_type(n.dtype)),
       .call = "q, k, v, y, lse",
       .args = {boxes_of(n, n.q, n.queries, kRows), boxes_of(n, n.k, n.keys, kKeys),
                boxes_of(n, n.v, n.keys, kKeys), n.y.at, n.lse},
       .length = n.queries,
       .other = n.keys,
       .tile = kKeys}));
  return plan;
}

LaunchPlan attention_tma_backward(const NodeView& node, const GpuDescription& gpu) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  const int64_t rows = (n.queries + kRows - 1) / kRows * kRows;
  const LaunchArg statistics = LaunchArg::scratch(plan.take_scratch(n.heads * rows * 8));
  plan.launches.push_back(statistics_launch(n, rows, statistics));
  const auto args = [&](int64_t of_queries, int64_t of_keys,
                        const std::vector<const AttentionNode::Matrix*>& results) {
    std::vector<LaunchArg> all{boxes_of(n, n.q, n.queries, of_queries),
                               boxes_of(n, n.k, n.keys, of_keys), boxes_of(n, n.v, n.keys, of_keys),
                               boxes_of(n, n.dy, n.queries, of_queries), statistics};
    for (const AttentionNode::Matrix* m : results) all.push_back(m->at);
    return all;
  };
  const std::string parameters =
      fmt::format("{0}q, {0}k, {0}v, {0}dy, const f32* statistics, ", kMap);
  TmaKernel queries{.name = "attention_grad_queries",
                    .function = "attention_tma_queries",
                    .parameters = parameters + fmt::format("{}* dq", t),
                    .call = "q, k, v, dy, statistics, dq",
                    .args = {},
                    .own = 2,
                    .length = n.queries,
                    .other = n.keys,
                    .constants = fmt::format(", {}", rows)};
  queries.args = args(kRows, queries.tile, {&n.dq});
  TmaKernel keys{.name = "attention_grad_keys",
                 .function = "attention_tma_keys",
                 .parameters = parameters + fmt::format("{0}* dk, {0}* dv", t),
                 .call = "q, k, v, dy, statistics, dk, dv",
                 .args = {},
                 .own = 2,
                 .length = n.keys,
                 .other = n.queries,
                 .tile = n.width == 64 ? 64 : 32,  // what registers allow
                 .constants = queries.constants};
  keys.args = args(keys.tile, kRows, {&n.dk, &n.dv});
  keys.numbers = 2 * keys.tile;
  plan.launches.push_back(launch_of(n, gpu, queries));
  plan.launches.push_back(launch_of(n, gpu, keys));
  return plan;
}

}  // namespace brrr::cuda
