#include <algorithm>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

/// Pairs that a thread turns: as many as 16 bytes hold, and as sizes and addresses allow.
int64_t rotary_vector(const NodeView& node, int64_t half, int64_t width, bool interleaved) {
  const auto bytes = static_cast<int64_t>(bytes_of(node.in[0].dtype));
  const int64_t numbers = interleaved ? 2 : 1;  // side by side, of a pair
  const int64_t alignment = operand_alignment(node, 0);
  const int64_t of_tables = std::min(operand_alignment(node, 2), operand_alignment(node, 3));
  const auto fits = [&](int64_t v) {
    return half % v == 0 && width % (numbers * v) == 0 && alignment % (numbers * v * bytes) == 0 &&
           of_tables % (v * 4) == 0;
  };
  int64_t v = std::min<int64_t>(4, 16 / (numbers * bytes));
  while (v > 1 && !fits(v)) v /= 2;
  return v;
}

LaunchPlan rotary_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const Shape &x = node.in[0].shape, tokens = x.without_last(2);
  const int64_t all = x.size(-2), width = x.size(-1), rows = node.in[2].shape.size(0);
  const int64_t half = node.in[2].shape.size(1), count = tokens.elements();
  const int64_t heads = node.attrs().get_or<int64_t>("heads", all);
  const bool interleaved = node.attrs().get<bool>("interleaved");
  if (count == 0) return p;
  const int64_t v = rotary_vector(node, half, width, interleaved);
  const int64_t units = (heads * half + heads * (width - 2 * half) + (all - heads) * width) / v;
  Launch launch;
  launch.source = {
      "rotary",
      {"device.cuh", "rotary.cuh"},
      fmt::format("BRRR_KERNEL(256) rotary(const {0}* x, const int* positions, const float* cos, "
                  "const float* sin, {0}* y, u32* error) {{\n"
                  "  const auto position = [&](u64 token) {{ return positions[{1}]; }};\n"
                  "  rotary_rows<{0}, {2}, {3}>(x, cos, sin, y, error, position, {4}, {5}, {6}, "
                  "{7}, {8}, {9}, {10});\n"
                  "}}\n",
                  stored_type(node.in[0].dtype), Access(node.in[1].shape, tokens).text("token"), v,
                  interleaved, count, heads, all, width, half, rows,
                  node.attrs().get<bool>("inverse") ? "-1.0f" : "1.0f")};
  launch.args = {
      LaunchArg::in(0),
      LaunchArg::in(1),
      LaunchArg::in(2),
      LaunchArg::in(3),
      LaunchArg::out(0),
      LaunchArg::error(fmt::format("[rotary] a position lies outside the table of {} rows", rows))};
  launch.grid = {static_cast<uint32_t>((count * units + 255) / 256), 1, 1};
  launch.block = {256, 1, 1};
  p.launches.push_back(std::move(launch));
  return p;
}

}  // namespace

std::vector<PlanEntry> rotary_entries() {
  return {{Op::rotary, "rows",
           [](const NodeView& node, const GpuDescription&) -> std::string {
             const DType t = node.in[0].dtype;
             if (is_compute_float(t)) return "";
             return fmt::format("dtype {}", name_of(t));
           },
           rotary_plan}};
}

}  // namespace brrr::cuda
