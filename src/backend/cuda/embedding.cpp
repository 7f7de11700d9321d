#include <algorithm>

#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kSortTokens = 2048;  // as in embedding.cuh

uint32_t blocks(int64_t n, int64_t each) { return static_cast<uint32_t>((n + each - 1) / each); }

/// The widest vector for rows of `width` elements.
int64_t vector_of(DType t, int64_t width, int64_t alignment) {
  const auto bytes = static_cast<int64_t>(bytes_of(t));
  int64_t v = std::max<int64_t>(1, 16 / bytes);
  while (v > 1 && (width % v != 0 || alignment % (v * bytes) != 0)) v /= 2;
  return v;
}

LaunchArg bad_id(const NodeView& node, int64_t rows) {
  return LaunchArg::error(
      fmt::format("[{}] an id lies outside the table of {} rows", node.node().op->name, rows));
}

/// Runs of x along an axis, one for each id.
LaunchPlan runs_plan(const NodeView& node, int axis, bool from_end, LaunchArg error) {
  LaunchPlan p;
  const Shape& x = node.in[0].shape;
  const int64_t count = x.size(axis), ids = node.in[1].shape.elements();
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < x.rank(); ++i) (i < axis ? outer : inner) *= i == axis ? 1 : x.size(i);
  if (outer * ids * inner == 0) return p;
  const DType t = node.in[0].dtype;
  const int64_t v = vector_of(t, inner, operand_alignment(node, 0));
  Launch launch;
  launch.source = {
      node.node().op->name,
      {"device.cuh", "embedding.cuh"},
      fmt::format("BRRR_KERNEL(256) {0}(const {1}* x, const {2}* ids, {1}* y, u32* error) {{\n"
                  "  gather_runs<{1}, {2}, {3}, {4}>(x, ids, y, error, {5}, {6}, {7}, {8});\n"
                  "}}\n",
                  node.node().op->name, stored_type(t), stored_type(node.in[1].dtype), v, from_end,
                  outer, ids, inner, count)};
  launch.args = {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::out(0), std::move(error)};
  launch.grid = {blocks(outer * ids * inner / v, 256), 1, 1};
  launch.block = {256, 1, 1};
  p.launches.push_back(std::move(launch));
  return p;
}

LaunchPlan rows_plan(const NodeView& node, const GpuDescription&) {
  return runs_plan(node, 0, false, bad_id(node, node.in[0].shape.size(0)));
}

LaunchPlan gather_plan(const NodeView& node, const GpuDescription&) {
  const auto axis = static_cast<int>(node.attrs().get<int64_t>("axis"));
  return runs_plan(node, axis, true,
                   LaunchArg::error(fmt::format("[gather] an index lies outside an axis of {}",
                                                node.in[0].shape.size(axis))));
}

LaunchPlan sums_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const int64_t rows = node.out()[0].shape.size(0), width = node.out()[0].shape.size(1);
  const int64_t tokens = node.in[1].shape.elements();
  if (rows * width == 0) return p;
  const uint32_t sort_blocks = std::max(1u, blocks(tokens, kSortTokens));
  auto buffer = [&](int64_t words) { return LaunchArg::scratch(p.take_scratch(words * 4)); };
  const LaunchArg counts = buffer(int64_t{256} * sort_blocks), starts = buffer(rows + 1);
  const LaunchArg keys[] = {buffer(tokens), buffer(tokens)};
  const LaunchArg indices[] = {buffer(tokens), buffer(tokens)};
  auto add = [&](const std::string& name, const std::string& parameters, const std::string& body,
                 std::vector<LaunchArg> args, Dim3 grid, uint32_t threads) {
    Launch launch;
    launch.source = {
        name,
        {"device.cuh", "embedding.cuh"},
        fmt::format("BRRR_KERNEL({}) {}({}) {{\n{}}}\n", threads, name, parameters, body)};
    launch.args = std::move(args);
    launch.grid = grid;
    launch.block = {threads, 1, 1};
    p.launches.push_back(std::move(launch));
  };
  const std::string_view id_type = stored_type(node.in[1].dtype);
  int pass = 0;
  for (int shift = 0; shift == 0 || (rows >> shift) > 0; shift += 8, ++pass) {
    const bool first = pass == 0;
    const std::string from = first ? fmt::format("const {}* ids, u32* error", id_type)
                                   : "const u32* old, const u32* order";
    const std::string key =
        first
            ? fmt::format(
                  "  const auto key = [&](u64 i) {{ return key_of(ids, i, {}, error); }};\n", rows)
            : "  const auto key = [&](u64 i) { return old[i]; };\n";
    const std::string index =
        first ? "  const auto index = [&](u64 i) { return static_cast<u32>(i); };\n"
              : "  const auto index = [&](u64 i) { return order[i]; };\n";
    const int to = pass % 2, of = 1 - to;
    std::vector<LaunchArg> args = first ? std::vector{LaunchArg::in(1), bad_id(node, rows)}
                                        : std::vector{keys[of], indices[of]};
    std::vector<LaunchArg> count_args = args, move_args = args;
    count_args.push_back(counts);
    for (const LaunchArg& a : {counts, keys[to], indices[to]}) move_args.push_back(a);
    add("embedding_count", from + ", u32* counts",
        key + fmt::format("  sort_count(key, counts, {}, {});\n", tokens, shift), count_args,
        {sort_blocks, 1, 1}, 256);
    add("embedding_scan", "u32* counts",
        fmt::format("  sort_scan(counts, {});\n", 256 * sort_blocks), {counts}, {}, 1024);
    add("embedding_move", from + ", const u32* counts, u32* keys, u32* indices",
        key + index +
            fmt::format("  sort_move(key, index, counts, keys, indices, {}, {});\n", tokens, shift),
        move_args, {sort_blocks, 1, 1}, 256);
  }
  const int last = (pass + 1) % 2;
  add("embedding_starts", "const u32* keys, u32* starts",
      fmt::format("  sort_starts(keys, starts, {}, {});\n", tokens, rows), {keys[last], starts},
      {blocks(rows + 1, 256), 1, 1}, 256);
  const DType t = node.in[0].dtype;
  const int64_t v = vector_of(t, width, operand_alignment(node, 0));
  add("embedding_sums",
      fmt::format("const {0}* dy, const u32* starts, const u32* indices, {0}* y", stored_type(t)),
      fmt::format("  embedding_row_sums<{}, {}>(dy, starts, indices, y, {});\n", stored_type(t), v,
                  width),
      {LaunchArg::in(0), starts, indices[last], LaunchArg::out(0)},
      {static_cast<uint32_t>(rows), blocks(width, 128 * v), 1}, 512);
  return p;
}

}  // namespace

std::vector<PlanEntry> embedding_entries() {
  const auto any = [](const NodeView&, const GpuDescription&) { return std::string(); };
  const auto narrow = [](const NodeView& node, const GpuDescription&) -> std::string {
    return node.in[0].dtype == DType::f64 ? "f64" : "";
  };
  const auto ids = [](const NodeView& node, const GpuDescription&) -> std::string {
    const DType t = node.in[1].dtype;
    if (t == DType::i32 || t == DType::i64) return "";
    return fmt::format("indices of {}: only i32 and i64", name_of(t));
  };
  return {{Op::embedding, "rows", any, rows_plan},
          {Op::embedding_grad, "sorted", narrow, sums_plan},
          {Op::gather, "runs", ids, gather_plan}};
}

}  // namespace brrr::cuda
