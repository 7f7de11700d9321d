#include <algorithm>

#include "backend/cuda/attention_node.h"
#include "backend/cuda/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kTile = 32;  // as in attention.cuh
constexpr int64_t kMostWidth = 128;

std::string attention_refusal(const NodeView& node, const GpuDescription&) {
  const AttentionNode n(node);
  if (n.dtype == DType::f64) return "f64";
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
  if (n.width != n.values || (n.width != 64 && n.width != 128))
    return "heads of neither 64 nor 128";
  for (size_t k = 0; k < (n.backward ? 6u : 3u); ++k)
    if (operand_alignment(node, k) % 16 != 0) return "an operand that is not aligned";
  return "";
}

/// Shared memory of `tiles` of q's width, `value_tiles` of v's and `square` of 32 x 32.
int shared(const AttentionNode& n, int64_t tiles, int64_t value_tiles, int64_t square) {
  return static_cast<int>(
      4 * kTile * (tiles * (n.width + 1) + value_tiles * (n.values + 1) + square * (kTile + 1)));
}

Launch attention_launch(const AttentionNode& n, const std::string& name,
                        const std::string& parameters, const std::string& call,
                        std::vector<LaunchArg> args, int64_t length, int shared_bytes) {
  Launch l;
  l.source = {name,
              {"device.cuh", "attention.cuh"},
              n.text + fmt::format("BRRR_KERNEL(128) {}({}{}) {{\n{}  {};\n}}\n", name, parameters,
                                   n.extra_parameter(),
                                   n.extras.empty() ? "  const Extra extra{};\n" : "", call)};
  l.args = std::move(args);
  if (!n.extras.empty()) l.args.push_back(n.extra());
  l.grid = {static_cast<uint32_t>((length + kTile - 1) / kTile), static_cast<uint32_t>(n.heads), 1};
  l.block = {128, 1, 1};
  l.shared_bytes = shared_bytes;
  return l;
}

LaunchPlan attention_forward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  plan.launches.push_back(attention_launch(
      n, "attention", fmt::format("const {0}* q, const {0}* k, const {0}* v, {0}* y, f32* lse", t),
      "attention_forward<Options>(q, k, v, y, lse, extra)",
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::out(0), LaunchArg::out(1)},
      n.queries, shared(n, 2, 1, 1)));
  return plan;
}

LaunchPlan attention_backward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  const LaunchArg delta = LaunchArg::scratch(plan.take_scratch(n.heads * n.queries * 4));
  std::vector<LaunchArg> args;
  for (size_t k = 0; k < 6; ++k) args.push_back(LaunchArg::in(k));
  if (n.has_dlse) args.push_back(LaunchArg::in(n.dlse));
  args.push_back(LaunchArg::out(0));
  args.push_back(delta);
  plan.launches.push_back(attention_launch(
      n, "attention_grad_queries",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const {0}* y, const f32* lse, const "
                  "{0}* dy, {1}"
                  "{0}* dq, f32* delta",
                  t, n.has_dlse ? "const f32* dlse, " : ""),
      fmt::format("attention_backward_queries<Options>(q, k, v, y, lse, dy, {}, dq, delta, extra)",
                  n.has_dlse ? "dlse" : "static_cast<const f32*>(nullptr)"),
      args, n.queries, shared(n, 2, 2, 1)));
  plan.launches.push_back(attention_launch(
      n, "attention_grad_keys",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, "
                  "const f32* delta, "
                  "{0}* dk, {0}* dv",
                  t),
      "attention_backward_keys<Options>(q, k, v, lse, dy, delta, dk, dv, extra)",
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::in(4), LaunchArg::in(5),
       delta, LaunchArg::out(1), LaunchArg::out(2)},
      n.keys, shared(n, 2, 2, 2)));
  return plan;
}

// -- the matrix unit: 64 queries or keys to a block, the other side in tiles of `tile` rows

Launch mma_launch(const AttentionNode& n, const std::string& name, const std::string& parameters,
                  const std::string& call, std::vector<LaunchArg> args, int64_t length,
                  int64_t shared_rows) {
  Launch l = attention_launch(n, name, parameters, call, std::move(args), length, 0);
  l.source.headers = {"device.cuh", "mma.cuh", "attention_mma.cuh"};
  l.grid.x = static_cast<uint32_t>((length + 63) / 64);
  l.shared_bytes = static_cast<int>(shared_rows * n.width * 2 + 2 * 64 * 4);
  return l;
}

LaunchPlan mma_forward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  plan.launches.push_back(mma_launch(
      n, "attention", fmt::format("const {0}* q, const {0}* k, const {0}* v, {0}* y, f32* lse", t),
      fmt::format("attention_mma_forward<Options, {}, 64>(q, k, v, y, lse, extra)", t),
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::out(0), LaunchArg::out(1)},
      n.queries, 64 + 4 * 64));
  return plan;
}

LaunchPlan mma_backward(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const AttentionNode n(node);
  const std::string_view t = stored_type(n.dtype);
  const int64_t tile = n.width == 64 ? 64 : 32, rows = n.heads * n.queries;
  const LaunchArg delta = LaunchArg::scratch(plan.take_scratch(rows * 4));
  Launch sums;
  sums.source.entry = "attention_grad_delta";
  sums.source.headers = {"device.cuh", "mma.cuh", "attention_mma.cuh"};
  sums.source.body =
      n.text + fmt::format(
                   "BRRR_KERNEL(256) attention_grad_delta(const {0}* y, const {0}* dy, {1}f32* "
                   "delta) {{\n  attention_mma_delta<Options>(y, dy, {2}, delta, {3}ull);\n}}\n",
                   t, n.has_dlse ? "const f32* dlse, " : "",
                   n.has_dlse ? "dlse" : "static_cast<const f32*>(nullptr)", rows);
  sums.args = {LaunchArg::in(3), LaunchArg::in(5)};
  if (n.has_dlse) sums.args.push_back(LaunchArg::in(n.dlse));
  sums.args.push_back(delta);
  sums.grid = {static_cast<uint32_t>((rows + 7) / 8), 1, 1};
  sums.block = {256, 1, 1};
  plan.launches.push_back(std::move(sums));
  plan.launches.push_back(mma_launch(
      n, "attention_grad_queries",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, const "
                  "f32* delta, "
                  "{0}* dq",
                  t),
      fmt::format("attention_mma_queries<Options, {}, {}>(q, k, v, lse, dy, delta, dq, extra)", t,
                  tile),
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::in(4), LaunchArg::in(5),
       delta, LaunchArg::out(0)},
      n.queries, 128 + 4 * tile));
  plan.launches.push_back(mma_launch(
      n, "attention_grad_keys",
      fmt::format("const {0}* q, const {0}* k, const {0}* v, const f32* lse, const {0}* dy, const "
                  "f32* delta, "
                  "{0}* dk, {0}* dv",
                  t),
      fmt::format("attention_mma_keys<Options, {}, {}>(q, k, v, lse, dy, delta, dk, dv, extra)", t,
                  tile),
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::in(4), LaunchArg::in(5),
       delta, LaunchArg::out(1), LaunchArg::out(2)},
      n.keys, 128 + 4 * tile));
  return plan;
}

}  // namespace

std::vector<PlanEntry> attention_entries() {
  return {{"attention", "mma", mma_refusal, mma_forward},
          {"attention", "tiles", attention_refusal, attention_forward},
          {"attention_grad", "mma", mma_refusal, mma_backward},
          {"attention_grad", "tiles", attention_refusal, attention_backward}};
}

}  // namespace brrr::cuda
