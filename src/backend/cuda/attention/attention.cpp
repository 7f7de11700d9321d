#include <algorithm>

#include "backend/cuda/attention/attention_node.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kTile = 32;  // as in attention.cuh
constexpr uint32_t kTileThreads = 128;
constexpr int64_t kMostWidth = 128;

std::string attention_refusal(const NodeView& node, const GpuDescription&) {
  const AttentionNode n(node);
  if (n.dtype == DType::f64) return "f64";
  if (n.has_distances) return "a mask by distance";
  if (n.is_ragged) return "sequences of different lengths in one batch";
  if (n.sees_some_after) return "a window after the query";
  if (n.width > kMostWidth || n.values > kMostWidth)
    return fmt::format("heads of {} and {}: at most {}", n.width, n.values, kMostWidth);
  if (n.heads * n.queries * n.keys * n.width * n.values == 0) return "an empty tensor";
  if (n.heads > 65535) return "too many heads";
  return "";
}

std::string mma_refusal(const NodeView& node, const GpuDescription& gpu) {
  if (std::string why = attention_refusal(node, gpu); !why.empty()) return why;
  const AttentionNode n(node);
  if (n.dtype != DType::bf16 && n.dtype != DType::f16) return "no 16-bit floats";
  if (std::string why = n.beyond_the_matrix_unit(); !why.empty()) return why;
  if (n.width != n.values || (n.width != 64 && n.width != 128))
    return "heads of neither 64 nor 128";
  if (n.alignment % 16 != 0) return "rows that do not begin at multiples of 16 bytes";
  return "";
}

/// Shared memory of `tiles` of q's width, `value_tiles` of v's and `square` of 32 x 32.
int shared(const AttentionNode& n, int64_t tiles, int64_t value_tiles, int64_t square) {
  return static_cast<int>(
      4 * kTile * (tiles * (n.width + 1) + value_tiles * (n.values + 1) + square * (kTile + 1)));
}

Launch attention_launch(const AttentionNode& n, const std::string& name,
                        const std::string& parameters, const std::string& call,
                        std::vector<LaunchArg> args, int64_t length, int64_t heads,
                        int shared_bytes) {
  Launch l;
  l.source = n.source(name, {"device.cuh", "attention.cuh"}, kTileThreads, parameters, call);
  l.args = std::move(args);
  if (!n.extras.empty()) l.args.push_back(n.extra());
  l.grid = {static_cast<uint32_t>((length + kTile - 1) / kTile), static_cast<uint32_t>(heads), 1};
  l.block.x = kTileThreads;
  l.shared_bytes = shared_bytes;
  return l;
}

LaunchPlan attention_forward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  plan.launches.push_back(attention_launch(
      n, "attention", fmt::format("const {0}* q, const {0}* k, const {0}* v, {0}* y, f32* lse", t),
      "attention_forward<Options>(q, k, v, y, lse, extra)", {n.q.at, n.k.at, n.v.at, n.y.at, n.lse},
      n.queries, n.heads, shared(n, 2, 1, 1)));
  return plan;
}

LaunchPlan attention_backward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  const LaunchArg delta = LaunchArg::scratch(plan.take_scratch(n.heads * n.queries * 4));
  std::vector<LaunchArg> args{n.q.at, n.k.at, n.v.at, n.y.at, n.lse, n.dy.at};
  if (n.has_dlse) args.push_back(LaunchArg::in(n.dlse));
  args.push_back(n.dq.at);
  args.push_back(delta);
  plan.launches.push_back(attention_launch(
      n, "attention_grad_queries",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const {0}* y, const f32* lse, const "
                  "{0}* dy, {1}"
                  "{0}* dq, f32* delta",
                  t, n.has_dlse ? "const f32* dlse, " : ""),
      fmt::format("attention_backward_queries<Options>(q, k, v, y, lse, dy, {}, dq, delta, extra)",
                  n.has_dlse ? "dlse" : "static_cast<const f32*>(nullptr)"),
      args, n.queries, n.heads, shared(n, 2, 2, 1)));
  plan.launches.push_back(attention_launch(
      n, "attention_grad_keys",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, "
                  "const f32* delta, "
                  "{0}* dk, {0}* dv",
                  t),
      "attention_backward_keys<Options>(q, k, v, lse, dy, delta, dk, dv, extra)",
      {n.q.at, n.k.at, n.v.at, n.lse, n.dy.at, delta, n.dk.at, n.dv.at}, n.keys, n.heads / n.group,
      shared(n, 2, 2, 2)));
  return plan;
}

// -- the matrix unit

/// Who multiplies, as the kernels name it, and what a block of them has.
struct Unit {
  std::string_view name;
  int64_t rows;  // queries or keys
  uint32_t threads;
  std::vector<std::string> headers;
};
const Unit kByWarps{
    "ByWarps", 64, 128, {"device.cuh", "mma.cuh", "attention_scores.cuh", "attention_mma.cuh"}};
const Unit kByGroups{
    "ByGroups",
    128,
    256,
    {"device.cuh", "mma.cuh", "wgmma.cuh", "attention_scores.cuh", "attention_mma.cuh"}};

/// The other side comes in tiles; `tile_rows` are all rows of tiles in shared memory.
Launch mma_launch(const AttentionNode& n, const Unit& unit, const std::string& name,
                  const std::string& parameters, const std::string& call,
                  std::vector<LaunchArg> args, int64_t length, int64_t tile_rows,
                  bool alone = false) {
  Launch l;
  l.source = n.source(name, unit.headers, unit.threads, parameters, call, alone);
  l.args = std::move(args);
  if (!n.extras.empty()) l.args.push_back(n.extra());
  l.grid = {static_cast<uint32_t>((length + unit.rows - 1) / unit.rows),
            static_cast<uint32_t>(n.heads), 1};
  l.block.x = unit.threads;
  l.shared_bytes = static_cast<int>(tile_rows * n.width * 2 + 2 * 64 * 4);
  return l;
}

LaunchPlan mma_forward(const NodeView& node, const Unit& unit) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  plan.launches.push_back(
      mma_launch(n, unit, "attention",
                 fmt::format("const {0}* q, const {0}* k, const {0}* v, {0}* y, f32* lse", t),
                 fmt::format("attention_mma_forward<Options, {}, {}, 64>(q, k, v, y, lse, extra)",
                             unit.name, t),
                 {n.q.at, n.k.at, n.v.at, n.y.at, n.lse}, n.queries, unit.rows + 4 * 64));
  return plan;
}

LaunchPlan mma_backward(const NodeView& node, const Unit& unit) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  const int64_t tile = n.width == 64 ? 64 : 32, rows = n.heads * n.queries;
  const LaunchArg delta = LaunchArg::scratch(plan.take_scratch(rows * 4));
  Launch sums;
  sums.source.entry = "attention_grad_delta";
  sums.source.headers = unit.headers;
  sums.source.body =
      n.text + fmt::format(
                   "BRRR_KERNEL(256) attention_grad_delta(const {0}* y, const {0}* dy, {1}f32* "
                   "delta) {{\n  attention_mma_delta<Options>(y, dy, {2}, delta, {3}ull);\n}}\n",
                   t, n.has_dlse ? "const f32* dlse, " : "",
                   n.has_dlse ? "dlse" : "static_cast<const f32*>(nullptr)", rows);
  sums.args = {n.y.at, n.dy.at};
  if (n.has_dlse) sums.args.push_back(LaunchArg::in(n.dlse));
  sums.args.push_back(delta);
  sums.grid = {static_cast<uint32_t>((rows + 7) / 8), 1, 1};
  sums.block = {256, 1, 1};
  plan.launches.push_back(std::move(sums));
  plan.launches.push_back(mma_launch(
      n, unit, "attention_grad_queries",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, const "
                  "f32* delta, "
                  "{0}* dq",
                  t),
      fmt::format("attention_mma_queries<Options, {}, {}, {}>(q, k, v, lse, dy, delta, dq, extra)",
                  unit.name, t, tile),
      {n.q.at, n.k.at, n.v.at, n.lse, n.dy.at, delta, n.dq.at}, n.queries,
      2 * unit.rows + 4 * tile));
  plan.launches.push_back(mma_launch(
      n, unit, "attention_grad_keys",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, const "
                  "f32* delta, "
                  "{0}* dk, {0}* dv",
                  t),
      fmt::format("attention_mma_keys<Options, {}, {}, {}>(q, k, v, lse, dy, delta, dk, dv, extra)",
                  unit.name, t, tile),
      {n.q.at, n.k.at, n.v.at, n.lse, n.dy.at, delta, n.dk.at, n.dv.at}, n.keys,
      2 * unit.rows + 4 * tile, true));
  return plan;
}

std::string wgmma_refusal(const NodeView& node, const GpuDescription& gpu) {
  if (gpu.sm != kSmOfWgmma) return "four warps multiply as one on sm_90 only";
  return mma_refusal(node, gpu);
}

auto planned(LaunchPlan (*plan)(const NodeView&, const Unit&), const Unit& unit) {
  return [plan, &unit](const NodeView& node, const GpuDescription&) { return plan(node, unit); };
}

}  // namespace

std::vector<PlanEntry> attention_entries() {
  std::vector<PlanEntry> list;
  list.push_back({Op::attention, "tma", wgmma_refusal, attention_tma_forward, true});
  list.push_back({Op::attention, "wgmma", wgmma_refusal, planned(mma_forward, kByGroups), true});
  list.push_back({Op::attention, "mma", mma_refusal, planned(mma_forward, kByWarps), true});
  list.push_back({Op::attention, "tiles", attention_refusal, attention_forward});
  list.push_back({Op::attention_grad, "tma", wgmma_refusal, attention_tma_backward, true});
  list.push_back(
      {Op::attention_grad, "wgmma", wgmma_refusal, planned(mma_backward, kByGroups), true});
  list.push_back({Op::attention_grad, "mma", mma_refusal, planned(mma_backward, kByWarps), true});
  list.push_back({Op::attention_grad, "tiles", attention_refusal, attention_backward});
  return list;
}

}  // namespace brrr::cuda
